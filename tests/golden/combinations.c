/* SPDX-License-Identifier: Apache-2.0 */
#define _XOPEN_SOURCE 700
/*
 * combinations - settings that may change no answer, in random combinations: drafts, chains and
 * trees, pages on disk, experts on disk and in workers, a store, cuts of prompts, threads, levels
 * of kernels, neighbours, held and cancelled requests, rewinds, forks, saved sessions.  Settings
 * that do change answers (formats of keys and values, sparse prompts, chosen pages, gaps between
 * positions, numerics) are the same in a plain computation: one request at a time, one thread,
 * one chunk, nothing cached.  Tokens, log-probabilities and what else was probable are compared
 * bit for bit.
 *
 * Prompts of models with encoders have pictures and sounds among their tokens.
 *
 *   combinations [--seed=N] [--seconds=S] [--verbose]
 *
 * Cases N, N + 1 ... until S seconds of processors are over (0: one case).  Without --seed the
 * clock gives N.  What fails is printed with the command that repeats it.
 */
#include "unit/folder.h"
#include "unit/scheduler_world.h"

#include <signal.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

enum { CTX = 1536, TALKS = 3, TURNS = 3, RUNS = 3, N_TOP = 4, WORKERS = 2 };
enum { MEDIA = 4, MEDIA_OF_TURN = 12, SIDE = 96, SAMPLES = 8000 };

static const char *const nano_drafters[] = {"tests/data/nano/nano-gemma4-dflash-Q8_0.gguf",
                                            "tests/data/nano/nano-gemma4-dspark-Q8_0.gguf",
                                            "tests/data/nano/nano-gemma4-mtp-Q8_0.gguf",
                                            "ngram",
                                            "auto",
                                            NULL};
static const char *const dense_drafters[] = {
    "tests/data/goldens/dflash2_gemma4/model-F32.gguf",
    "tests/data/goldens/dflash_gemma4/model-F32.gguf",
    "tests/data/goldens/dspark_gemma4/model-F32.gguf",
    "tests/data/goldens/gemma4_assistant_dense/model-F32.gguf",
    "ngram",
    NULL};
static const char *const moe_drafters[] = {
    "tests/data/goldens/gemma4_assistant_dense/model-F32.gguf",
    "tests/data/goldens/gemma4_assistant_ordered/model-F32.gguf", "ngram", NULL};
static const char *const nano_v4_drafters[] = {"tests/data/nano-v4/nano-v4-dspark-Q8_0.gguf",
                                               "tests/data/nano-v4/nano-v4-mtp0-Q8_0.gguf", "ngram",
                                               NULL};
static const char *const v4_drafters[] = {"tests/data/goldens/dspark_v4/model-F32.gguf", "ngram",
                                          NULL};
static const char *const text_drafts[] = {"ngram", "auto", NULL};

static const char *const small_heads[] = {"f16", "f32",  "bf16",    "q8r",
                                          "n4r", "f16v", "q8r:n4r", NULL};
static const char *const shared_keys[] = {"f16", "f32", "bf16", "q8r", "n4r", "q8r:n4r", NULL};
static const char *const large_heads[] = {"f16",         "q8_0",      "q8r",     "n4r",
                                          "tq3_0",       "f16v",      "q8r+rot", "n4r+rot",
                                          "q8r:n4r+rot", "bf16:q8_0", NULL};
static const char *const one_row[] = {"f16", "f32", "bf16", "fp8", NULL};

static const struct model {
    const char *path; /* NULL: the built-in one */
    const char *const *drafters, *const *kv;
    bool gemma, experts, trained; /* trained: it writes words, so grammars hold it */
    const char *mmproj;           /* NULL: its own, beside it, or none */
} models[] = {
    {NULL, nano_drafters, small_heads, true, false, true, NULL},
    {"tests/data/nano/nano-gemma4-Q4_K_M.gguf", nano_drafters, small_heads, true, false, true,
     "assets/mmproj-nano-gemma4.gguf"},
    {"tests/data/vision/vision_31b/model-BF16.gguf", text_drafts, small_heads, true, false, false,
     NULL},
    {"tests/data/vision/vision_e4b/model-BF16.gguf", text_drafts, shared_keys, true, false, false,
     NULL},
    {"tests/data/vision/vision_12b/model-BF16.gguf", text_drafts, small_heads, true, false, false,
     NULL},
    {"tests/data/goldens/gemma4_dense/model-Q8_0.gguf", dense_drafters, small_heads, true, false,
     false, NULL},
    {"tests/data/goldens/gemma4_moe/model-F32.gguf", moe_drafters, small_heads, true, true, false,
     NULL},
    {"tests/data/goldens/gemma4_ple_e2b/model-F32.gguf", moe_drafters, shared_keys, true, false,
     false, NULL},
    {"tests/data/goldens/gemma4_realhd/model-F32.gguf", text_drafts, large_heads, true, false,
     false, NULL},
    {"tests/data/nano-v4/nano-v4-MXFP4.gguf", nano_v4_drafters, one_row, false, true, true,
     NULL},
    {"tests/data/goldens/deepseek_v4_full/model-Q8_0.gguf", v4_drafters, one_row, false, true,
     false, NULL},
    {"tests/data/goldens/deepseek_v4_full/model-MXFP4.gguf", text_drafts, one_row, false, true,
     false, NULL},
};
enum { N_MODELS = sizeof models / sizeof *models };

/* A prompt of a conversation and its answers. */
struct turn {
    int32_t *prompt, *position; /* [n]; position NULL: no gaps */
    int64_t n, max_tokens;
    struct { int64_t start; int which; } medium[MEDIA_OF_TURN]; /* [n_media], ascending */
    int n_media;
    struct answer want[2];
};

/* A conversation. */
struct talk {
    const char *sparse, *select, *user;
    struct ingle_sampling sampling;
    int n_answers, grammar; /* of `grammar`, -1: none */
    bool ignore_end, gaps;
    struct turn turn[TURNS];
    int n_turns;
};

static struct {
    uint64_t seed, x; /* x: state of the random numbers */
    const struct model *m;
    struct ingle_model *file;
    const char *kv, *numerics, *cpu, *select;
    struct ingle_grammar *grammar[3];
    struct talk talk[TALKS];
    int n_talks;
    /* what its prompts show: pictures, behind the first n_pictures sounds; soft tokens of each */
    int n_shown, n_pictures;
    int64_t n_soft[MEDIA];
    uint8_t rgb[MEDIA][SIDE * SIDE * 3];
    float samples[MEDIA][SAMPLES];
    /* of the engines that are open: theirs */
    struct shown {
        struct ingle_engine *e;
        struct ingle_medium *medium[MEDIA];
    } shown[2];
    char dir[64], about[12000], line[200];
    int64_t n_compared, n_cases, n_lanes;
    bool over, verbose, less; /* less: some rows read less than they see */
    char in_effect[80];       /* numerics of the plain engine */
} c;

/* ---- random numbers, words ---- */

static uint64_t random_bits(void)
{
    uint64_t z = c.x += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int64_t between(int64_t least, int64_t most)
{
    return least + (int64_t)(random_bits() % (uint64_t)(most - least + 1));
}

static bool chance(int one_in)
{
    return random_bits() % (uint64_t)one_in == 0;
}

static const char *one_of(const char *const *list)
{
    int n = 0;
    while (list[n])
        n++;
    return list[between(0, n - 1)];
}

#define ONE_OF(...) one_of((const char *const[]){__VA_ARGS__, NULL})

__attribute__((format(printf, 1, 2))) static void about(const char *format, ...)
{
    va_list args;
    const size_t n = strlen(c.about);
    va_start(args, format);
    vsnprintf(c.about + n, sizeof c.about - n, format, args);
    va_end(args);
}

static const char *or_not(const char *text)
{
    return text ? text : "-";
}

/* ---- what a case is about ---- */

static void on_failure(void)
{
    if (!c.over)
        fprintf(stderr, "%s\n%s", c.about, c.line);
}

static void on_signal(int number)
{
    (void)!write(2, c.about, strlen(c.about));
    (void)!write(2, "\n", 1);
    (void)!write(2, c.line, strlen(c.line));
    signal(number, SIG_DFL);
    raise(number);
}

/* Noise of some size, in few colours; noise that one hears. */
static void choose_media(void)
{
    c.n_pictures = (int)between(1, MEDIA - 1);
    for (int k = 0; k < MEDIA; k++) {
        for (size_t i = 0; i < sizeof c.rgb[k]; i++)
            c.rgb[k][i] = (uint8_t)(random_bits() % 3 * 127);
        for (int i = 0; i < SAMPLES; i++)
            c.samples[k][i] = (float)(random_bits() % 2000) / 1000 - 1;
    }
}

/* The media of an engine, opened; false: it has no encoders. */
static struct ingle_medium **media_of(struct ingle_engine *e)
{
    struct ingle_engine_info info;
    ingle_engine_info(e, &info);
    for (int i = 0; i < 2; i++)
        if (c.shown[i].e == e)
            return c.shown[i].medium;
    struct shown *at = c.shown[0].e ? &c.shown[1] : &c.shown[0];
    *at = (struct shown){.e = e};
    c.n_shown = !info.sees ? 0 : info.hears ? MEDIA : c.n_pictures;
    for (int k = 0; k < c.n_shown; k++) {
        struct ingle_media in = {.name = "noise", .budget = 70};
        struct ingle_medium_info medium;
        if (k < c.n_pictures) {
            in.rgb = c.rgb[k];
            in.width = SIDE / (1 + k % 2);
            in.height = SIDE;
        } else {
            in.samples = c.samples[k];
            in.n_samples = (size_t)(SAMPLES / (1 + k % 3));
        }
        must(ingle_medium_open(&at->medium[k], e, &in, &error));
        ingle_medium_info(at->medium[k], &medium);
        c.n_soft[k] = medium.n_soft;
    }
    return at->medium;
}

static void close_media(struct ingle_engine *e)
{
    for (int i = 0; i < 2; i++)
        if (c.shown[i].e == e) {
            for (int k = 0; k < MEDIA; k++)
                ingle_medium_close(c.shown[i].medium[k]);
            c.shown[i].e = NULL;
        }
}

/* Those that end within the first n tokens; to [MEDIA_OF_TURN]. */
static size_t spans_of(struct ingle_engine *e, const struct turn *u, int64_t n,
                       struct ingle_span *to)
{
    struct ingle_medium **medium = u->n_media ? media_of(e) : NULL;
    size_t k = 0;
    for (; k < (size_t)u->n_media; k++) {
        const int which = u->medium[k].which;
        if (u->medium[k].start + c.n_soft[which] > n)
            break;
        to[k] = (struct ingle_span){u->medium[k].start, c.n_soft[which], medium[which]};
    }
    return k;
}

static int32_t special(const char *name)
{
    return ingle_find_token(c.file, name, strlen(name));
}

/* Some media from token `from` on, each between markers. */
static void put_media(struct turn *u, int64_t from)
{
    int64_t at = from;
    while (c.n_shown && u->n_media < MEDIA_OF_TURN && chance(3) == 0) {
        const int which = (int)between(0, c.n_shown - 1);
        const bool sound = which >= c.n_pictures;
        const int64_t n = c.n_soft[which];
        at += between(1, 120);
        if (at + n + 1 >= u->n)
            return;
        u->prompt[at - 1] = special(sound ? "<|audio>" : "<|image>");
        u->medium[u->n_media].start = at;
        u->medium[u->n_media++].which = which;
        for (int64_t i = 0; i < n; i++)
            u->prompt[at++] = special(sound ? "<|audio|>" : "<|image|>");
        u->prompt[at++] = special(sound ? "<audio|>" : "<image|>");
    }
}

/* Text that repeats itself in parts, with places where turns meet. */
static void write_tokens(int32_t *out, int64_t n, int64_t before)
{
    struct ingle_model_info info;
    const char *open = c.m->gemma ? "<|turn>" : "<｜User｜>";
    const int32_t turn = ingle_find_token(c.file, open, strlen(open));
    ingle_model_info(c.file, &info);
    for (int64_t i = 0; i < n;) {
        const int64_t length = between(1, 40), from = before + i;
        const bool again = from > 60 && chance(2);
        const int64_t back = again ? between(length, from) : 0;
        for (int64_t j = 0; j < length && i < n; j++, i++)
            out[i] =
                again ? out[i - back] : (int32_t)between(info.n_vocab / 8, info.n_vocab * 5 / 8);
        if (turn >= 0 && chance(4) && i < n)
            out[i++] = turn;
    }
}

static void choose_sampling(struct talk *t)
{
    struct ingle_sampling *s = &t->sampling;
    *s = (struct ingle_sampling){.repeat_penalty = 1,
                                 .top_p = 1,
                                 .typical_p = 1,
                                 .logprobs = true,
                                 .seed = random_bits() >> 12};
    if (chance(8))
        ingle_sampling_defaults(c.file, s);
    s->logprobs = true;
    s->temperature = chance(3) ? 0 : (float)between(1, 12) / 10;
    if (chance(3))
        s->top_k = (int32_t)between(1, 60);
    if (chance(4))
        s->top_p = 0.9f;
    if (chance(6))
        s->min_p = 0.05f;
    if (chance(6))
        s->repeat_penalty = 1.2f, s->penalty_window = (int32_t)between(-1, 200);
    if (chance(8))
        s->presence_penalty = 0.4f;
    if (chance(8))
        s->dry_multiplier = 0.8f;
    if (chance(10))
        s->xtc_probability = 0.5f, s->xtc_threshold = 0.1f;
    s->min_tokens = chance(6) ? between(1, 12) : 0;
    t->n_answers = chance(5) ? 2 : 1;
    t->ignore_end = chance(2);
    t->grammar = c.m->trained && c.m->gemma && chance(4) ? (int)between(0, 2) : -1;
    t->user = chance(4) ? ONE_OF("ann", "bob") : NULL;
    about("  talk: sparse %s, select %s, gaps %d, temp %g, top-k %d, answers %d, grammar %d, "
          "user %s, ends %d\n",
          t->sparse, t->select, t->gaps, (double)s->temperature, s->top_k, t->n_answers, t->grammar,
          or_not(t->user), !t->ignore_end);
}

static void choose_talk(struct talk *t)
{
    *t = (struct talk){.sparse = "off", .select = "off"};
    if (c.m->gemma && !c.numerics && chance(3))
        t->sparse = ONE_OF("on:eps=1/8,from=128", "on:eps=1/16,from=256", "on:eps=1/4,from=0");
    if (c.select && chance(2))
        t->select = c.select;
    c.less = c.less || strcmp(t->sparse, "off") != 0 || strcmp(t->select, "off") != 0;
    t->gaps = c.m->gemma && strcmp(c.kv, "f16v") != 0 && chance(4);
    t->n_turns = (int)between(1, TURNS);
    choose_sampling(t);
}

static bool is_soft(const struct turn *u, int64_t i)
{
    for (int k = 0; k < u->n_media; k++)
        if (i > u->medium[k].start && i < u->medium[k].start + c.n_soft[u->medium[k].which])
            return true;
    return false;
}

/* Where tokens stand of which some neighbours are left out, from the token `from` on. */
static void leave_gaps(struct turn *u, int64_t from)
{
    for (int64_t i = from; i < u->n; i++)
        u->position[i] = (i ? u->position[i - 1] + 1 : 0) +
                         (!is_soft(u, i) && chance(30) ? (int32_t)between(1, 40) : 0);
}

/* The next prompt is the last one, its answer, and more; or it leaves it somewhere. */
static void choose_turn(struct talk *t, int i)
{
    const struct turn *last = i ? &t->turn[i - 1] : NULL;
    struct turn *now = &t->turn[i];
    const int64_t kept = !last ? 0 : chance(4) ? between(1, last->n) : last->n;
    /* rows of answers that read less than those of prompts, or the reverse, are another turn's */
    const bool alike =
        !c.numerics && strcmp(t->sparse, "off") == 0 && strcmp(t->select, "off") == 0;
    const int64_t answer = alike && last && kept == last->n ? last->want[0].n : 0;
    const int64_t more = i ? between(1, 200) : chance(3) ? between(1, 40) : between(100, 900);
    now->max_tokens = between(1, 60);
    now->n = kept + answer + more;
    now->prompt = calloc((size_t)now->n, sizeof *now->prompt);
    if (kept)
        memcpy(now->prompt, last->prompt, (size_t)kept * sizeof *now->prompt);
    if (answer)
        memcpy(now->prompt + kept, last->want[0].id, (size_t)answer * sizeof *now->prompt);
    write_tokens(now->prompt + kept + answer, more, kept + answer);
    if (last && kept == last->n && !answer && last->want[0].n &&
        now->prompt[kept] == last->want[0].id[0])
        now->prompt[kept]++;
    for (int k = 0; last && k < last->n_media; k++)
        if (last->medium[k].start + c.n_soft[last->medium[k].which] <= kept)
            now->medium[now->n_media++] = last->medium[k];
    put_media(now, kept + answer + 1);
    if (!t->gaps)
        return;
    now->position = calloc((size_t)now->n, sizeof *now->position);
    if (kept)
        memcpy(now->position, last->position, (size_t)kept * sizeof *now->position);
    for (int64_t j = kept; j < kept + answer; j++)
        now->position[j] = now->position[j - 1] + 1;
    leave_gaps(now, kept + answer);
}

/* ---- requests ---- */

static struct asked *make_request(struct ingle_engine *e, const struct talk *t,
                                  const struct turn *u)
{
    struct ingle_span *span = calloc(MEDIA_OF_TURN, sizeof *span);
    struct asked *a = calloc(1, sizeof *a);
    a->o = (struct ingle_request_options){.prompt = u->prompt,
                                          .n_prompt = u->n,
                                          .span = span,
                                          .n_spans = spans_of(e, u, u->n, span),
                                          .max_tokens = u->max_tokens,
                                          .n = t->n_answers,
                                          .ignore_end = t->ignore_end,
                                          .sampling = t->sampling,
                                          .n_top = N_TOP,
                                          .grammar = t->grammar < 0 ? NULL : c.grammar[t->grammar],
                                          .user = t->user,
                                          .way = {t->sparse, t->select},
                                          .position = u->position,
                                          .begin = on_begin,
                                          .progress = on_progress,
                                          .token = on_token,
                                          .end = on_end,
                                          .done = on_done,
                                          .arg = a};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    return a;
}

static void end_request(struct asked *a)
{
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free((void *)(uintptr_t)a->o.span);
    free(a);
}

/* Cancelled answers are beginnings of the right ones, all others are the right ones. */
static void compare(const struct answer *got, const struct answer *want, bool tops, const char *who)
{
    if (got->why == INGLE_FINISH_ERROR)
        fail_msg("%s: %s", who, got->error);
    if (got->why != INGLE_FINISH_CANCEL && got->n != want->n)
        fail_msg("%s: %lld tokens and not %lld", who, (long long)got->n, (long long)want->n);
    for (int64_t i = 0; i < got->n; i++) {
        if (i >= want->n || got->id[i] != want->id[i])
            fail_msg("%s: token %lld is %d and not %d", who, (long long)i, got->id[i],
                     i < want->n ? want->id[i] : -1);
        if (memcmp(&got->logprob[i], &want->logprob[i], sizeof *got->logprob))
            fail_msg("%s: log-probability %lld is %a and not %a", who, (long long)i,
                     (double)got->logprob[i], (double)want->logprob[i]);
        if (tops && got->top[i] != want->top[i])
            fail_msg("%s: other tokens are probable beside token %lld", who, (long long)i);
    }
    c.n_compared += got->n;
    c.n_lanes++;
}

/* ---- the plain computation ---- */

static void open_plain(struct place *p, bool select)
{
    static const char *const off = "off";
    const struct ingle_engine_options o = {.threads = 1,
                                           .no_pin = true,
                                           .numa = "off",
                                           .n_ctx = CTX,
                                           .max_rows = CTX,
                                           .kv = c.kv,
                                           .numerics = c.numerics,
                                           .cpu = c.numerics ? c.cpu : NULL,
                                           .kv_select = select ? "1/1" : NULL,
                                           .mmproj = c.m->mmproj,
                                           .draft = &off,
                                           .n_draft = 1};
    struct ingle_engine_info info;
    must(ingle_engine_open(&p->e, c.file, &o, &error));
    must(ingle_scheduler_open(&p->s, p->e, &(struct ingle_scheduler_options){.max_running = 2},
                              &error));
    ingle_engine_info(p->e, &info);
    snprintf(c.in_effect, sizeof c.in_effect, "%s", info.numerics);
}

static void learn_turn(struct place *p, struct talk *t, struct turn *u)
{
    struct asked *a = make_request(p->e, t, u);
    a->o.anew = true;
    if (strcmp(t->select, "off") == 0)
        a->o.way[INGLE_WAY_SELECT] = NULL;
    submit(p, a);
    wait_done(a);
    for (int i = 0; i < t->n_answers; i++) {
        u->want[i] = a->answer[i];
        if (u->want[i].why == INGLE_FINISH_ERROR)
            fail_msg("plain: %s", u->want[i].error);
    }
    end_request(a);
}

/* Each talk on an engine that has what it needs, and nothing more. */
static void learn(void)
{
    struct place p[2] = {{0}};
    for (int i = 0; i < c.n_talks; i++) {
        struct talk *t = &c.talk[i];
        struct place *at = &p[strcmp(t->select, "off") != 0];
        if (!at->e) {
            open_plain(at, at != p);
            (void)media_of(at->e);
        }
        for (int j = 0; j < t->n_turns; j++) {
            choose_turn(t, j);
            if (t->turn[j].n + t->turn[j].max_tokens > CTX - 8 ||
                (t->gaps && t->turn[j].position[t->turn[j].n - 1] > CTX * 2)) {
                free(t->turn[j].prompt);
                free(t->turn[j].position);
                t->n_turns = j;
                break;
            }
            learn_turn(at, t, &t->turn[j]);
        }
    }
    for (int i = 0; i < 2; i++)
        if (p[i].e) {
            ingle_scheduler_close(p[i].s);
            close_media(p[i].e);
            ingle_engine_close(p[i].e);
        }
}

/* ---- engines with other settings ---- */

struct run {
    struct ingle_engine_options o;
    struct ingle_scheduler_options so;
    const char *draft[2];
    struct ingle_worker *worker[WORKERS];
    pthread_t thread[WORKERS];
    int n_workers;
    char addresses[200], store[96], disk[96], packed[96];
};

static const char *choose_level(void)
{
    static const char *const levels[] = {"ref",        "avx2",       "avxvnni", "avx512",
                                         "avx512vnni", "avx512vbmi", "amx"};
    struct ingle_model *m;
    struct ingle_engine *e;
    static int n;
    if (!n) { /* those that this machine has */
        struct ingle_engine_info info;
        must(ingle_model_open(&m, NULL, NULL, &error));
        must(ingle_engine_open(&e, m, &(struct ingle_engine_options){.n_ctx = 256}, &error));
        ingle_engine_info(e, &info);
        for (n = 1; n < 7 && strcmp(levels[n - 1], info.cpu) != 0;)
            n++;
        ingle_engine_close(e);
        ingle_model_close(m);
    }
    /* the plainest kernels read everything, which is reported */
    return chance(4) ? levels[between(!c.less && chance(4) ? 0 : 1, n - 1)] : NULL;
}

static void *run_worker(void *arg)
{
    ingle_worker_run(arg);
    return NULL;
}

/* The least that a worker or an engine may have for experts is in the text of the refusal. */
static uint64_t expert_bytes(const struct ingle_engine_options *o)
{
    struct ingle_plan plan;
    must(ingle_engine_plan(c.file, o, &plan, &error));
    return plan.expert_bytes * (uint64_t)between(30, 95) / 100;
}

static void start_workers(struct run *r)
{
    r->n_workers = (int)between(1, WORKERS);
    for (int i = 0; i < r->n_workers; i++) {
        char address[120];
        snprintf(address, sizeof address, "unix:%s/w%d", c.dir, i);
        const struct ingle_engine_options o = {.threads = 1,
                                               .no_pin = true,
                                               .numa = "off",
                                               .numerics = c.numerics,
                                               .cpu = c.numerics ? c.cpu : choose_level(),
                                               .n_ctx = CTX};
        const struct ingle_worker_options w = {.listen = address};
        must(ingle_worker_open(&r->worker[i], c.file, &o, &w, &error));
        assert_int_equal(pthread_create(&r->thread[i], NULL, run_worker, r->worker[i]), 0);
        snprintf(r->addresses + strlen(r->addresses), sizeof r->addresses - strlen(r->addresses),
                 "%s%s", i ? "," : "", address);
    }
    r->o.experts_worker = r->addresses;
    r->o.experts_share = ONE_OF("auto", "100", "50", "20");
}

static void stop_workers(struct run *r)
{
    for (int i = 0; i < r->n_workers; i++) {
        ingle_worker_stop(r->worker[i]);
        pthread_join(r->thread[i], NULL);
        ingle_worker_close(r->worker[i]);
    }
}

static void choose_experts(struct run *r)
{
    if (!c.m->experts)
        return;
    if (chance(2)) {
        r->o.expert_bytes = expert_bytes(&r->o);
        const char *const packed = r->o.pack_cache ? "direct" : "auto"; /* direct: those alone */
        r->o.experts_io = ONE_OF("auto", packed, "cached", "threads", "uring");
        r->o.experts_early = ONE_OF("auto", "off", "2", "8");
        r->o.experts_verify = ONE_OF("first", "always", "off");
    }
    if (chance(3))
        start_workers(r);
}

static void choose_drafts(struct run *r)
{
    r->draft[0] = chance(4) ? "off" : one_of(c.m->drafters);
    r->o.draft = r->draft;
    r->o.n_draft = 1;
    if (strcmp(r->draft[0], "off") == 0)
        return;
    r->o.draft_min = chance(3) ? 0 : between(1, 5);
    r->o.draft_max = chance(2) ? 0 : r->o.draft_min + between(1, 4);
    r->o.draft_tree = chance(2) ? 0 : between(2, 12);
}

static void choose_run(struct run *r)
{
    *r = (struct run){.o = {.threads = (int)between(1, 3),
                            .no_pin = true,
                            .numa = ONE_OF("off", "auto"),
                            .n_ctx = CTX,
                            .kv = c.kv,
                            .numerics = c.numerics,
                            .mmproj = c.m->mmproj,
                            .media_cache = chance(3) ? 1 : 0,
                            .max_rows = chance(3) ? 0 : between(16, 300),
                            .max_logits = chance(2) ? 0 : between(4, 40),
                            .n_sessions = between(1, 3),
                            .cache_bytes = chance(2) ? 0 : (uint64_t)between(1, 64) << 20,
                            .restore_every = chance(2) ? 0 : between(1, 4) * 128},
                      .so = {.max_running = between(2, 6),
                             .step_seconds = chance(3) ? 0.0005 : 0,
                             .first_rows = chance(3) ? between(1, 100) : 0}};
    r->o.cpu = c.numerics ? c.cpu : choose_level();
    choose_drafts(r);
    if (c.select)
        r->o.kv_select = chance(2) ? c.select : "1/1";
    r->o.sparse = c.m->gemma && !c.numerics && chance(3) ? "on:eps=1/8,from=128" : NULL;
    if (c.m->gemma && chance(3)) {
        snprintf(r->disk, sizeof r->disk, "%s/disk", c.dir);
        r->o.kv_disk = r->disk;
        r->o.kv_disk_bytes = (uint64_t)1 << 30;
        r->o.kv_pool_tokens = chance(3) ? 0 : between(1, 5) * 128;
        r->o.kv_select = c.select;
    }
    if (chance(2)) {
        snprintf(r->store, sizeof r->store, "%s/store", c.dir);
        r->o.store = r->store;
        r->o.store_tokens = between(1, 2) * 128;
    }
    if (chance(4)) {
        snprintf(r->packed, sizeof r->packed, "%s/packed", c.dir);
        r->o.pack_cache = r->packed;
        r->o.pack_write = true;
    }
    choose_experts(r);
    const struct ingle_engine_options *o = &r->o;
    about("  run: threads %d, cpu %s, rows %lld, logits %lld, sessions %lld, running %lld, draft "
          "%s min %lld max %lld tree %lld, select %s, sparse %s, disk %d pool %lld, store %d, "
          "packed %d, experts %llu %s %s %s, workers %d %s, cache %llu, restore %lld\n",
          o->threads, or_not(o->cpu), (long long)o->max_rows, (long long)o->max_logits,
          (long long)o->n_sessions, (long long)r->so.max_running, r->draft[0],
          (long long)o->draft_min, (long long)o->draft_max, (long long)o->draft_tree,
          or_not(o->kv_select), or_not(o->sparse), o->kv_disk != NULL, (long long)o->kv_pool_tokens,
          o->store != NULL, o->pack_cache != NULL, (unsigned long long)o->expert_bytes,
          or_not(o->experts_io), or_not(o->experts_early), or_not(o->experts_verify), r->n_workers,
          or_not(o->experts_share), (unsigned long long)o->cache_bytes,
          (long long)o->restore_every);
}

/* ---- answers of a scheduler ---- */

static void vary(struct asked *a, const struct run *r)
{
    if (strcmp(r->draft[0], "off") != 0) {
        a->o.draft_max = chance(3) ? between(-1, 6) : 0;
        a->o.draft_min = a->o.draft_max >= 0 && chance(4) ? between(1, 3) : 0;
        if (a->o.draft_max > 0 && a->o.draft_min > a->o.draft_max)
            a->o.draft_min = a->o.draft_max;
        a->o.draft_method = chance(4) ? ONE_OF("auto", "ngram", "none") : NULL;
        a->o.draft_tree = r->o.draft_tree > 1 && chance(3) ? between(1, r->o.draft_tree) : 0;
    }
    a->o.priority = (int)between(-2, 2);
    a->o.anew = chance(8);
    const bool select_off = strcmp(a->o.way[INGLE_WAY_SELECT], "off") == 0;
    if ((!r->o.kv_select || strcmp(r->o.kv_select, "1/1") == 0) && select_off)
        a->o.way[INGLE_WAY_SELECT] = chance(2) ? NULL : r->o.kv_select ? "off" : NULL;
    if (!r->o.sparse && strcmp(a->o.way[INGLE_WAY_SPARSE], "off") == 0)
        a->o.way[INGLE_WAY_SPARSE] = chance(2) ? NULL : "off";
    a->hold_after = chance(6) ? between(1, 10) : 0;
    a->hold_prompt = chance(10);
}

/* A turn of each talk, together or one behind the other; some of them twice, of which one may be
 * cancelled. */
static void ask_all(struct place *p, const struct run *r, int turn)
{
    struct asked *a[2 * TALKS];
    const struct turn *of[2 * TALKS];
    int n = 0;
    for (int i = 0; i < c.n_talks; i++)
        for (int again = 0; turn < c.talk[i].n_turns && again < (chance(3) ? 2 : 1); again++) {
            of[n] = &c.talk[i].turn[turn];
            a[n] = make_request(p->e, &c.talk[i], of[n]);
            vary(a[n], r);
            a[n]->cancel_after = again && chance(2) ? between(1, 20) : 0;
            n++;
        }
    const bool together = chance(2);
    for (int i = 0; i < n; i++)
        about("      %lld tokens, %zu media, select %s, sparse %s, draft max %lld min %lld tree "
              "%lld method %s, anew %d, priority %d, hold %lld, cancel %lld%s\n",
              (long long)a[i]->o.n_prompt, a[i]->o.n_spans, or_not(a[i]->o.way[INGLE_WAY_SELECT]),
              or_not(a[i]->o.way[INGLE_WAY_SPARSE]),
              (long long)a[i]->o.draft_max, (long long)a[i]->o.draft_min,
              (long long)a[i]->o.draft_tree, or_not(a[i]->o.draft_method), a[i]->o.anew,
              a[i]->o.priority, (long long)a[i]->hold_after, (long long)a[i]->cancel_after,
              together ? ", together" : "");
    if (together)
        submit_together(p, a, n);
    for (int i = 0; i < n; i++) {
        if (!together) {
            submit(p, a[i]);
            if (chance(2))
                nanosleep(&(struct timespec){.tv_nsec = between(0, 3000000)}, NULL);
        }
    }
    for (bool all = false; !all;) { /* what is held goes on now and then */
        all = true;
        for (int i = 0; i < n; i++) {
            pthread_mutex_lock(&a[i]->lock);
            const bool done = a[i]->done;
            if (!done) {
                a[i]->hold_prompt = false;
                ingle_request_hold(p->s, a[i]->r, false);
            }
            pthread_mutex_unlock(&a[i]->lock);
            all = all && done;
        }
        if (!all)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    for (int i = 0; i < n; i++) {
        wait_done(a[i]);
        for (int j = 0; j < a[i]->o.n; j++) {
            char who[120];
            snprintf(who, sizeof who,
                     "answer %d of the request with %lld tokens, %lld of them kept", j,
                     (long long)of[i]->n, (long long)a[i]->reuse.kept);
            compare(&a[i]->answer[j], &of[i]->want[j], true, who);
        }
        end_request(a[i]);
    }
}

/* ---- answers of sessions ---- */

static void set_ways(struct ingle_session *s, const struct run *r, const struct talk *t,
                     const struct turn *u)
{
    ingle_session_set_user(s, t->user);
    must(ingle_session_set_way(s, INGLE_WAY_SPARSE, t->sparse, &error));
    if (r->o.kv_select)
        must(ingle_session_set_way(s, INGLE_WAY_SELECT, t->select, &error));
    if (u->position)
        must(ingle_session_set_positions(s, u->position, u->n, &error));
}

/* The first n tokens of a prompt. */
static void sync_first(struct place *p, struct ingle_session *s, const struct turn *u, int64_t n)
{
    struct ingle_span span[MEDIA_OF_TURN];
    const size_t n_spans = spans_of(p->e, u, n, span);
    must(ingle_session_sync_media(s, u->prompt, n, span, n_spans, NULL, &error));
}

/* A prompt in pieces, perhaps first something that is left again. */
static void read_prompt(struct place *p, struct ingle_session *s, const struct turn *u)
{
    if (u->n > 4 && chance(2)) {
        sync_first(p, s, u, between(1, u->n));
        for (int64_t i = between(0, 5); i > 0 && ingle_session_pending(s); i--) {
            struct ingle_work w = {.session = s, .max_tokens = between(1, 200)};
            must(ingle_step(p->e, &w, 1, &error));
        }
    }
    sync_first(p, s, u, u->n);
}

/* What a session may go through in the middle of an answer. */
static void disturb(struct place *p, struct ingle_session **s, struct answer *got,
                    const struct run *r, const struct talk *t, const struct turn *u, bool *named)
{
    struct ingle_session *other;
    char path[96];
    switch (between(0, 6)) {
    case 0: /* some tokens are drawn again */
        if (got->n < 2 || *named)
            break;
        got->n = between(1, got->n - 1);
        must(ingle_session_rewind(*s, u->n + got->n - 1, &error));
        must(ingle_session_append(*s, &got->id[got->n - 1], 1, &error));
        break;
    case 1:
        must(ingle_session_open(&other, p->e, &error));
        must(ingle_session_fork(other, *s, &error));
        ingle_session_close(*s);
        *s = other;
        break;
    case 2:
        snprintf(path, sizeof path, "%s/saved", c.dir);
        must(ingle_session_save(*s, path, &error));
        must(ingle_session_open(&other, p->e, &error));
        ingle_session_set_user(other, t->user);
        must(ingle_session_load(other, path, &error));
        *named = u->n_media > 0; /* then nothing of the prompt can be computed again */
        ingle_session_close(*s);
        *s = other;
        break;
    case 3:
        must(ingle_session_remember(*s, &error));
        break;
    case 4: /* another session draws meanwhile */
        must(ingle_session_open(&other, p->e, &error));
        set_ways(other, r, t, u);
        sync_first(p, other, u, between(1, u->n));
        const float *logits;
        must(ingle_session_finish(other, &logits, &error));
        ingle_session_close(other);
        break;
    default:
        break;
    }
}

static void draw_turn(struct place *p, const struct run *r, const struct talk *t,
                      const struct turn *u, struct ingle_session **s)
{
    struct ingle_sampler *sampler;
    struct ingle_sampling sampling = t->sampling;
    struct answer *got = calloc(1, sizeof *got);
    bool named = false;
    sampling.n_prompt = u->n;
    must(ingle_sampler_open(&sampler, p->e, &sampling, &error));
    set_ways(*s, r, t, u);
    read_prompt(p, *s, u);
    while (got->n < u->want[0].n) {
        struct ingle_token token[64];
        int64_t k;
        must(ingle_session_draw(*s, sampler, token, between(1, u->want[0].n - got->n), &k, &error));
        for (int64_t i = 0; i < k; i++) {
            got->id[got->n] = token[i].id;
            got->logprob[got->n++] = token[i].logprob;
        }
        if (chance(4))
            disturb(p, s, got, r, t, u, &named);
    }
    compare(got, &u->want[0], false, "a session");
    ingle_sampler_close(sampler);
    free(got);
}

/* Grammars are followed from a sampler's first draw on, which a rewind would not know. */
static void draw_all(struct place *p, const struct run *r)
{
    for (int i = 0; i < c.n_talks; i++) {
        const struct talk *t = &c.talk[i];
        struct ingle_session *s;
        if (t->grammar >= 0)
            continue;
        must(ingle_session_open(&s, p->e, &error));
        for (int j = 0; j < t->n_turns; j++)
            draw_turn(p, r, t, &t->turn[j], &s);
        ingle_session_close(s);
    }
}

/* ---- a case ---- */

static void open_grammars(void)
{
    static const char regex[] = "[a-z]{3,9}( [a-z]{2,7}){2,8}\\.",
                      schema[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":"
                                 "\"string\",\"maxLength\":12},\"ok\":{\"type\":\"boolean\"}},"
                                 "\"required\":[\"name\",\"ok\"]}";
    must(ingle_grammar_open(&c.grammar[0], c.file, INGLE_GRAMMAR_REGEX, regex, sizeof regex - 1,
                            &error));
    must(ingle_grammar_open(&c.grammar[1], c.file, INGLE_GRAMMAR_JSON_SCHEMA, schema,
                            sizeof schema - 1, &error));
    must(ingle_grammar_open(&c.grammar[2], c.file, INGLE_GRAMMAR_JSON, NULL, 0, &error));
}

static void choose_case(void)
{
    c.m = &models[between(0, N_MODELS - 1)];
    c.kv = one_of(c.m->kv);
    c.numerics = chance(8) ? ONE_OF("fast", "reference") : NULL;
    if (c.numerics && strcmp(c.numerics, "reference") == 0)
        c.kv = "f16"; /* it decodes each key for each row */
    c.cpu = c.numerics ? choose_level() : NULL;
    c.select =
        c.m->gemma && !c.numerics && chance(3) ? ONE_OF("1/4,least=5", "1/8,least=6", "1/3") : NULL;
    must(ingle_model_open(&c.file, c.m->path, NULL, &error));
    snprintf(c.about, sizeof c.about, "%s, kv %s, numerics %s, cpu %s, select %s\n",
             c.m->path ? c.m->path : "the built-in model", c.kv, or_not(c.numerics), or_not(c.cpu),
             or_not(c.select));
    if (c.m->trained && c.m->gemma)
        open_grammars();
    c.n_talks = (int)between(1, TALKS);
    c.less = false;
    for (int i = 0; i < c.n_talks; i++)
        choose_talk(&c.talk[i]);
}

static void play(void)
{
    struct run r;
    struct place p = {0};
    struct ingle_engine_info info;
    choose_run(&r);
    must(ingle_engine_open(&p.e, c.file, &r.o, &error));
    (void)media_of(p.e);
    ingle_engine_info(p.e, &info);
    if (!c.numerics || strncmp(info.numerics, c.in_effect, strlen(c.in_effect)) == 0) {
        for (int i = (int)between(1, 2); i > 0; i--) {
            if (chance(3)) {
                about("    sessions\n");
                draw_all(&p, &r);
                continue;
            }
            must(ingle_scheduler_open(&p.s, p.e, &r.so, &error));
            for (int turn = 0; turn < TURNS; turn++) {
                about("    turn %d\n", turn);
                ask_all(&p, &r, turn);
            }
            ingle_scheduler_close(p.s);
        }
    }
    close_media(p.e);
    ingle_engine_close(p.e);
    stop_workers(&r);
}

static void run_case(void)
{
    c.x = c.seed * 0x2545f4914f6cdd1du;
    snprintf(c.line, sizeof c.line, "repeat it: out/release/combinations --seed=%llu\n",
             (unsigned long long)c.seed);
    choose_media();
    snprintf(c.dir, sizeof c.dir, "/tmp/ingle-combinations-XXXXXX");
    assert_non_null(mkdtemp(c.dir));
    choose_case();
    learn();
    for (int64_t i = between(1, RUNS); i > 0; i--)
        play();
    if (c.verbose)
        printf("%llu: %s", (unsigned long long)c.seed, c.about);
    for (int i = 0; i < c.n_talks; i++)
        for (int j = 0; j < c.talk[i].n_turns; j++) {
            free(c.talk[i].turn[j].prompt);
            free(c.talk[i].turn[j].position);
        }
    for (int i = 0; i < 3; i++) {
        ingle_grammar_close(c.grammar[i]);
        c.grammar[i] = NULL;
    }
    ingle_model_close(c.file);
    remove_dir(c.dir);
    c.n_cases++;
    c.seed++;
}

int main(int argc, char **argv)
{
    double seconds = 0;
    c.seed = (uint64_t)time(NULL) * 1000;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--seed=", 7) == 0)
            c.seed = strtoull(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "--seconds=", 10) == 0)
            seconds = strtod(argv[i] + 10, NULL);
        else if (strcmp(argv[i], "--verbose") == 0)
            c.verbose = true;
        else
            return fprintf(stderr, "combinations [--seed=N] [--seconds=S] [--verbose]\n"), 2;
    }
    atexit(on_failure);
    signal(SIGSEGV, on_signal);
    signal(SIGABRT, on_signal);
    const uint64_t first = c.seed;
    do
        run_case();
    while ((double)clock() / CLOCKS_PER_SEC < seconds);
    c.over = true;
    printf("seeds %llu to %llu: %lld cases, %lld answers, %lld tokens: no difference\n",
           (unsigned long long)first, (unsigned long long)c.seed - 1, (long long)c.n_cases,
           (long long)c.n_lanes, (long long)c.n_compared);
    return 0;
}
