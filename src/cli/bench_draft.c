/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
/*
 * bench_draft - what drafting brings: the same answers with and without drafts, in turn, token by
 * token the same.
 *
 * A scenario is a number of clients with a prompt each, of one kind of text or of all in turn,
 * after a depth of context. All clients begin together: each is held at its first token until all
 * have one.  With --draft-accept the tokens that would be drafted are replaced by right and wrong
 * ones, so that what drafting brings is known for any drafter.
 */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"
#include "cli/editor.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/write.h"
#include "tool/tool.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MAX_CLIENTS = 64,
    MAX_COUNTS = 16,
    MAX_REPEATS = 1000,
    WINDOW = 256,
    KINDS = 5,
    LINES = 20,
    MAX_OPS = 128
};

/* What is requested, by the kind of text that the answer is. */
static const struct kind { const char *name, *ask;
} kinds[KINDS] = {
    {"code", "Write a C function that reads a text file line by line and counts the words of each "
             "line, with comments and a main() that "
             "prints the counts."},
    {"prose", "Tell a story about a lighthouse keeper who finds a letter in a bottle, in a few "
              "long paragraphs."},
    {"list", "List the months of the year; for each one, on a line of its own, its number of days "
             "and what gardeners do in it."},
    {"json", "Give a JSON array of ten objects with the members id, name, city, age and tags (an "
             "array of three strings) of people "
             "who do not exist. Only JSON."},
    {"repeat", "Repeat this text word for word, three times: The quick brown fox jumps over the "
               "lazy dog, while seven wizards quickly "
               "judge the boxing matches of forty vexed zebras near the river bank at dawn."},
};

struct client {
    struct run *run;
    struct ingle_request *request;
    int32_t *prompt;
    int64_t n_prompt;
    int32_t *answer;   /* [n_answer]: of the first run */
    uint64_t *at;      /* [n_answer]: clock_now() of each token */
    int64_t n;         /* tokens so far */
    bool differs;      /* a token is not that of the first run */
};

/* All clients once. */
struct run {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct ingle_scheduler *s;
    int n_clients, n_begun, n_done; /* Sync: lock */
    struct ingle_error error;       /* Sync: lock; of the first that failed */
    bool first;                     /* the answers are recorded, not compared */
    int64_t n_answer;
    uint64_t began;
};

/* What was measured of a scenario. */
struct result {
    const char *kind;
    /* the kind whose answer begins with the same tokens for more than its half; NULL: none */
    const char *same_as;
    int n_clients;
    int64_t depth;
    double right;      /* --draft-accept; below 0: none */
    double plain[MAX_REPEATS], drafted[MAX_REPEATS], ratio[MAX_REPEATS], foreign[MAX_REPEATS];
    int64_t n;         /* repeats */
    float *lag;        /* [n][n_windows]: time of each window of tokens, drafted over plain */
    int64_t n_windows;
    struct ingle_scheduler_status sum; /* of drafted runs: counts and seconds */
    double plain_step; /* seconds: sum and number of plain steps */
    int64_t n_plain_steps;
    int64_t tokens;    /* of drafted runs */
    bool differs;
    struct ingle_profile op[MAX_OPS]; /* of drafted runs, with --profile */
    int n_ops;
};

struct bench {
    struct cli *c;
    struct ingle_model *model;
    struct ingle_engine *engine;
    struct ingle_scheduler *s;
    struct ingle_engine_info info;
    struct ingle_sampling sampling;
    struct client client[MAX_CLIENTS];
    int64_t n_answer, n_repeats;
    int64_t n_users; /* names so far */
    int n_logical;
    bool json, raw, profile;
    /* of one client, over all kinds */
    uint64_t drafted_at[INGLE_DRAFT_PLACES], accepted_at[INGLE_DRAFT_PLACES];
    struct {
        const char *kind;
        int32_t *answer; /* [n_answer] */
    } before[KINDS]; /* the answers to one client at this depth */
    int n_before;
};

/* ---- prompts ---- */

static void add_filler(struct str *s, const struct bench *b, int64_t depth)
{
    struct ingle_error error;
    for (int64_t i = 0, n = 0; n < depth; i++) {
        const struct kind *k = &kinds[i % KINDS];
        const size_t from = s->n;
        int32_t *ids = NULL;
        size_t n_ids = 0;
        str_addf(s, "%lld. %s\n", (long long)i + 1, k->ask);
        if (s->failed ||
            ingle_tokenize(b->model, s->at + from, s->n - from, 0, &ids, &n_ids, &error) || !n_ids)
            return;
        ingle_free(ids);
        n += (int64_t)n_ids;
    }
}

/* The tokens of a prompt: no two clients have the same. */
static ingle_status make_prompt(struct bench *b, struct client *t, const struct kind *k, int index,
                                int64_t depth, struct ingle_error *error)
{
    struct str text, chat;
    struct ingle_model_info info;
    size_t n = 0;
    ingle_status st;
    str_init(&text);
    str_init(&chat);
    add_filler(&text, b, depth);
    str_addf(&text, "Request %d. %s", index + 1, k->ask);
    ingle_model_info(b->model, &info);
    if (*info.chat && !b->raw) {
        struct ingle_prompt p = {0};
        write_open(&chat, '[');
        write_open(&chat, '{');
        write_member(&chat, "role", "user");
        write_member_string(&chat, "content", text.at, text.n);
        write_close(&chat, '}');
        write_close(&chat, ']');
        st = ingle_chat_render(
            b->model, &(struct ingle_chat){.messages = chat.at, .n_messages = chat.n}, &p, error);
        t->prompt = p.ids;
        n = p.n_ids;
        p.ids = NULL;
        ingle_prompt_release(&p);
    } else {
        st = ingle_tokenize(b->model, text.at, text.n, INGLE_ADD_SPECIAL, &t->prompt, &n, error);
    }
    t->n_prompt = (int64_t)n;
    str_release(&text);
    str_release(&chat);
    return st;
}

/* ---- a run ---- */

static int on_token(void *arg, int index, const struct ingle_drawn *d)
{
    struct client *t = arg;
    struct run *r = t->run;
    (void)index;
    t->at[t->n] = clock_now();
    if (r->first)
        t->answer[t->n] = d->id;
    t->differs |= t->answer[t->n] != d->id;
    if (t->n++)
        return 0;
    pthread_mutex_lock(&r->lock); /* the request is known by now */
    ingle_request_hold(r->s, t->request, true);
    r->n_begun++;
    pthread_cond_signal(&r->news);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

static void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *error)
{
    const struct client *t = arg;
    struct run *r = t->run;
    (void)index;
    pthread_mutex_lock(&r->lock);
    if (why == INGLE_FINISH_ERROR && !r->error.status)
        r->error = *error;
    else if (why != INGLE_FINISH_LENGTH && !r->error.status)
        r->error = (struct ingle_error){INGLE_CANCEL, "the answer was cut short"};
    pthread_mutex_unlock(&r->lock);
}

static void on_done(void *arg, const struct ingle_usage *usage)
{
    const struct client *t = arg;
    struct run *r = t->run;
    (void)usage;
    pthread_mutex_lock(&r->lock);
    r->n_done++;
    pthread_cond_signal(&r->news);
    pthread_mutex_unlock(&r->lock);
}

/* Sleeps for news, and cancels when the user wants no more.  The lock is held. */
static void wait_a_little(struct run *r, struct bench *b)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 50000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&r->news, &r->lock, &until);
    if (!cli_interrupts() || r->error.status)
        return;
    r->error = (struct ingle_error){INGLE_CANCEL, "interrupted"};
    /* with nobody left to answer the scheduler stops at once */
    for (int i = 0; i < r->n_clients; i++)
        if (b->client[i].n < r->n_answer && b->client[i].request && r->n_done == 0)
            ingle_request_cancel(r->s, b->client[i].request);
}

static ingle_status run_once(struct bench *b, int n_clients, bool drafts, bool first, double right,
                             struct ingle_error *error)
{
    struct run r = {.lock = PTHREAD_MUTEX_INITIALIZER,
                    .news = PTHREAD_COND_INITIALIZER,
                    .s = b->s,
                    .n_clients = n_clients,
                    .first = first,
                    .n_answer = b->n_answer};
    struct ingle_draft_trial trial[MAX_CLIENTS];
    char user[32];
    ingle_status st = INGLE_OK;
    int n = 0;
    snprintf(user, sizeof user, "bench %lld", (long long)b->n_users);
    b->n_users += b->info.draft_text; /* what text drafts is remembered of a user */
    pthread_mutex_lock(&r.lock);
    for (; n < n_clients && !st; n++) {
        struct client *t = &b->client[n];
        t->run = &r;
        t->n = 0;
        t->request = NULL;
        trial[n] = (struct ingle_draft_trial){t->answer, b->n_answer, right, (uint64_t)n + 1};
        const struct ingle_request_options o = {.prompt = t->prompt,
                                                .n_prompt = t->n_prompt,
                                                .max_tokens = b->n_answer,
                                                .ignore_end = true,
                                                .sampling = b->sampling,
                                                .draft_max = drafts ? 0 : -1,
                                                .draft_trial = right >= 0 ? &trial[n] : NULL,
                                                .user = user,
                                                .token = on_token,
                                                .end = on_end,
                                                .done = on_done,
                                                .arg = t};
        st = ingle_scheduler_submit(b->s, &o, &t->request, NULL, error);
    }
    r.n_clients = n -= st != INGLE_OK;
    while (r.n_begun < n && !r.error.status)
        wait_a_little(&r, b);
    r.began = clock_now();
    for (int i = 0; i < n && r.n_done == 0; i++)
        ingle_request_hold(b->s, b->client[i].request, false);
    while (r.n_done < n)
        wait_a_little(&r, b);
    pthread_mutex_unlock(&r.lock);
    for (int i = 0; i < n; i++)
        b->client[i].run = NULL;
    if (!st && r.error.status) {
        *error = r.error;
        st = r.error.status;
    }
    for (int i = 0; i < n; i++)
        if (!st && b->client[i].n > 1)
            b->client[i].at[0] = r.began; /* from here on each computes */
    return st;
}

/* ---- a scenario ---- */

static double seconds_of(const struct bench *b, int n_clients)
{
    double sum = 0;
    for (int i = 0; i < n_clients; i++)
        sum += (double)(b->client[i].at[b->n_answer - 1] - b->client[i].at[0]) * 1e-9;
    return sum / n_clients;
}

/* Seconds of each window of tokens, the clients' mean. */
static void windows(const struct bench *b, int n_clients, int64_t n_windows, float *out)
{
    const int64_t width = b->n_answer - n_windows;
    for (int64_t w = 0; w < n_windows; w++) {
        out[w] = 0;
        for (int i = 0; i < n_clients; i++)
            out[w] += (float)((double)(b->client[i].at[w + width] - b->client[i].at[w]) * 1e-9);
    }
}

static void add_counts(struct result *r, const struct ingle_scheduler_status *from,
                       const struct ingle_scheduler_status *to)
{
    struct ingle_scheduler_status *s = &r->sum;
    s->n_drafts += to->n_drafts - from->n_drafts;
    s->drafted_tokens += to->drafted_tokens - from->drafted_tokens;
    s->accepted_tokens += to->accepted_tokens - from->accepted_tokens;
    for (int i = 0; i < INGLE_DRAFT_PLACES; i++) {
        s->drafted_at[i] += to->drafted_at[i] - from->drafted_at[i];
        s->accepted_at[i] += to->accepted_at[i] - from->accepted_at[i];
    }
    s->n_rounds += to->n_rounds - from->n_rounds;
    s->n_verified += to->n_verified - from->n_verified;
    s->n_plain += to->n_plain - from->n_plain;
    s->round_seconds += to->round_seconds - from->round_seconds;
    s->verified_seconds += to->verified_seconds - from->verified_seconds;
    s->plain_seconds += to->plain_seconds - from->plain_seconds;
    s->draft_saved_seconds += to->draft_saved_seconds - from->draft_saved_seconds;
}

/* Operations of a drafted run, in a table of all of them. */
static void add_profile(struct bench *b, struct result *r)
{
    struct ingle_profile p[MAX_OPS];
    const int n = ingle_engine_profile_read(b->engine, p, MAX_OPS);
    ingle_engine_profile(b->engine, false);
    for (int i = 0; i < n; i++) {
        int k = 0;
        while (k < r->n_ops && strcmp(r->op[k].op, p[i].op) != 0)
            k++;
        if (k == MAX_OPS)
            continue;
        if (k == r->n_ops)
            r->op[r->n_ops++] = (struct ingle_profile){.op = p[i].op};
        r->op[k].calls += p[i].calls;
        r->op[k].ns += p[i].ns;
        r->op[k].bytes += p[i].bytes;
        r->op[k].ops += p[i].ops;
    }
}

/* The clients' answers once plainly and once with drafts, in turn the one or the other first. */
static ingle_status one_repeat(struct bench *b, struct result *r, float *window,
                               struct ingle_error *error)
{
    const int64_t i = r->n;
    ingle_status st = INGLE_OK;
    double seconds[2] = {0};
    struct tool_busy busy[2];
    const uint64_t began = clock_now();
    tool_busy_read(&busy[0]);
    for (int k = 0; k < 2 && !st; k++) {
        const bool drafts = (i + k) % 2;
        struct ingle_scheduler_status from, to;
        ingle_scheduler_status(b->s, &from, NULL, 0);
        if (drafts && b->profile)
            ingle_engine_profile(b->engine, true);
        st = run_once(b, r->n_clients, drafts, false, drafts ? r->right : -1, error);
        if (st)
            break;
        ingle_scheduler_status(b->s, &to, NULL, 0);
        seconds[drafts] = seconds_of(b, r->n_clients);
        windows(b, r->n_clients, r->n_windows, window + drafts * r->n_windows);
        if (drafts)
            add_counts(r, &from, &to);
        if (drafts && b->profile)
            add_profile(b, r);
        if (!drafts) {
            r->plain_step += to.plain_seconds - from.plain_seconds;
            r->n_plain_steps += to.n_plain - from.n_plain;
        }
    }
    if (st)
        return st;
    tool_busy_read(&busy[1]);
    r->foreign[i] =
        tool_busy_foreign(&busy[0], &busy[1], (double)(clock_now() - began) * 1e-9, b->n_logical);
    for (int64_t w = 0; w < r->n_windows; w++)
        r->lag[i * r->n_windows + w] = window[r->n_windows + w] / window[w];
    r->plain[i] = (double)(b->n_answer - 1) * r->n_clients / seconds[0];
    r->drafted[i] = (double)(b->n_answer - 1) * r->n_clients / seconds[1];
    r->ratio[i] = seconds[0] / seconds[1];
    r->tokens += (b->n_answer - 1) * r->n_clients;
    r->n++;
    return INGLE_OK;
}

static double middle(const double *v, int64_t n)
{
    double copy[MAX_REPEATS];
    memcpy(copy, v, (size_t)n * sizeof *v);
    qsort(copy, (size_t)n, sizeof *copy, num_order_f64);
    return n % 2 ? copy[n / 2] : (copy[n / 2 - 1] + copy[n / 2]) / 2;
}

/* How much longer than plain decoding the worst window of tokens took, as a part; below 0: no
 * window took longer. */
static double worst_lag(const struct result *r)
{
    double worst = -1, v[MAX_REPEATS];
    for (int64_t w = 0; w < r->n_windows; w++) {
        for (int64_t i = 0; i < r->n; i++)
            v[i] = (double)r->lag[i * r->n_windows + w];
        const double x = middle(v, r->n) - 1;
        worst = x > worst ? x : worst;
    }
    return worst;
}

static double ratio_of(double a, double b)
{
    return b > 0 ? a / b : 0;
}

static void print_json(const struct result *r)
{
    const struct ingle_scheduler_status *s = &r->sum;
    const double step = ratio_of(r->plain_step, (double)r->n_plain_steps);
    struct str out;
    cli_json(&out);
    write_open(&out, '{');
    write_member(&out, "test", "draft");
    write_member(&out, "kind", r->kind);
    write_member_int(&out, "clients", r->n_clients);
    write_member_int(&out, "depth", r->depth);
    if (r->right >= 0)
        write_member_significant(&out, "draft_accept", 6, r->right);
    write_member_significant(&out, "plain_per_s", 5, middle(r->plain, r->n));
    write_member_significant(&out, "drafted_per_s", 5, middle(r->drafted, r->n));
    write_member_fixed(&out, "speed_up", 4, middle(r->ratio, r->n));
    write_key(&out, "ratios");
    write_open(&out, '[');
    for (int64_t i = 0; i < r->n; i++)
        write_fixed(&out, 4, r->ratio[i]);
    write_close(&out, ']');
    write_member_fixed(&out, "behind", 4, worst_lag(r));
    write_member_bool(&out, "same_text", !r->differs);
    write_member(&out, "text_of", r->same_as);
    write_member_int(&out, "tokens", r->tokens);
    write_member_int(&out, "drafts", s->n_drafts);
    write_member_int(&out, "drafted", s->drafted_tokens);
    write_member_int(&out, "accepted", s->accepted_tokens);
    for (int k = 0; k < 2; k++) {
        write_key(&out, k ? "accepted_at" : "drafted_at");
        write_open(&out, '[');
        for (int i = 0; i < INGLE_DRAFT_PLACES; i++)
            write_int(&out, (k ? s->accepted_at : s->drafted_at)[i]);
        write_close(&out, ']');
    }
    write_member_int(&out, "rounds", s->n_rounds);
    write_member_fixed(&out, "round_share", 4,
                       ratio_of(ratio_of(s->round_seconds, (double)s->n_rounds), step));
    write_member_int(&out, "verified", s->n_verified);
    write_member_fixed(&out, "verify_share", 4,
                       ratio_of(ratio_of(s->verified_seconds, (double)s->n_verified), step));
    write_member_int(&out, "plain_steps", s->n_plain);
    write_member_significant(&out, "step_seconds", 6, step);
    write_member_significant(&out, "saved_seconds", 4, s->draft_saved_seconds);
    write_member_fixed(&out, "foreign", 3, middle(r->foreign, r->n));
    write_close(&out, '}');
    cli_json_end(&out, "\n");
}

static void print_result(const struct bench *b, const struct result *r)
{
    const struct ingle_scheduler_status *s = &r->sum;
    const double step = ratio_of(r->plain_step, (double)r->n_plain_steps);
    char kind[32];
    if (b->json) {
        print_json(r);
        cli_push(b->c);
        return;
    }
    if (r->right >= 0)
        snprintf(kind, sizeof kind, "right %.2f", r->right);
    else
        snprintf(kind, sizeof kind, "%s", r->kind);
    printf("%-10s %7d %7lld %9.2f %9.2f %8.2f %7.1f", kind, r->n_clients, (long long)r->depth,
           middle(r->plain, r->n), middle(r->drafted, r->n), middle(r->ratio, r->n),
           worst_lag(r) * 100);
    if (s->n_drafts)
        printf(" %7.2f %8.0f", 1 + (double)s->accepted_tokens / (double)s->n_drafts,
               100 * ratio_of((double)s->accepted_tokens, (double)s->drafted_tokens));
    else
        printf(" %7s %8s", "-", "-");
    if (s->n_rounds)
        printf(" %8.1f", 100 * ratio_of(ratio_of(s->round_seconds, (double)s->n_rounds), step));
    else
        printf(" %8s", "-");
    if (s->n_verified)
        printf(" %8.0f",
               100 * ratio_of(ratio_of(s->verified_seconds, (double)s->n_verified), step));
    else
        printf(" %8s", "-");
    printf(" %7.0f%s", 100 * ratio_of((double)s->n_verified, (double)(s->n_verified + s->n_plain)),
           r->differs ? "  TEXT DIFFERS" : "");
    if (r->same_as)
        printf("  (the text of '%s')", r->same_as);
    putchar('\n');
    cli_push(b->c);
}

static void print_op(const struct bench *b, const char *name, uint64_t calls, double ms,
                     double of_step, const struct ingle_profile *p)
{
    const double s = p ? (double)p->ns * 1e-9 : 0, gbps = ratio_of(p ? p->bytes * 1e-9 : 0, s),
                 gops = ratio_of(p ? p->ops * 1e-9 : 0, s);
    if (b->json) {
        struct str out;
        cli_json(&out);
        write_open(&out, '{');
        write_member(&out, "test", "draft_profile");
        write_member(&out, "op", name);
        write_member_uint(&out, "calls", calls);
        write_member_fixed(&out, "ms", 4, ms);
        write_member_fixed(&out, "of_step", 5, of_step);
        write_member_fixed(&out, "GBps", 3, gbps);
        write_member_fixed(&out, "GOPs", 3, gops);
        write_close(&out, '}');
        cli_json_end(&out, "\n");
        return;
    }
    printf("  %-22s %8llu %10.3f %9.1f", name, (unsigned long long)calls, ms, of_step * 100);
    if (gops > 0)
        printf(" %9.1f %9.1f", gbps, gops);
    putchar('\n');
}

/* What a round is made of, and what the drafter sees of steps, each in parts of a plain step; steps
 * themselves are `bench --profile` without drafts. */
static void print_profile(const struct bench *b, const struct result *r)
{
    static const char draft[] = "draft ", observe[] = "observe ";
    const struct ingle_scheduler_status *s = &r->sum;
    const double step = ratio_of(r->plain_step, (double)r->n_plain_steps);
    double rest = s->round_seconds;
    if (!b->json)
        printf("\n  %-22s %8s %10s %9s %9s %9s\n", "operation", "calls", "ms", "% step", "GB/s",
               "GOP/s");
    for (int i = 0; i < r->n_ops; i++) {
        const struct ingle_profile *p = &r->op[i];
        const bool round = !strncmp(p->op, draft, sizeof draft - 1),
                   seen = !strncmp(p->op, observe, sizeof observe - 1);
        const double n = round ? (double)s->n_rounds : (double)(s->n_plain + s->n_verified),
                     seconds = ratio_of((double)p->ns * 1e-9, n);
        if (round)
            rest -= (double)p->ns * 1e-9;
        if (round || seen)
            print_op(b, p->op, p->calls, seconds * 1e3, ratio_of(seconds, step), p);
    }
    rest = ratio_of(rest, (double)s->n_rounds);
    print_op(b, "draft: draws, the rest", (uint64_t)s->n_rounds, rest * 1e3, ratio_of(rest, step),
             NULL);
    if (!b->json)
        puts("  of a round (draft), of a step of any kind (observe)\n");
    cli_push(b->c);
}

static void release_clients(struct bench *b, int n)
{
    for (int i = 0; i < n; i++) {
        ingle_free(b->client[i].prompt);
        mem_free(b->client[i].answer);
        mem_free(b->client[i].at);
        b->client[i] = (struct client){0};
    }
}

static void forget_answers(struct bench *b)
{
    for (int i = 0; i < b->n_before; i++)
        mem_free(b->before[i].answer);
    b->n_before = 0;
}

/* A small model answers different requests alike: such kinds are one kind.  Finds the kind with
 * this answer and keeps the answer for the next ones. */
static const char *find_same_answer(struct bench *b, const struct kind *kind,
                                    const struct client *t)
{
    for (int i = 0; i < b->n_before; i++) {
        int64_t same = 0;
        while (same < b->n_answer && b->before[i].answer[same] == t->answer[same])
            same++;
        if (2 * same > b->n_answer)
            return b->before[i].kind;
    }
    int32_t *copy = b->n_before < KINDS ? mem_calloc((size_t)b->n_answer, sizeof *copy) : NULL;
    if (copy) {
        memcpy(copy, t->answer, (size_t)b->n_answer * sizeof *copy);
        b->before[b->n_before].kind = kind->name;
        b->before[b->n_before++].answer = copy;
    }
    return NULL;
}

/* kind NULL: all in turn. */
static ingle_status measure(struct bench *b, const struct kind *kind, int n_clients, int64_t depth,
                            double right, struct ingle_error *error)
{
    static struct result r;
    const int64_t width = num_min(WINDOW, b->n_answer - 1), n_windows = b->n_answer - width;
    ingle_status st = INGLE_OK;
    r = (struct result){.kind = kind ? kind->name : "mixed",
                        .n_clients = n_clients,
                        .depth = depth,
                        .right = right,
                        .n_windows = n_windows};
    float *window = mem_calloc((size_t)n_windows * 2, sizeof *window);
    r.lag = mem_calloc((size_t)(n_windows * b->n_repeats), sizeof *r.lag);
    for (int i = 0; i < n_clients && !st; i++) {
        struct client *t = &b->client[i];
        st = make_prompt(b, t, kind ? kind : &kinds[i % KINDS], i, depth, error);
        t->answer = mem_calloc((size_t)b->n_answer, sizeof *t->answer);
        t->at = mem_calloc((size_t)b->n_answer, sizeof *t->at);
        if (!st && (!window || !r.lag || !t->answer || !t->at)) {
            *error = (struct ingle_error){INGLE_NOMEM, "no memory for the answers"};
            st = INGLE_NOMEM;
        }
    }
    if (!st)
        st = run_once(b, n_clients, false, true, -1, error);
    while (!st && r.n < b->n_repeats)
        st = one_repeat(b, &r, window, error);
    for (int i = 0; i < n_clients; i++)
        r.differs |= b->client[i].differs;
    if (!st && kind && n_clients == 1 && right < 0)
        r.same_as = find_same_answer(b, kind, &b->client[0]);
    if (!st)
        print_result(b, &r);
    if (!st && b->profile)
        print_profile(b, &r);
    for (int i = 0; i < INGLE_DRAFT_PLACES && n_clients == 1; i++) {
        b->drafted_at[i] += (uint64_t)r.sum.drafted_at[i];
        b->accepted_at[i] += (uint64_t)r.sum.accepted_at[i];
    }
    if (!st && r.differs) {
        *error = (struct ingle_error){INGLE_NUMERIC, "a text with drafts is not that without"};
        st = INGLE_NUMERIC;
    }
    mem_free(window);
    mem_free(r.lag);
    release_clients(b, n_clients);
    return st;
}

/* ---- what is measured ---- */

struct plan {
    double count[MAX_COUNTS], depth[MAX_COUNTS], right[MAX_COUNTS];
    const struct kind *kind[MAX_COUNTS];
    size_t n_counts, n_depths, n_rights, n_kinds;
};

static int read_list(struct cli *c, const char *name, double min, double max, bool whole,
                     double *out, size_t *n)
{
    const char *text;
    for (*n = 0; (text = ingle_config_text(c->config, name, *n)); (*n)++) {
        char *end;
        const double v = strtod(text, &end);
        if (*n == MAX_COUNTS)
            return cli_usage(c, "option '--%s' is given more than %d times", name, MAX_COUNTS);
        if (*end || end == text || !(v >= min && v <= max) || (whole && v != (double)(int64_t)v))
            return cli_usage(c, "option '--%s' needs a number of %g to %g, not '%s'", name, min,
                             max, text);
        out[*n] = v;
    }
    return CLI_OK;
}

static int read_kinds(struct cli *c, struct plan *p)
{
    const char *text;
    for (; (text = ingle_config_text(c->config, "kind", p->n_kinds)); p->n_kinds++) {
        size_t k = 0;
        while (k < KINDS && strcmp(kinds[k].name, text) != 0)
            k++;
        if (k == KINDS || p->n_kinds == MAX_COUNTS)
            return cli_usage(c, "option '--kind' is code, prose, list, json or repeat, not '%s'",
                             text);
        p->kind[p->n_kinds] = &kinds[k];
    }
    return CLI_OK;
}

static int read_plan(struct cli *c, struct plan *p)
{
    int rc = read_list(c, "clients", 1, MAX_CLIENTS, true, p->count, &p->n_counts);
    if (!rc)
        rc = read_list(c, "depth", 0, 16777216, true, p->depth, &p->n_depths);
    if (!rc)
        rc = read_list(c, "draft-accept", 0, 1, false, p->right, &p->n_rights);
    if (!rc)
        rc = read_kinds(c, p);
    if (!p->n_counts)
        p->count[p->n_counts++] = 1;
    if (!p->n_depths)
        p->depth[p->n_depths++] = 0;
    if (!p->n_kinds && p->n_rights)
        p->kind[p->n_kinds++] = &kinds[1]; /* it makes no difference */
    for (; !p->n_kinds ||
           (p->n_kinds < KINDS && !p->n_rights && !ingle_config_text(c->config, "kind", 0));
         p->n_kinds++)
        p->kind[p->n_kinds] = &kinds[p->n_kinds];
    return rc;
}

static double most_of(const double *v, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = v[i] > most ? v[i] : most;
    return most;
}

static void print_head(const struct bench *b)
{
    const struct ingle_engine_info *i = &b->info;
    printf("%s%s%s%s; %d threads, %s, keys and values %s\n", *i->draft ? i->draft : "no network",
           *i->draft ? ", " : "", *i->draft ? i->draft_path : "",
           i->draft_text ? "; drafts from text" : "", i->threads, i->cpu, i->kv);
    printf("plain and drafted in turn, %lld times %lld tokens, medians\n\n%-10s %7s %7s %9s %9s "
           "%8s %7s %7s %8s %8s %8s %7s\n"
           "%-10s %7s %7s %9s %9s %8s %7s %7s %8s %8s %8s %7s\n",
           (long long)b->n_repeats, (long long)b->n_answer, "text", "clients", "depth", "plain",
           "drafted", "faster", "behind", "mean", "accepted", "round", "verify", "steps", "", "",
           "", "tokens/s", "tokens/s", "times", "%", "length", "%", "% step", "% step", "%");
}

static void print_places(const struct bench *b)
{
    if (!b->drafted_at[0] || b->json)
        return;
    fputs("\nright by place (%), one client:", stdout);
    for (int i = 0; i < INGLE_DRAFT_PLACES && b->drafted_at[i]; i++)
        printf(" %.0f", 100 * (double)b->accepted_at[i] / (double)b->drafted_at[i]);
    putchar('\n');
}

static ingle_status measure_all(struct bench *b, const struct plan *p, struct ingle_error *error)
{
    for (size_t d = 0; d < p->n_depths; d++)
        for (size_t n = 0; n < p->n_counts; n++)
            for (size_t a = 0; a < (p->n_rights ? p->n_rights : 1); a++) {
                const bool mixed = p->count[n] > 1 && p->n_kinds > 1;
                forget_answers(b);
                for (size_t k = 0; k < (mixed ? 1 : p->n_kinds); k++)
                    if (measure(b, mixed ? NULL : p->kind[k], (int)p->count[n],
                                (int64_t)p->depth[d], p->n_rights ? p->right[a] : -1, error))
                        return error->status;
            }
    return INGLE_OK;
}

static ingle_status open_bench(struct bench *b, const struct plan *p, struct ingle_error *error)
{
    const int64_t clients = (int64_t)most_of(p->count, p->n_counts),
                  depth = (int64_t)most_of(p->depth, p->n_depths);
    struct ingle_engine_options o = {.n_sessions = clients,
                                     .max_logits = num_max(16, 2 * clients),
                                     .callbacks = cli_callbacks(b->c)};
    ingle_config_engine(b->c->config, &o);
    if (!o.n_ctx)
        o.n_ctx = depth + depth / 4 + b->n_answer + 512;
    ingle_status st = cli_open_model(b->c, &b->model, error);
    if (!st)
        st = ingle_engine_open(&b->engine, b->model, &o, error);
    if (!st)
        st = ingle_scheduler_open(&b->s, b->engine,
                                  &(struct ingle_scheduler_options){.max_running = clients}, error);
    if (st)
        return st;
    cli_screen_clear(&b->c->screen);
    ingle_engine_info(b->engine, &b->info);
    ingle_sampling_defaults(b->model, &b->sampling);
    b->sampling.temperature = 0;
    ingle_config_sampling(b->c->config, &b->sampling);
    return INGLE_OK;
}

int cli_bench_draft(struct cli *c)
{
    struct cpu_machine machine;
    struct ingle_error error;
    struct plan p = {.n_counts = 0};
    struct bench *b = mem_zalloc(sizeof *b);
    if (!b)
        return cli_usage(c, "no memory for a benchmark");
    cpu_machine_read(&machine);
    b->c = c;
    b->n_logical = machine.n_logical;
    b->json = ingle_config_flag(c->config, "json");
    b->profile = ingle_config_flag(c->config, "profile");
    b->n_answer = (int64_t)ingle_config_number(c->config, "answer-tokens");
    b->n_repeats = (int64_t)ingle_config_number(c->config, "repeat");
    int rc = read_plan(c, &p);
    if (!rc && b->n_answer < 2)
        rc = cli_usage(c, "option '--answer-tokens' is below 2: nothing would be drafted");
    if (!rc) {
        ingle_status st = open_bench(b, &p, &error);
        if (!st && !*b->info.draft && !b->info.draft_text)
            rc = cli_usage(c, "nothing drafts: %s", b->info.draft_why);
        if (!st && !rc && !b->json)
            print_head(b);
        if (!st && !rc)
            st = measure_all(b, &p, &error);
        if (!st && !rc)
            print_places(b);
        if (st)
            rc = cli_fail(c, &error);
    }
    forget_answers(b);
    ingle_scheduler_close(b->s);
    ingle_engine_close(b->engine);
    ingle_model_close(b->model);
    mem_free(b);
    return rc;
}
