/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/metrics.h"

#include "base/mem.h"
#include "server/answer.h"
#include "server/fleet.h"
#include "server/responses/responses.h"
#include "server/responses/store.h"
#include "server/serve.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* How vLLM says that a choice ended; its clients read these words. */
static const char *const finished_words[] = {"stop", "length", "abort", "error"};
enum finished { BY_STOP, BY_LENGTH, BY_ABORT, BY_ERROR, FINISHED };

enum { BUCKETS = 14, MAX_KINDS = 64, DECISIONS = 64, MOST_SENT = 16 };

static const double bound[BUCKETS] = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1,  0.25,
                                      0.5,   1,     2.5,  5,     10,   60, 600};

struct histogram {
    uint64_t count[BUCKETS + 1]; /* the last: above all bounds */
    uint64_t n;
    double sum;
};

/* Requests of one dialect that ended in one way. */
struct kind {
    const char *dialect, *outcome; /* of static life */
    uint64_t n;
};

/* What was found of a prompt.  The note holds some of its text: it is for its user alone. */
struct decision {
    const char *dialect; /* of static life; NULL: none */
    char user[65], id[ANSWER_ID], note[256];
    int64_t n_prompt;
    struct ingle_reuse reuse;
};

struct metrics {
    pthread_mutex_t lock;
    struct histogram first_token, token, queue, prefill; /* Sync: lock, as all below */
    struct histogram decode, whole;                      /* after the first token; all of it */
    uint64_t finished[FINISHED];                         /* answers by how they ended, for vLLM */
    struct kind kind[MAX_KINDS];
    int n_kinds;
    int64_t n_tokens_max;
    int64_t used_ms; /* the end of the last answer, since 1970; 0: none yet */
    struct decision decision[DECISIONS]; /* a ring; the next one is n_decisions % DECISIONS */
    uint64_t n_decisions;
};

ingle_status metrics_open(struct metrics **out, struct err *err)
{
    struct metrics *m = mem_zalloc(sizeof *m);
    if (!m || pthread_mutex_init(&m->lock, NULL)) {
        mem_free(m);
        return err_set(err, INGLE_NOMEM, "no memory for the metrics");
    }
    *out = m;
    return INGLE_OK;
}

void metrics_close(struct metrics *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->lock);
    mem_free(m);
}

static void add(struct histogram *h, double seconds)
{
    int i = 0;
    while (i < BUCKETS && seconds > bound[i])
        i++;
    h->count[i]++;
    h->n++;
    h->sum += seconds;
}

static enum finished finished_by(const struct answer_record *r)
{
    if (strcmp(r->outcome, "ok") == 0)
        return r->by_length ? BY_LENGTH : BY_STOP;
    return strcmp(r->outcome, "error") == 0 ? BY_ERROR : BY_ABORT;
}

static void count_kind(struct metrics *m, const char *dialect, const char *outcome)
{
    for (int i = 0; i < m->n_kinds; i++)
        if (strcmp(m->kind[i].dialect, dialect) == 0 && strcmp(m->kind[i].outcome, outcome) == 0) {
            m->kind[i].n++;
            return;
        }
    if (m->n_kinds < MAX_KINDS)
        m->kind[m->n_kinds++] = (struct kind){dialect, outcome, 1};
}

void metrics_observe(void *arg, const struct answer_record *r)
{
    struct metrics *m = arg;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&m->lock);
    m->used_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    count_kind(m, r->dialect, r->outcome);
    if (r->first_token_seconds > 0) {
        add(&m->first_token, r->first_token_seconds);
        add(&m->queue, r->usage.queue_seconds);
        add(&m->prefill, r->usage.prefill_seconds);
        add(&m->decode, r->decode_seconds);
        add(&m->whole, r->whole_seconds);
    }
    if (r->note)
        m->finished[finished_by(r)]++;
    if (r->mean_token_seconds > 0)
        add(&m->token, r->mean_token_seconds);
    const int64_t n = r->usage.n_prompt + r->usage.n_generated;
    m->n_tokens_max = n > m->n_tokens_max ? n : m->n_tokens_max;
    if (r->note && strlen(r->user) < sizeof m->decision->user) {
        struct decision *d = &m->decision[m->n_decisions++ % DECISIONS];
        *d = (struct decision){
            .dialect = r->dialect, .n_prompt = r->usage.n_prompt, .reuse = r->usage.reuse};
        snprintf(d->user, sizeof d->user, "%s", r->user);
        snprintf(d->id, sizeof d->id, "%s", r->id);
        snprintf(d->note, sizeof d->note, "%s", r->note);
    }
    pthread_mutex_unlock(&m->lock);
}

int64_t metrics_used_ms(struct metrics *m)
{
    pthread_mutex_lock(&m->lock);
    const int64_t ms = m->used_ms;
    pthread_mutex_unlock(&m->lock);
    return ms;
}

static void put_decision(struct str *out, const struct decision *d)
{
    write_open(out, '{');
    write_member(out, "id", d->id);
    write_member(out, "dialect", d->dialect);
    write_member_int(out, "prompt", d->n_prompt);
    write_member_int(out, "tokens", d->reuse.kept);
    write_member_int(out, "from_session", d->reuse.from_session);
    write_member_int(out, "from_cache", d->reuse.from_cache);
    write_member_int(out, "from_disk", d->reuse.from_disk);
    write_member_int(out, "matched", d->reuse.matched);
    write_member(out, "why", d->note);
    write_close(out, '}');
}

void metrics_decisions(struct metrics *m, const char *user, struct str *out)
{
    int n = 0;
    write_open(out, '[');
    pthread_mutex_lock(&m->lock);
    for (uint64_t i = 0; i < DECISIONS && i < m->n_decisions && n < MOST_SENT; i++) {
        const struct decision *d = &m->decision[(m->n_decisions - 1 - i) % DECISIONS];
        if (strcmp(d->user, user) == 0) {
            put_decision(out, d);
            n++;
        }
    }
    pthread_mutex_unlock(&m->lock);
    write_close(out, ']');
}

/* ---- writing ---- */

/* An address as the value of a label. */
static void put_label(struct str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            str_addc(out, '\\');
        str_addc(out, *text == '\n' ? ' ' : *text);
    }
}

static void put_head(struct str *out, const char *name, const char *type, const char *help)
{
    str_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put(struct str *out, const char *name, const char *type, const char *help, double v)
{
    put_head(out, name, type, help);
    str_addf(out, "%s %.17g\n", name, v);
}

/* label: NULL, or one more label of all lines: model_name="nano". */
static void put_histogram(struct str *out, const char *name, const char *help, const char *label,
                          const struct histogram *h)
{
    const char *more = label ? label : "", *comma = label ? "," : "";
    const char *open = label ? "{" : "", *close = label ? "}" : "";
    uint64_t sum = 0;
    put_head(out, name, "histogram", help);
    for (int i = 0; i < BUCKETS; i++) {
        sum += h->count[i];
        str_addf(out, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, more, comma, bound[i],
                 (unsigned long long)sum);
    }
    str_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, more, comma,
             (unsigned long long)h->n);
    str_addf(out, "%s_sum%s%s%s %.9g\n%s_count%s%s%s %llu\n", name, open, more, close, h->sum,
             name, open, more, close, (unsigned long long)h->n);
}

/* The counters of a group that have a name here; labels: "" or "{...}". */
static void put_facts(struct str *out, const char *group, const char *labels, const void *of)
{
    size_t n;
    const struct ingle_fact *f = ingle_facts(group, &n);
    for (size_t i = 0; i < n; i++) {
        if (!f[i].metric)
            continue;
        put_head(out, f[i].metric, f[i].type, f[i].help);
        str_addf(out, "%s%s %.17g\n", f[i].metric, labels, ingle_fact_number(&f[i], of));
    }
}

/* llama.cpp's names, so that its dashboards work. */
static void put_known(struct str *out, const struct ingle_scheduler_status *n, int64_t n_tokens_max)
{
    put_facts(out, "llamacpp", "", n);
    put(out, "llamacpp:n_tokens_max", "counter", "Largest observed number of tokens of a request.",
        (double)n_tokens_max);
    put_head(out, "llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "counter",
             "Accepted drafted tokens by their place in the draft.");
    for (int i = 0; i < INGLE_DRAFT_PLACES; i++)
        if (!i || n->drafted_at[i])
            str_addf(
                out,
                "llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"%d\"} %lld\n", i,
                (long long)n->accepted_at[i]);
}

static void put_drafting(struct str *out, const struct ingle_engine_info *i,
                         const struct ingle_scheduler_status *n)
{
    put_head(out, "ingle_draft_info", "gauge",
             "What drafts, and why no answer is drafted for now.");
    str_addf(out, "ingle_draft_info{proposer=\"%s\",why_off_now=\"%s\"} 1\n",
             i->draft[0] ? i->draft : i->draft_text ? "ngram" : "off", n->draft_why);
    put_facts(out, "drafts", "", n);
}

static void put_caches(struct str *out, const struct ingle_scheduler_status *n)
{
    put_head(out, "ingle_cache_bytes", "gauge", "Bytes of conversations that are kept.");
    str_addf(out, "ingle_cache_bytes{tier=\"memory\"} %llu\n", (unsigned long long)n->cache_bytes);
    str_addf(out, "ingle_cache_bytes{tier=\"disk\"} %llu\n", (unsigned long long)n->store_bytes);
    put_head(out, "ingle_cache_hits_total", "counter", "Prompts that began with a kept one.");
    str_addf(out, "ingle_cache_hits_total{tier=\"memory\"} %lld\n", (long long)n->cache_hits);
    str_addf(out, "ingle_cache_hits_total{tier=\"disk\"} %lld\n", (long long)n->store_hits);
    put_facts(out, "memory", "", n);
    put_facts(out, "store", "", n);
}

/* The counters of a group of each worker, one under the other. */
static void put_worker_facts(struct str *out, const struct ingle_engine *e, const char *group)
{
    size_t n;
    const struct ingle_fact *f = ingle_facts(group, &n);
    struct ingle_engine_worker w;
    for (size_t k = 0; k < n; k++) {
        if (!f[k].metric)
            continue;
        put_head(out, f[k].metric, f[k].type, f[k].help);
        for (int i = 0; ingle_engine_worker(e, i, &w); i++) {
            str_addf(out, "%s{worker=\"", f[k].metric);
            put_label(out, w.address);
            str_addf(out, "\"} %.9g\n", ingle_fact_number(&f[k], &w));
        }
    }
}

/* Of each worker that computes experts. */
static void put_workers(struct str *out, const struct ingle_engine *e)
{
    struct ingle_engine_worker w;
    if (!ingle_engine_worker(e, 0, &w))
        return;
    put_head(out, "ingle_worker_ready", "gauge", "Whether the worker computes experts.");
    for (int i = 0; ingle_engine_worker(e, i, &w); i++) {
        str_adds(out, "ingle_worker_ready{worker=\"");
        put_label(out, w.address);
        str_addf(out, "\"} %d\n", strcmp(w.state, "ready") == 0);
    }
    put_worker_facts(out, e, "worker");
    put_worker_facts(out, e, "there");
    put(out, "ingle_worker_experts_here_total", "counter",
        "Experts that were computed beside the workers.", (double)w.experts_here);
}

/* Of each process that has some of the layers. */
static void put_stages(struct str *out, const struct ingle_engine *e)
{
    size_t n;
    const struct ingle_fact *f = ingle_facts("stage", &n);
    struct ingle_engine_stage s;
    if (!ingle_engine_stage(e, 0, &s))
        return;
    put_head(out, "ingle_stage_ready", "gauge", "Whether the stage computes its layers.");
    for (int i = 0; ingle_engine_stage(e, i, &s); i++) {
        str_adds(out, "ingle_stage_ready{stage=\"");
        put_label(out, s.address);
        str_addf(out, "\",layers=\"%lld:%lld\"} %d\n", (long long)s.from, (long long)s.to,
                 s.ready);
    }
    for (size_t k = 0; k < n; k++) {
        put_head(out, f[k].metric, f[k].type, f[k].help);
        for (int i = 0; ingle_engine_stage(e, i, &s); i++) {
            str_addf(out, "%s{stage=\"", f[k].metric);
            put_label(out, s.address);
            str_addf(out, "\"} %.9g\n", ingle_fact_number(&f[k], &s));
        }
    }
}

/* Of experts that are not all in memory. */
static void put_experts(struct str *out, const struct ingle_engine *e)
{
    struct ingle_experts n;
    struct ingle_expert_layer l;
    if (!ingle_engine_experts(e, &n))
        return;
    put_facts(out, "experts", "", &n);
    put_facts(out, "early", "", &n);
    put_head(out, "ingle_expert_choices_total", "counter", "Experts that layers chose in a step.");
    for (size_t i = 0; ingle_engine_expert_layer(e, i, &l); i++)
        str_addf(out, "ingle_expert_choices_total{layer=\"%lld\"} %llu\n", (long long)l.layer,
                 (unsigned long long)l.choices);
    put_head(out, "ingle_expert_hits_total", "counter", "Of them, experts that stayed in memory.");
    for (size_t i = 0; ingle_engine_expert_layer(e, i, &l); i++)
        str_addf(out, "ingle_expert_hits_total{layer=\"%lld\"} %llu\n", (long long)l.layer,
                 (unsigned long long)l.hits);
    put_head(out, "ingle_expert_stall_seconds_total", "counter",
             "Time that steps waited for reads.");
    for (size_t i = 0; ingle_engine_expert_layer(e, i, &l); i++)
        str_addf(out, "ingle_expert_stall_seconds_total{layer=\"%lld\"} %.6f\n", (long long)l.layer,
                 (double)l.stall_ns * 1e-9);
}

static void put_http(struct str *out, const struct http_counters *n)
{
    put(out, "ingle_http_connections_total", "counter", "Connections.", (double)n->n_connections);
    put(out, "ingle_http_requests_total", "counter", "HTTP requests.", (double)n->n_requests);
    put(out, "ingle_http_bad_requests_total", "counter", "Refused for their form.",
        (double)n->n_bad_requests);
    put(out, "ingle_http_timeouts_total", "counter", "Connections cut for being slow.",
        (double)n->n_timeouts);
    put(out, "ingle_client_gone_total", "counter", "Clients that left before the end.",
        (double)n->n_disconnected);
    put(out, "ingle_client_overrun_total", "counter", "Clients that did not read.",
        (double)n->n_overruns);
    put(out, "ingle_client_held_total", "counter",
        "Times that an answer waited for a client that reads more slowly than the model writes.",
        (double)n->n_full);
    put(out, "ingle_client_held_seconds_total", "counter", "How long they waited.",
        n->full_seconds);
    put(out, "ingle_io_busy_seconds_total", "counter", "Time that the I/O thread worked.",
        n->busy_seconds);
    put(out, "ingle_io_longest_seconds", "gauge", "Longest time between two looks at all clients.",
        n->longest_seconds);
    put(out, "ingle_http_bodies_bytes", "gauge", "Bodies that arrive, wait or are being read.",
        (double)n->bodies_bytes);
    put(out, "ingle_http_replies_bytes", "gauge", "Whole answers that wait for their clients.",
        (double)n->replies_bytes);
    put(out, "ingle_http_replies_refused_total", "counter",
        "Answers that found no room to wait in.", (double)n->n_replies_refused);
    put(out, "ingle_http_aside", "gauge",
        "Requests that are read for more than a second, apart from others.", (double)n->n_aside);
    put(out, "ingle_http_reading", "gauge", "Requests whose bodies wait to be read.",
        (double)n->n_reading);
    put(out, "ingle_http_reading_bytes", "gauge", "Their bodies.", (double)n->reading_bytes);
    put(out, "ingle_http_connections_open", "gauge", "Open connections.", (double)n->n_open);
}

/* What vLLM's fleets read.  m->lock is held. */
static void put_vllm(const struct metrics *m, const struct serve *s, struct str *out,
                     const struct ingle_scheduler_status *now)
{
    static const struct {
        const char *name, *help;
        size_t at;
    } of[] = {
        {"vllm:time_to_first_token_seconds", "From request to first token.",
         offsetof(struct metrics, first_token)},
        {"vllm:inter_token_latency_seconds", "Mean time between tokens of an answer.",
         offsetof(struct metrics, token)},
        {"vllm:e2e_request_latency_seconds", "From request to the end of the answer.",
         offsetof(struct metrics, whole)},
        {"vllm:request_queue_time_seconds", "Waiting in the queue.",
         offsetof(struct metrics, queue)},
        {"vllm:request_prefill_time_seconds", "Reading the prompt.",
         offsetof(struct metrics, prefill)},
        {"vllm:request_decode_time_seconds", "From the first token to the last one.",
         offsetof(struct metrics, decode)},
    };
    struct str label, braces;
    str_init(&label);
    str_init(&braces);
    str_adds(&label, "model_name=\"");
    put_label(&label, s->model_id);
    str_adds(&label, "\"");
    str_addf(&braces, "{%s}", str_ok(&label) ? label.at : "");
    if (!str_ok(&label) || !str_ok(&braces)) {
        str_release(&label);
        str_release(&braces);
        return;
    }
    put_facts(out, "vllm", braces.at, now);
    put_head(out, "vllm:request_success_total", "counter", "Answers by how they ended.");
    for (int i = 0; i < FINISHED; i++)
        str_addf(out, "vllm:request_success_total{%s,finished_reason=\"%s\"} %llu\n", label.at,
                 finished_words[i], (unsigned long long)m->finished[i]);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        put_histogram(out, of[i].name, of[i].help, label.at,
                      (const struct histogram *)(const void *)((const char *)m + of[i].at));
    const uint64_t block = s->engine_info.kv_token_bytes * FLEET_BLOCK;
    put_head(out, "vllm:cache_config_info", "gauge", "Blocks of the KV cache.");
    str_addf(out,
             "vllm:cache_config_info{%s,block_size=\"%d\",num_gpu_blocks=\"%llu\","
             "enable_prefix_caching=\"True\",cache_dtype=\"%s\"} 1\n",
             label.at, (int)FLEET_BLOCK,
             (unsigned long long)(block ? now->kv_budget_bytes / block : 0), s->engine_info.kv);
    str_release(&label);
    str_release(&braces);
}

/* What a graphics card computes. */
static void put_gpu(struct str *out, const struct ingle_engine_info *e,
                    const struct ingle_scheduler_status *now)
{
    if (!e->gpu[0])
        return;
    put(out, "ingle_gpu_layers", "gauge", "Layers that the graphics card computes.",
        now->gpu_lost ? 0 : (double)(e->gpu_end - e->gpu_first));
    put(out, "ingle_gpu_first_layer", "gauge", "The first of them.",
        now->gpu_lost ? 0 : (double)e->gpu_first);
    put(out, "ingle_gpu_draft_layers", "gauge", "Layers of the drafter that it computes.",
        now->gpu_lost ? 0 : (double)(e->gpu_draft_end - e->gpu_draft_first));
    put(out, "ingle_gpu_weight_bytes", "gauge", "Weights in its memory.",
        now->gpu_lost ? 0 : (double)e->gpu_bytes);
    put(out, "ingle_gpu_lost", "gauge", "1: it has failed, and the processor computes.",
        now->gpu_lost);
}

static void put_loading(struct str *out, const struct serve *s)
{
    put(out, "ingle_load_seconds", "gauge", "Time that loading the model took, or takes so far.",
        serve_load_seconds(s));
    put(out, "ingle_ready", "gauge", "Whether new requests should come: /readyz.",
        !fleet_why_not_ready(s));
}

void metrics_write(struct metrics *m, struct serve *s, struct str *out)
{
    struct ingle_scheduler_status now;
    struct http_counters http;
    size_t n_responses, responses_bytes;
    struct ingle_shortener_info skip;
    put_loading(out, s);
    if (serve_phase(s) == SERVE_LOADING)
        return;
    (void)ingle_scheduler_status(s->scheduler, &now, NULL, 0);
    ingle_shortener(s->engine, &skip);
    http_counters(s->http, &http);
    pthread_mutex_lock(&m->lock);
    put_known(out, &now, m->n_tokens_max);
    put_head(out, "ingle_requests_total", "counter", "Answers by dialect and how they ended.");
    for (int i = 0; i < m->n_kinds; i++)
        str_addf(out, "ingle_requests_total{dialect=\"%s\",outcome=\"%s\"} %llu\n",
                 m->kind[i].dialect, m->kind[i].outcome, (unsigned long long)m->kind[i].n);
    put_histogram(out, "ingle_time_to_first_token_seconds", "From request to first token.", NULL,
                  &m->first_token);
    put_histogram(out, "ingle_inter_token_seconds", "Mean time between tokens of an answer.", NULL,
                  &m->token);
    put_histogram(out, "ingle_queue_seconds", "Waiting in the queue.", NULL,
                  &m->queue);
    put_histogram(out, "ingle_prefill_seconds", "Reading the prompt.", NULL,
                  &m->prefill);
    put_vllm(m, s, out, &now);
    pthread_mutex_unlock(&m->lock);
    put_drafting(out, &s->engine_info, &now);
    put_facts(out, "sparse", "", &now.way.sparse);
    put_facts(out, "shortener", "", &skip);
    put_facts(out, "select", "", &now.way.select);
    put_facts(out, "paging", "", &now.paging);
    struct ingle_events events;
    if (ingle_engine_events(s->engine, &events))
        put_facts(out, "events", "", &events);
    if (now.media.budget_bytes)
        put_facts(out, "media", "", &now.media);
    put_gpu(out, &s->engine_info, &now);
    put_caches(out, &now);
    put_experts(out, s->engine);
    put_workers(out, s->engine);
    put_stages(out, s->engine);
    put_http(out, &http);
    responses_store_count(s->responses, &n_responses, &responses_bytes);
    put(out, "ingle_responses_kept", "gauge", "Answers kept for previous_response_id.",
        (double)n_responses);
    put(out, "ingle_responses_kept_bytes", "gauge", "Their bytes.", (double)responses_bytes);
}
