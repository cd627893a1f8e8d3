/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "server/metrics.h"

#include "base/mem.h"
#include "server/answer.h"
#include "server/responses/responses.h"
#include "server/serve.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 14, MAX_KINDS = 64, DECISIONS = 64, TOLD = 16 };

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
    char user[65], id[33], note[256];
    int64_t n_prompt;
    struct ingle_reuse reuse;
};

struct metrics {
    pthread_mutex_t lock;
    struct histogram first_token, token, queue, prefill; /* Sync: lock, as all below */
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
    }
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
    for (uint64_t i = 0; i < DECISIONS && i < m->n_decisions && n < TOLD; i++) {
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

static void put_head(struct str *out, const char *name, const char *type, const char *help)
{
    str_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put(struct str *out, const char *name, const char *type, const char *help, double v)
{
    put_head(out, name, type, help);
    str_addf(out, "%s %.17g\n", name, v);
}

static void put_histogram(struct str *out, const char *name, const char *help,
                          const struct histogram *h)
{
    uint64_t sum = 0;
    put_head(out, name, "histogram", help);
    for (int i = 0; i < BUCKETS; i++) {
        sum += h->count[i];
        str_addf(out, "%s_bucket{le=\"%g\"} %llu\n", name, bound[i], (unsigned long long)sum);
    }
    str_addf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name,
             (unsigned long long)h->n, name, h->sum, name, (unsigned long long)h->n);
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

/* llama.cpp's names, so that its dashboards work. */
static void put_known(struct str *out, const struct ingle_scheduler_status *n, int64_t n_tokens_max)
{
    put(out, "llamacpp:prompt_tokens_total", "counter", "Number of prompt tokens processed.",
        (double)n->prompt_tokens);
    put(out, "llamacpp:prompt_tokens_cached_total", "counter",
        "Number of prompt tokens that came from the cache.", (double)n->cached_tokens);
    put(out, "llamacpp:prompt_seconds_total", "counter", "Prompt process time", n->prompt_seconds);
    put(out, "llamacpp:tokens_predicted_total", "counter", "Number of generation tokens processed.",
        (double)n->generated_tokens);
    put(out, "llamacpp:tokens_predicted_seconds_total", "counter", "Predict process time",
        n->generated_seconds);
    put(out, "llamacpp:n_decode_total", "counter", "Number of steps", (double)n->n_steps);
    put(out, "llamacpp:n_tokens_max", "counter", "Largest observed number of tokens of a request.",
        (double)n_tokens_max);
    put(out, "llamacpp:n_busy_slots_per_decode", "gauge", "Average rows of a step",
        ratio((double)n->n_step_rows, (double)n->n_steps));
    put(out, "llamacpp:prompt_tokens_seconds", "gauge", "Average prompt throughput in tokens/s.",
        ratio((double)n->prompt_tokens, n->prompt_seconds));
    put(out, "llamacpp:predicted_tokens_seconds", "gauge",
        "Average generation throughput in tokens/s.",
        ratio((double)n->generated_tokens, n->generated_seconds));
    put(out, "llamacpp:requests_processing", "gauge", "Number of requests processing.",
        (double)n->n_running);
    put(out, "llamacpp:requests_deferred", "gauge", "Number of requests that wait.",
        (double)n->n_waiting);
    put(out, "llamacpp:spec_decode_num_draft_tokens_total", "counter", "Drafted tokens.",
        (double)n->drafted_tokens);
    put(out, "llamacpp:spec_decode_num_accepted_tokens_total", "counter",
        "Drafted tokens that were accepted.", (double)n->accepted_tokens);
    put(out, "llamacpp:spec_decode_num_drafts_total", "counter", "Drafts.", (double)n->n_drafts);
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
    put(out, "ingle_draft_mean_length", "gauge", "Average tokens of a step that verified a draft.",
        n->n_drafts ? 1 + (double)n->accepted_tokens / (double)n->n_drafts : 0);
    put(out, "ingle_draft_saved_seconds", "gauge",
        "Time that drafting has saved against plain decoding; below 0: lost.",
        n->draft_saved_seconds);
}

static void put_sparse(struct str *out, const struct ingle_sparse *u)
{
    put(out, "ingle_sparse_pairs_total", "counter",
        "Rows of sparse prompts, times layers and query heads.", (double)u->pairs);
    put(out, "ingle_sparse_missed_total", "counter",
        "Sum over them: the share of weights whose values were replaced by means.", u->missed);
    put(out, "ingle_sparse_missed_most", "gauge", "The largest of these shares.", u->most);
    put(out, "ingle_sparse_values_read_total", "counter", "Positions whose values they read.",
        (double)u->n_read);
    put(out, "ingle_sparse_values_seen_total", "counter", "Positions that they saw.",
        (double)u->n_seen);
}

static void put_shortener(struct str *out, const struct ingle_shortener_info *i)
{
    put(out, "ingle_prompt_skip_total", "counter", "Prompts that a prompt drafter shortened.",
        (double)i->n_prompts);
    put(out, "ingle_prompt_skip_whole_total", "counter",
        "Prompts that were read whole because it could not.", (double)i->n_whole);
    put(out, "ingle_prompt_skip_read_tokens_total", "counter",
        "Tokens of shortened prompts before that.", (double)i->n_read);
    put(out, "ingle_prompt_skip_kept_tokens_total", "counter", "Tokens of them that were kept.",
        (double)i->n_kept);
    put(out, "ingle_prompt_skip_seconds_total", "counter", "Time that the prompt drafter took.",
        i->seconds);
}

static void put_select(struct str *out, const struct ingle_select *u)
{
    put(out, "ingle_kv_select_pairs_total", "counter",
        "Rows of answers that left pages out, times layers and query heads.", (double)u->pairs);
    put(out, "ingle_kv_select_missed_total", "counter",
        "Sum over them: the estimated share of weights in pages that were not read.", u->missed);
    put(out, "ingle_kv_select_missed_most", "gauge", "The largest of these shares.", u->most);
    put(out, "ingle_kv_select_checked_total", "counter",
        "The same that were computed with all pages.", (double)u->checked);
    put(out, "ingle_kv_select_missed_true_total", "counter",
        "Sum over them: the share of weights that the choice would have missed.", u->missed_true);
    put(out, "ingle_kv_select_missed_true_most", "gauge", "The largest of these shares.",
        u->most_true);
    put(out, "ingle_kv_select_pages_read_total", "counter",
        "Pages that rows of answers read, times layers and heads.", (double)u->pages_read);
    put(out, "ingle_kv_select_pages_seen_total", "counter", "Pages that they saw.",
        (double)u->pages_seen);
    put(out, "ingle_kv_select_read_bytes_total", "counter",
        "Keys and values in the pages that they read.", (double)u->bytes_read);
}

static void put_paging(struct str *out, const struct ingle_paging *p)
{
    put(out, "ingle_kv_disk_bytes", "gauge",
        "Keys and values on disk, which memory has no room for.", (double)p->bytes);
    put(out, "ingle_kv_disk_budget_bytes", "gauge", "What may be there; 0: nothing.",
        (double)p->budget_bytes);
    put(out, "ingle_kv_disk_written_bytes_total", "counter",
        "Keys and values that were written there.", (double)p->written_bytes);
    put(out, "ingle_kv_disk_read_bytes_total", "counter",
        "Keys and values that steps read from there.", (double)p->read_bytes);
    put(out, "ingle_kv_disk_read_seconds_total", "counter",
        "Time of these reads, beside the steps.", p->read_seconds);
    put(out, "ingle_kv_disk_wait_seconds_total", "counter", "Time that steps waited for them.",
        p->waited_seconds);
    put(out, "ingle_kv_disk_failed_total", "counter", "Reads and writes that failed.",
        (double)p->failed);
}

static void put_caches(struct str *out, const struct ingle_scheduler_status *n)
{
    put_head(out, "ingle_cache_bytes", "gauge", "Bytes of conversations that are kept.");
    str_addf(out, "ingle_cache_bytes{tier=\"memory\"} %llu\n", (unsigned long long)n->cache_bytes);
    str_addf(out, "ingle_cache_bytes{tier=\"disk\"} %llu\n", (unsigned long long)n->store_bytes);
    put_head(out, "ingle_cache_hits_total", "counter", "Prompts that began with a kept one.");
    str_addf(out, "ingle_cache_hits_total{tier=\"memory\"} %lld\n", (long long)n->cache_hits);
    str_addf(out, "ingle_cache_hits_total{tier=\"disk\"} %lld\n", (long long)n->store_hits);
    put(out, "ingle_cached_tokens_total", "counter", "Prompt tokens that came from the cache.",
        (double)n->cached_tokens);
    put(out, "ingle_cache_corrupt_total", "counter", "Damaged entries that were deleted.",
        (double)n->store_corrupt);
    put(out, "ingle_store_written_total", "counter", "Conversations that went to the disk.",
        (double)n->store_written);
    put(out, "ingle_store_skipped_total", "counter",
        "Times that one found the disk busy; it is tried again when there is time.",
        (double)n->store_skipped);
    put(out, "ingle_store_failed_total", "counter", "Writes to the disk that failed.",
        (double)n->store_failed);
    put(out, "ingle_grammar_bytes", "gauge",
        "Tables of grammars that are kept for the next answers.", (double)n->grammar_bytes);
    put(out, "ingle_kv_used_bytes", "gauge", "Memory of conversations in use.",
        (double)n->kv_used_bytes);
    put(out, "ingle_kv_budget_bytes", "gauge", "Memory that conversations may use.",
        (double)n->kv_budget_bytes);
}

/* An address as the value of a label. */
static void put_label(struct str *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            str_addc(out, '\\');
        str_addc(out, *text == '\n' ? ' ' : *text);
    }
}

/* Of each worker that computes experts. */
static void put_workers(struct str *out, const struct ingle_engine *e)
{
    static const struct { const char *name, *kind, *help;
    } of[] = {
        {"ingle_worker_ready", "gauge", "Whether the worker computes experts."},
        {"ingle_worker_evals_total", "counter", "Messages that asked it for experts."},
        {"ingle_worker_experts_total", "counter",
         "Experts that it computed, one for each layer and step."},
        {"ingle_worker_sent_bytes_total", "counter", "Bytes sent to it."},
        {"ingle_worker_received_bytes_total", "counter", "Bytes received from it."},
        {"ingle_worker_losses_total", "counter", "Connections to it that were lost."},
        {"ingle_worker_redone_total", "counter", "Experts that were computed here instead."},
        {"ingle_worker_compute_seconds_total", "counter", "Time that it computed."},
        {"ingle_worker_wait_seconds_total", "counter", "Time that steps waited for it."},
        {"ingle_worker_shared_total", "counter", "Messages whose rows went through shared memory."},
        {"ingle_worker_cancels_total", "counter", "Questions that were taken back."},
        {"ingle_worker_have_experts", "gauge", "Experts that it says it has in memory."},
        {"ingle_worker_there_evals_total", "counter",
         "Messages that it has answered, of all engines, by its own count."},
        {"ingle_worker_there_failed_total", "counter", "Messages that it could not answer."},
        {"ingle_worker_there_cancelled_total", "counter",
         "Messages that engines took back before it began."},
        {"ingle_worker_there_engines", "gauge", "Engines that it has."},
        {"ingle_worker_there_read_bytes_total", "counter", "Bytes of experts that it has read."},
        {"ingle_worker_there_stall_seconds_total", "counter",
         "Time that its work waited for its disk."},
        {"ingle_worker_there_bad_experts", "gauge", "Experts that it could not read."},
        {"ingle_worker_there_up_seconds", "gauge", "Time since its start."},
    };
    struct ingle_engine_worker w;
    if (!ingle_engine_worker(e, 0, &w))
        return;
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        put_head(out, of[k].name, of[k].kind, of[k].help);
        for (int i = 0; ingle_engine_worker(e, i, &w); i++) {
            const double v[] = {strcmp(w.state, "ready") == 0,
                                (double)w.evals,
                                (double)w.experts,
                                (double)w.sent_bytes,
                                (double)w.received_bytes,
                                (double)w.losses,
                                (double)w.redone,
                                (double)w.compute_ns * 1e-9,
                                (double)w.wait_ns * 1e-9,
                                (double)w.shared,
                                (double)w.cancels,
                                (double)w.have,
                                (double)w.there_evals,
                                (double)w.there_failed,
                                (double)w.there_cancelled,
                                (double)w.there_engines,
                                (double)w.there_read_bytes,
                                (double)w.there_stall_ns * 1e-9,
                                (double)w.there_bad,
                                (double)w.there_up_ns * 1e-9};
            str_addf(out, "%s{worker=\"", of[k].name);
            put_label(out, w.address);
            str_addf(out, "\"} %.9g\n", v[k]);
        }
    }
    put(out, "ingle_worker_experts_here_total", "counter",
        "Experts that were computed beside the workers.", (double)w.experts_here);
}

/* Of experts that are not all in memory. */
static void put_experts(struct str *out, const struct ingle_engine *e)
{
    struct ingle_experts n;
    struct ingle_expert_layer l;
    if (!ingle_engine_experts(e, &n))
        return;
    put(out, "ingle_expert_slots", "gauge", "Places for experts in memory.", (double)n.slots);
    put(out, "ingle_expert_memory_bytes", "gauge", "Memory of these places.",
        (double)n.memory_bytes);
    put(out, "ingle_expert_bytes", "gauge", "All experts, in memory or not.",
        (double)n.expert_bytes);
    put(out, "ingle_expert_read_bytes_total", "counter", "Experts that were read.",
        (double)n.read_bytes);
    put(out, "ingle_expert_early_reads_total", "counter", "Reads before a layer chose.",
        (double)n.early_reads);
    put(out, "ingle_expert_early_in_time_total", "counter",
        "Early reads of chosen experts that were over when they were chosen.",
        (double)n.early_in_time);
    put(out, "ingle_expert_early_tries_total", "counter",
        "Comparisons of steps with and without early reads.", (double)n.early_tries);
    put(out, "ingle_expert_early_change", "gauge",
        "Time of steps with early reads, by those without, less 1.", n.early_change);
    put(out, "ingle_expert_reads_early", "gauge",
        "Whether experts are read before they are chosen.", n.reads_early);
    put(out, "ingle_expert_failed_reads_total", "counter", "Reads that failed.",
        (double)n.failed_reads);
    put(out, "ingle_expert_bad", "gauge", "Experts whose last read failed.", (double)n.bad);
    put(out, "ingle_expert_stuck_reads", "gauge", "Reads that do not end.", (double)n.stuck);
    put(out, "ingle_expert_skipped_total", "counter",
        "Experts that were left out (--experts-skip).", (double)n.skipped);
    put(out, "ingle_expert_evictions_total", "counter", "Experts that left for others.",
        (double)n.evictions);
    put(out, "ingle_expert_read_seconds_total", "counter", "Time with a read under way.",
        (double)n.busy_ns * 1e-9);
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
        (double)n->n_gone);
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

void metrics_write(struct metrics *m, struct serve *s, struct str *out)
{
    struct ingle_scheduler_status now;
    struct http_counters http;
    size_t n_responses, responses_bytes;
    struct ingle_shortener_info skip;
    (void)ingle_scheduler_status(s->scheduler, &now, NULL, 0);
    ingle_shortener(s->engine, &skip);
    http_counters(s->http, &http);
    pthread_mutex_lock(&m->lock);
    put_known(out, &now, m->n_tokens_max);
    put_head(out, "ingle_requests_total", "counter", "Answers by dialect and how they ended.");
    for (int i = 0; i < m->n_kinds; i++)
        str_addf(out, "ingle_requests_total{dialect=\"%s\",outcome=\"%s\"} %llu\n",
                 m->kind[i].dialect, m->kind[i].outcome, (unsigned long long)m->kind[i].n);
    put_histogram(out, "ingle_time_to_first_token_seconds", "From request to first token.",
                  &m->first_token);
    put_histogram(out, "ingle_inter_token_seconds", "Mean time between tokens of an answer.",
                  &m->token);
    put_histogram(out, "ingle_queue_seconds", "Waiting in the queue.", &m->queue);
    put_histogram(out, "ingle_prefill_seconds", "Reading the prompt.", &m->prefill);
    pthread_mutex_unlock(&m->lock);
    put_drafting(out, &s->engine_info, &now);
    put_sparse(out, &now.sparse);
    put_shortener(out, &skip);
    put_select(out, &now.select);
    put_paging(out, &now.paging);
    put_caches(out, &now);
    put_experts(out, s->engine);
    put_workers(out, s->engine);
    put_http(out, &http);
    responses_store_count(s->responses, &n_responses, &responses_bytes);
    put(out, "ingle_responses_kept", "gauge", "Answers kept for previous_response_id.",
        (double)n_responses);
    put(out, "ingle_responses_kept_bytes", "gauge", "Their bytes.", (double)responses_bytes);
    put(out, "ingle_watchdog_age_seconds", "gauge", "Age of the step that runs.",
        now.since_step_seconds);
}
