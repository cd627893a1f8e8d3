/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"
#include "cli/talk.h"
#include "cli/hub.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/size.h"
#include "base/write.h"

#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

ingle_status cli_open_engine(struct cli *c, struct ingle_model *m, int64_t max_logits,
                             struct ingle_engine **out, struct ingle_error *error)
{
    struct ingle_engine_options o = {.max_logits = max_logits, .callbacks = cli_callbacks(c)};
    ingle_config_engine(c->config, &o);
    const ingle_status st = ingle_engine_open(out, m, &o, error);
    if (!st)
        cli_pack_say(c, *out);
    return st;
}

/* What --grammar, --json-schema, --json-object or --regex ask of every answer. */
static int open_grammar(struct cli *c, struct cli_talk *t)
{
    static const struct {
        const char *option;
        enum ingle_grammar_kind kind;
        const char *mark; /* of a text that may stand instead of a file; NULL: it is none */
    } form[] = {{"grammar", INGLE_GRAMMAR_GBNF, "::="},
                {"json-schema", INGLE_GRAMMAR_JSON_SCHEMA, "{"},
                {"json-object", INGLE_GRAMMAR_JSON, NULL},
                {"regex", INGLE_GRAMMAR_REGEX, NULL}};
    struct err err;
    struct ingle_error error;
    const char *first = NULL;
    for (size_t i = 0; i < sizeof form / sizeof *form; i++) {
        if (form[i].kind == INGLE_GRAMMAR_JSON ? !ingle_config_flag(c->config, form[i].option)
                                               : !ingle_config_is_set(c->config, form[i].option))
            continue;
        if (first) {
            err_set(&err, INGLE_ARG, "options '--%s' and '--%s' exclude each other", first,
                    form[i].option);
            return cli_fail_err(c, &err);
        }
        first = form[i].option;
        const char *text = ingle_config_text(c->config, first, 0);
        char *file = NULL;
        size_t n = text ? strlen(text) : 0;
        if (form[i].mark && cli_slurp_or_text(text, form[i].mark, &file, &n, &err))
            return cli_fail_err(c, &err);
        const ingle_status st = ingle_grammar_open(&t->grammar, t->model, form[i].kind,
                                                   file ? file : text, n, &error);
        mem_free(file);
        if (st) {
            const bool named = form[i].mark && text && access(text, F_OK) == 0;
            err_set(&err, st, "%s%s: %s", named ? "" : "--", named ? text : first, error.text);
            return cli_fail_err(c, &err);
        }
    }
    return CLI_OK;
}

/* What --system or --system-file says. */
static int read_system(struct cli *c, struct cli_talk *t)
{
    const char *text = ingle_config_text(c->config, "system", 0);
    const char *file = ingle_config_text(c->config, "system-file", 0);
    struct err err;
    if (text && file)
        return cli_usage(c, "options '--system' and '--system-file' exclude each other");
    if (file && cli_slurp(file, &t->system, &t->n_system, &err))
        return cli_fail_err(c, &err);
    if (file)
        t->n_system = cli_without_end(t->system, t->n_system);
    else if (text && (t->system = mem_strdup(text)))
        t->n_system = strlen(text);
    return CLI_OK;
}

int cli_talk_open(struct cli *c, struct cli_talk *t)
{
    struct ingle_error error;
    *t = (struct cli_talk){.c = c};
    if (cli_open_model(c, &t->model, &error))
        return cli_fail(c, &error);
    int rc = open_grammar(c, t); /* a mistake in it is reported before the slow parts */
    if (!rc)
        rc = read_system(c, t);
    if (rc) {
        cli_talk_close(t);
        return rc;
    }
    if (cli_open_engine(c, t->model, 1, &t->engine, &error)) {
        cli_talk_close(t);
        return cli_fail(c, &error);
    }
    cli_screen_clear(&c->screen);
    ingle_sampling_defaults(t->model, &t->sampling);
    t->sampling.seed = clock_now() >> 8 & 0xFFFFFFFFFFFu;
    ingle_config_sampling(c->config, &t->sampling);
    t->predict = (int64_t)ingle_config_number(c->config, "predict");
    t->ignore_end = ingle_config_flag(c->config, "ignore-eos");
    cli_interrupt_engine(t->engine);
    return CLI_OK;
}

void cli_talk_close(struct cli_talk *t)
{
    cli_interrupt_engine(NULL);
    ingle_scheduler_close(t->scheduler);
    cli_media_close(t);
    ingle_engine_close(t->engine);
    ingle_grammar_close(t->grammar);
    ingle_model_close(t->model);
    mem_free(t->system);
    *t = (struct cli_talk){0};
}

/* ---- an answer: a request of the scheduler's, with drafts ---- */

enum { FIRST_ROWS = 32 }; /* at a terminal: a bar that moves early */

/* Begun on this thread, filled on the scheduler's, which is over when `over` is seen. */
struct running {
    struct cli_talk *t;
    struct ingle_reader *reader;
    struct cli_answer *out;
    pthread_mutex_t lock;
    pthread_cond_t news;
    bool finished;            /* Sync: lock */
    int64_t n_read;           /* Sync: lock; tokens that are read and not reported yet */
    ingle_status st;          /* of the reader, or why the request failed */
    struct ingle_error error;
    enum ingle_finish why;
    bool stopped;             /* the reader saw the end */
};

static void begin(void *arg, const struct ingle_reuse *reuse)
{
    struct running *r = arg;
    r->out->reused_tokens = reuse->kept;
    r->out->disk_tokens = reuse->from_disk;
    pthread_mutex_lock(&r->lock);
    r->n_read = r->out->computed_tokens - reuse->kept;
    pthread_mutex_unlock(&r->lock);
}

/* A first step may take long: what is done is said before there is a bar. */
static void say_reading(struct running *r, uint64_t began)
{
    enum { AFTER_NS = 250000000 };
    if (r->n_read > 0 && clock_now() - began > AFTER_NS) {
        cli_screen_reading(&r->t->c->screen, r->n_read);
        r->n_read = 0;
    }
}

static void progress(void *arg, int64_t n_done, int64_t n_prompt)
{
    struct running *r = arg;
    const struct ingle_callbacks screen = cli_callbacks(r->t->c);
    r->out->read_tokens = n_done - r->out->reused_tokens;
    pthread_mutex_lock(&r->lock);
    r->n_read = 0;
    pthread_mutex_unlock(&r->lock);
    if (screen.progress)
        (void)screen.progress(screen.arg, "prompt", (double)n_done, (double)n_prompt);
}

static void encoding(void *arg, int64_t n_done, int64_t n_media, double part)
{
    struct running *r = arg;
    const struct ingle_callbacks screen = cli_callbacks(r->t->c);
    if (screen.progress)
        (void)screen.progress(screen.arg, "encode", (double)n_done + part, (double)n_media);
}

static int token(void *arg, int index, const struct ingle_drawn *drawn)
{
    struct running *r = arg;
    const struct cli_talk *t = r->t;
    enum ingle_end end = INGLE_END_NONE;
    (void)index;
    if (!r->out->tokens++)
        cli_screen_clear(&t->c->screen);
    if (!(t->ignore_end && !t->grammar && ingle_model_is_end(t->model, drawn->id)))
        r->st = ingle_reader_token(r->reader, drawn->id, &end, &r->error);
    r->stopped = end != INGLE_END_NONE;
    return r->st || r->stopped;
}

static void end(void *arg, int index, enum ingle_finish why, const struct ingle_error *error)
{
    struct running *r = arg;
    (void)index;
    r->why = why;
    if (why == INGLE_FINISH_ERROR && !r->st) {
        r->st = error->status;
        r->error = *error;
    }
}

static void done(void *arg, const struct ingle_usage *usage)
{
    struct running *r = arg;
    r->out->prompt_s = usage->queue_seconds + usage->prefill_seconds;
    r->out->answer_s = usage->decode_seconds;
    r->out->drafts = usage->n_drafts;
    r->out->draft_saved_s = usage->draft_saved_seconds;
    memcpy(r->out->draft_why, usage->draft_why, sizeof r->out->draft_why);
    r->out->drafted_tokens = usage->n_drafted;
    r->out->accepted_tokens = usage->n_accepted;
    r->out->experts = usage->experts;
    r->out->sparse = usage->way.sparse;
    r->out->select = usage->way.select;
    r->out->pages = usage->pages;
    r->out->media_tokens = usage->image_tokens + usage->audio_tokens;
    r->out->n_media = usage->n_media;
    r->out->n_encoded = usage->n_encoded;
    r->out->encode_s = usage->encode_seconds;
    pthread_mutex_lock(&r->lock);
    r->finished = true;
    pthread_cond_signal(&r->news);
    pthread_mutex_unlock(&r->lock);
}

/* Looks now and then whether the user wants no more of it. */
static void wait_for(struct running *r, struct ingle_request *request)
{
    enum { LOOK_NS = 20000000 };
    bool cancelled = false;
    const uint64_t began = clock_now();
    pthread_mutex_lock(&r->lock);
    while (!r->finished) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_NS;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&r->news, &r->lock, &until);
        if (!r->finished)
            say_reading(r, began);
        if (r->finished || cancelled || !cli_interrupts())
            continue;
        cancelled = true; /* done() cannot return while the lock is held: the request is there */
        ingle_request_cancel(r->t->scheduler, request);
    }
    pthread_mutex_unlock(&r->lock);
}

static bool is_interrupted(void *arg)
{
    (void)arg;
    return cli_interrupts();
}

/* Beside a grammar and tools only where the user says so. */
static ingle_status shorten(struct cli_talk *t, const struct ingle_prompt *p, bool tools,
                            struct ingle_shortened *out, struct ingle_error *error)
{
    const struct ingle_shorten_options o = {
        .span = p->span, .n_spans = p->n_spans, .stop = is_interrupted};
    *out = (struct ingle_shortened){0};
    if ((t->grammar || tools) && !ingle_config_is_set(t->c->config, "prompt-keep"))
        return INGLE_OK;
    return ingle_shorten(t->engine, p->ids, (int64_t)p->n_ids, &o, out, error);
}

static ingle_status answer(struct cli_talk *t, struct ingle_reader *reader,
                           const struct ingle_prompt *p, const struct ingle_shortened *kept,
                           struct cli_answer *out, struct ingle_error *error)
{
    struct running r = {.t = t,
                        .reader = reader,
                        .out = out,
                        .lock = PTHREAD_MUTEX_INITIALIZER,
                        .news = PTHREAD_COND_INITIALIZER};
    struct ingle_request *request;
    const struct ingle_request_options o = {.prompt = kept->n ? kept->ids : p->ids,
                                            .n_prompt = kept->n ? kept->n : (int64_t)p->n_ids,
                                            .position = kept->position,
                                            .span = kept->n ? kept->span : p->span,
                                            .n_spans = p->n_spans,
                                            .encoding = encoding,
                                            .max_tokens = t->predict,
                                            .ignore_end = t->ignore_end,
                                            .sampling = t->sampling,
                                            .grammar = t->grammar,
                                            .begin = begin,
                                            .progress = progress,
                                            .token = token,
                                            .end = end,
                                            .done = done,
                                            .arg = &r};
    ingle_status st =
        t->scheduler
            ? INGLE_OK
            : ingle_scheduler_open(
                  &t->scheduler, t->engine,
                  &(struct ingle_scheduler_options){
                      .max_running = 1, .first_rows = t->c->screen.terminal ? FIRST_ROWS : 0},
                  error);
    out->prompt_tokens = (int64_t)p->n_ids;
    out->computed_tokens = o.n_prompt;
    out->shorten_s = kept->seconds;
    if (!st)
        st = ingle_scheduler_submit(t->scheduler, &o, &request, NULL, error);
    if (!st)
        wait_for(&r, request);
    cli_screen_clear(&t->c->screen);
    if (st)
        return st;
    if (r.st) {
        *error = r.error;
        return r.st;
    }
    if (out->tokens)
        out->read_tokens = out->computed_tokens - out->reused_tokens;
    if (r.why == INGLE_FINISH_CANCEL)
        out->end = "interrupted";
    else if (r.why == INGLE_FINISH_LENGTH && !r.stopped)
        out->end = "length";
    return INGLE_OK;
}

ingle_status cli_talk_answer(struct cli_talk *t, const struct ingle_prompt *p,
                             const struct ingle_reader_options *o, ingle_event_fn *fn, void *arg,
                             struct cli_answer *out, struct ingle_error *error)
{
    struct ingle_reader *reader = NULL;
    *out = (struct cli_answer){.end = "stop"};
    ingle_engine_resume(t->engine);
    cli_interrupt_reset();
    ingle_status st = ingle_reader_open(&reader, t->model, o, fn, arg, error);
    t->sampling.no_calls = !o->raw && !o->tools;
    struct ingle_shortened kept = {0};
    if (!st)
        st = shorten(t, p, o->tools, &kept, error);
    if (st == INGLE_CANCEL)
        out->end = "interrupted";
    const bool goes = !st;
    if (goes)
        st = answer(t, reader, p, &kept, out, error);
    ingle_shortened_release(&kept);
    st = st == INGLE_CANCEL && !goes ? INGLE_OK : st;
    if (!st)
        st = ingle_reader_finish(reader, error);
    if (!st)
        st = ingle_reader_message(reader, &out->message, &out->n_message, error);
    ingle_reader_close(reader);
    return st;
}

void cli_answer_release(struct cli_answer *a)
{
    ingle_free(a->message);
    *a = (struct cli_answer){0};
}

double cli_answer_mean(const struct cli_answer *a)
{
    return a->drafts ? 1 + (double)a->accepted_tokens / (double)a->drafts : 0;
}

void cli_add_sparse(struct str *to, const struct ingle_sparse *s)
{
    if (!s->pairs)
        return;
    write_key(to, "sparse");
    write_open(to, '{');
    write_member_uint(to, "pairs", s->pairs);
    write_member_significant(to, "missed_mean", 6, s->missed / (double)s->pairs);
    write_member_significant(to, "missed_most", 6, s->most);
    write_member_fixed(to, "values_read", 4,
                       s->n_seen ? (double)s->n_read / (double)s->n_seen : 1);
    write_close(to, '}');
}

void cli_add_select(struct str *to, const struct ingle_select *s)
{
    if (!s->pages_seen)
        return;
    write_key(to, "kv_select");
    write_open(to, '{');
    write_member_uint(to, "pairs", s->pairs);
    write_member_significant(to, "missed_mean", 6, s->pairs ? s->missed / (double)s->pairs : 0);
    write_member_significant(to, "missed_most", 6, s->most);
    write_member_uint(to, "checked", s->checked);
    write_member_significant(to, "missed_true_mean", 6,
                             s->checked ? s->missed_true / (double)s->checked : 0);
    write_member_significant(to, "missed_true_most", 6, s->most_true);
    write_member_fixed(to, "pages_read", 4, (double)s->pages_read / (double)s->pages_seen);
    write_member_uint(to, "bytes_read", s->bytes_read);
    write_close(to, '}');
}

void cli_add_pages(struct str *to, const struct ingle_page_use *p)
{
    if (!p->read_bytes)
        return;
    write_key(to, "kv_disk");
    write_open(to, '{');
    write_member_uint(to, "read_bytes", p->read_bytes);
    write_member_fixed(to, "wait_s", 6, p->waited_seconds);
    write_close(to, '}');
}

void cli_select_print(FILE *to, const struct ingle_select *s)
{
    if (!s->pages_seen)
        return;
    fprintf(to, "kv-select: missed %.2g %% on average, %.2g %% at most (estimated)",
            s->pairs ? 100 * s->missed / (double)s->pairs : 0, 100 * s->most);
    if (s->checked)
        fprintf(to, "; %.2g %%, %.2g %% (measured)", 100 * s->missed_true / (double)s->checked,
                100 * s->most_true);
    fprintf(to, "; %.1f %% of pages read, %s\n",
            100 * (double)s->pages_read / (double)s->pages_seen, SIZE_OF(s->bytes_read));
}

/* "20 tokens, 664 t/s" */
static void print_rate(FILE *to, int64_t n, double seconds)
{
    const double rate = seconds > 0 ? (double)n / seconds : 0;
    fprintf(to, "%lld token%s", (long long)n, n == 1 ? "" : "s");
    if (rate > 0)
        fprintf(to, ", %.*f t/s", rate < 9.95 ? 2 : rate < 99.5 ? 1 : 0, rate);
}

void cli_answer_print(FILE *to, const struct cli_answer *a)
{
    fputs("prompt: ", to);
    print_rate(to, a->read_tokens, a->prompt_s);
    fprintf(to, " (%lld from the cache); answer: ", (long long)a->reused_tokens);
    print_rate(to, a->tokens, a->answer_s);
    putc('\n', to);
    if (a->n_media)
        fprintf(to, "pictures and sounds: %lld, %lld tokens; %lld encoded in %.2f s\n",
                (long long)a->n_media, (long long)a->media_tokens, (long long)a->n_encoded,
                a->encode_s);
    if (a->computed_tokens < a->prompt_tokens)
        fprintf(to, "the prompt was shortened from %lld to %lld tokens in %.2f s\n",
                (long long)a->prompt_tokens, (long long)a->computed_tokens, a->shorten_s);
    if (a->sparse.pairs)
        fprintf(to, "sparse: missed %.2g %% on average, %.2g %% at most; %.0f %% of values read\n",
                100 * a->sparse.missed / (double)a->sparse.pairs, 100 * a->sparse.most,
                a->sparse.n_seen ? 100 * (double)a->sparse.n_read / (double)a->sparse.n_seen
                                 : 100.0);
    cli_select_print(to, &a->select);
    if (a->pages.read_bytes)
        fprintf(to, "keys and values: %s read from disk, waited %.2f s\n",
                SIZE_OF(a->pages.read_bytes), a->pages.waited_seconds);
    if (a->drafted_tokens)
        fprintf(to, "drafts: %lld of %lld tokens right, %.2f tokens a step; about %.2f s %s\n",
                (long long)a->accepted_tokens, (long long)a->drafted_tokens, cli_answer_mean(a),
                a->draft_saved_s < 0 ? -a->draft_saved_s : a->draft_saved_s,
                a->draft_saved_s < 0 ? "slower" : "faster");
}
