/*
 * scheduler_world - a scheduler on an engine, requests and what their functions are told.
 */
#ifndef INGLE_TESTS_SCHEDULER_WORLD_H
#define INGLE_TESTS_SCHEDULER_WORLD_H

#include "unit/door.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

enum { MAX_ANSWERS = 4, MAX_TOKENS = 1536 };

struct answer {
    int32_t id[MAX_TOKENS];
    float logprob[MAX_TOKENS];
    uint64_t top[MAX_TOKENS]; /* a hash of what else was probable */
    int64_t n;
    bool ended;
    enum ingle_finish why;
    char error[480];
};

/* A request and what its functions were told.  They run on the scheduler's thread. */
struct asked {
    struct ingle_request_options o;
    struct ingle_request *r;
    struct ingle_scheduler *s;
    struct answer answer[MAX_ANSWERS];
    int64_t n_begin, n_progress, last_progress, n_end, n_prompt_tokens;
    struct ingle_reuse reuse;
    struct ingle_usage usage;
    int64_t stop_after;   /* token() asks for the end then; 0: never */
    int64_t cancel_after; /* token() cancels the request then; 0: never */
    /* token() has it held when the first of its answers has so many; once; 0: never */
    int64_t hold_after;
    bool hold_prompt;     /* progress() does so at once */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done; /* Sync: lock */
};

static inline void on_begin(void *arg, const struct ingle_reuse *reuse)
{
    struct asked *a = arg;
    a->n_begin++;
    a->reuse = *reuse;
}

static inline void on_progress(void *arg, int64_t n_done, int64_t n_prompt)
{
    struct asked *a = arg;
    assert_true(n_done > a->last_progress && n_done <= n_prompt);
    a->last_progress = n_done;
    if (a->hold_prompt)
        ingle_request_hold(a->s, a->r, true);
    a->n_progress++;
}

static inline int on_token(void *arg, int index, const struct ingle_drawn *t)
{
    struct asked *a = arg;
    if (index < 0) {
        a->n_prompt_tokens++;
        return 0;
    }
    struct answer *w = &a->answer[index];
    assert_true(!w->ended && w->n < MAX_TOKENS);
    assert_int_equal(t->position, a->o.n_prompt + w->n);
    w->logprob[w->n] = t->logprob;
    w->top[w->n] = t->n_top ? XXH3_64bits(t->top, (size_t)t->n_top * sizeof *t->top) : 0;
    w->id[w->n++] = t->id;
    if (a->cancel_after && w->n == a->cancel_after)
        ingle_request_cancel(a->s, a->r);
    if (a->hold_after && w->n == a->hold_after) {
        a->hold_after = 0; /* another answer comes to that place when the request goes on again */
        ingle_request_hold(a->s, a->r, true);
    }
    return a->stop_after && w->n >= a->stop_after;
}

static inline void on_end(void *arg, int index, enum ingle_finish why, const struct ingle_error *e)
{
    struct asked *a = arg;
    assert_false(a->answer[index].ended);
    a->answer[index].ended = true;
    a->answer[index].why = why;
    if (why == INGLE_FINISH_ERROR)
        memcpy(a->answer[index].error, e->text, sizeof e->text);
    a->n_end++;
}

static inline void on_done(void *arg, const struct ingle_usage *usage)
{
    struct asked *a = arg;
    a->usage = *usage;
    pthread_mutex_lock(&a->lock);
    a->done = true;
    pthread_cond_signal(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

struct place {
    struct ingle_model *m;
    struct ingle_engine *e;
    struct ingle_scheduler *s;
};

static const char *model_path; /* NULL: the built-in one */

static inline void open_place(struct place *p, const struct ingle_engine_options *eo,
                       const struct ingle_scheduler_options *so)
{
    must(ingle_model_open(&p->m, model_path, NULL, &error));
    must(ingle_engine_open(&p->e, p->m, eo, &error));
    must(ingle_scheduler_open(&p->s, p->e, so, &error));
}

static inline void close_place(struct place *p)
{
    ingle_scheduler_close(p->s);
    ingle_engine_close(p->e);
    ingle_model_close(p->m);
}

/* A prompt of n tokens that depends on `which`, but for the first `shared` ones. */
static inline int32_t *make_prompt(const struct ingle_model *m, int which, int64_t shared,
                                   int64_t n)
{
    struct ingle_model_info info;
    ingle_model_info(m, &info);
    int32_t *ids = calloc((size_t)n, sizeof *ids);
    uint32_t x = 1;
    for (int64_t i = 0; i < n; i++) {
        if (i == shared)
            x = (uint32_t)which * 2654435761u + 1;
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)(info.n_vocab / 8 + (x >> 16) % (info.n_vocab / 2));
    }
    return ids;
}

static inline struct asked *make_asked(const struct place *p, int which, int64_t n_prompt,
                                int64_t max_tokens)
{
    struct asked *a = calloc(1, sizeof *a);
    a->o = (struct ingle_request_options){.n_prompt = n_prompt,
                                          .max_tokens = max_tokens,
                                          .begin = on_begin,
                                          .progress = on_progress,
                                          .token = on_token,
                                          .end = on_end,
                                          .done = on_done,
                                          .arg = a};
    a->o.prompt = make_prompt(p->m, which, 0, n_prompt);
    ingle_sampling_defaults(p->m, &a->o.sampling);
    a->o.sampling.seed = (uint64_t)which;
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    return a;
}

static inline void submit(struct place *p, struct asked *a)
{
    a->s = p->s;
    must(ingle_scheduler_submit(p->s, &a->o, &a->r, NULL, &error));
}

/* So that none has ended before the last one comes. */
struct together { struct place *p; struct asked **a; int n; };

static inline void submit_each(struct ingle_engine *e, void *arg)
{
    const struct together *t = arg;
    (void)e;
    for (int i = 0; i < t->n; i++)
        submit(t->p, t->a[i]);
}

static inline void submit_together(struct place *p, struct asked **a, int n)
{
    ingle_scheduler_call(p->s, submit_each, &(struct together){p, a, n});
}

static inline void wait_done(struct asked *a)
{
    pthread_mutex_lock(&a->lock);
    while (!a->done)
        pthread_cond_wait(&a->changed, &a->lock);
    pthread_mutex_unlock(&a->lock);
    assert_int_equal(a->n_end, a->o.n ? a->o.n : 1);
}

static inline void free_asked(struct asked *a)
{
    free((void *)(uintptr_t)a->o.prompt);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->changed);
    free(a);
}

static inline void share_prompt(const struct place *p, struct asked *a, int which, int64_t shared)
{
    free((void *)(uintptr_t)a->o.prompt);
    a->o.prompt = make_prompt(p->m, which, shared, a->o.n_prompt);
}

/* What a session of its own answers. */
static inline int64_t alone(struct ingle_model *m, const struct ingle_request_options *o,
                            int32_t *out)
{
    struct ingle_engine *e;
    struct ingle_session *s;
    struct ingle_sampler *sampler;
    const float *logits;
    int64_t n = 0;
    must(ingle_engine_open(&e, m, NULL, &error));
    must(ingle_session_open(&s, e, &error));
    must(ingle_sampler_open(&sampler, e, &o->sampling, &error));
    must(ingle_session_sync(s, o->prompt, o->n_prompt, NULL, &error));
    while (n < o->max_tokens && n < MAX_TOKENS) {
        struct ingle_token t;
        must(ingle_session_finish(s, &logits, &error));
        must(ingle_sample(sampler, logits, s, &t, &error));
        out[n++] = t.id;
        if (!o->ignore_end && ingle_model_is_end(m, t.id))
            break;
        must(ingle_session_append(s, &t.id, 1, &error));
    }
    ingle_sampler_close(sampler);
    ingle_session_close(s);
    ingle_engine_close(e);
    return n;
}

static inline void check_standalone(struct place *p, const struct asked *a, int index)
{
    if (UNIT_TSAN)
        return;
    int32_t want[MAX_TOKENS];
    struct ingle_request_options o = a->o;
    o.sampling.seed += (uint64_t)index;
    const int64_t n = alone(p->m, &o, want);
    assert_int_equal(a->answer[index].n, n);
    assert_memory_equal(a->answer[index].id, want, (size_t)n * sizeof *want);
}

static inline struct ingle_scheduler_status status_of(struct place *p)
{
    struct ingle_scheduler_status t;
    ingle_scheduler_status(p->s, &t, NULL, 0);
    return t;
}

/* Between two looks at what another thread does: it gets the processor. */
static inline void let_others(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

static inline void wait_steps(struct place *p, int64_t n)
{
    const int64_t until = status_of(p).n_steps + n;
    for (struct ingle_scheduler_status t = status_of(p);
         t.n_steps < until && (t.n_running || t.n_waiting); t = status_of(p))
        let_others();
}

static inline uint32_t next(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 10;
}

static inline void hold_unless_done(struct place *p, struct asked *a, bool held)
{
    pthread_mutex_lock(&a->lock);
    if (!a->done)
        ingle_request_hold(p->s, a->r, held);
    pthread_mutex_unlock(&a->lock);
}

static inline void cancel_unless_done(struct place *p, struct asked *a)
{
    pthread_mutex_lock(&a->lock); /* done() waits for it: the request is there */
    if (!a->done)
        ingle_request_cancel(p->s, a->r);
    pthread_mutex_unlock(&a->lock);
}

/* Sessions that nobody knows of take memory, but for so much: what one request may need. */
struct hog {
    const struct place *p;
    uint64_t leave;
    struct ingle_session *session[32];
    int n;
};

static inline void take_memory(struct ingle_engine *e, void *arg)
{
    struct hog *h = arg;
    const float *logits;
    struct ingle_engine_info info;
    for (ingle_engine_info(e, &info); info.kv_budget_bytes - info.kv_used_bytes > h->leave;
         ingle_engine_info(e, &info)) {
        assert_true(h->n < 32);
        int32_t *ids = make_prompt(h->p->m, h->n, 0, 130);
        must(ingle_session_open(&h->session[h->n], e, &error));
        must(ingle_session_append(h->session[h->n], ids, 130, &error));
        must(ingle_session_finish(h->session[h->n++], &logits, &error));
        free(ids);
    }
}

static inline void give_memory(struct ingle_engine *e, void *arg)
{
    struct hog *h = arg;
    (void)e;
    for (int i = 0; i < h->n; i++)
        ingle_session_close(h->session[i]);
}

#endif
