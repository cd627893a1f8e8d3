/* SPDX-License-Identifier: Apache-2.0 */
#include "server/openai/openai.h"
#include "server/streams.h"

#include "base/clock.h"
#include "base/utf8.h"
#include <string.h>

void openai_put_head(struct str *out, const struct answer_info *i, const char *prefix,
                     const char *object)
{
    write_key(out, "id");
    str_addf(out, "\"%s%s\"", prefix, i->id);
    write_member(out, "object", object);
    write_member_int(out, "created", i->created);
    write_member(out, "model", i->model);
    write_member(out, "system_fingerprint", i->fingerprint);
}

/* The member usage, still open. */
static void put_usage(struct str *out, int64_t n_prompt, int64_t n_generated)
{
    write_key(out, "usage");
    write_open(out, '{');
    write_member_int(out, "prompt_tokens", n_prompt);
    write_member_int(out, "completion_tokens", n_generated);
    write_member_int(out, "total_tokens", n_prompt + n_generated);
}

void openai_put_usage_so_far(struct str *out, const struct chat_request *r, int64_t n_prompt,
                             int64_t n_generated)
{
    if (r->include_usage && r->continuous_usage) {
        put_usage(out, n_prompt, n_generated);
        write_close(out, '}');
    } else if (r->include_usage) {
        write_member_null(out, "usage");
    }
}

void openai_put_usage(struct str *out, const struct answer_result *r)
{
    const struct ingle_usage *u = &r->usage;
    put_usage(out, u->n_prompt, u->n_generated);
    write_key(out, "prompt_tokens_details");
    write_open(out, '{');
    write_member_int(out, "cached_tokens", u->reuse.kept);
    write_computed(out, u);
    write_close(out, '}');
    write_key(out, "completion_tokens_details");
    write_open(out, '{');
    write_member_int(out, "reasoning_tokens", r->n_reasoning);
    write_drafted(out, u->n_drafted, u->n_accepted);
    write_close(out, '}');
    write_close(out, '}');
}

static void put_rate(struct str *out, const char *per_token, const char *per_second, int64_t n,
                     double seconds)
{
    write_member_number(out, per_token, n > 0 ? seconds * 1e3 / (double)n : 0);
    write_member_number(out, per_second, seconds > 0 ? (double)n / seconds : 0);
}

/* What came of drafts, and why most steps had none. */
static void put_drafts(struct str *out, const struct ingle_usage *u)
{
    write_key(out, "draft");
    write_open(out, '{');
    write_member_int(out, "drafts", u->n_drafts);
    write_member_number(out, "mean_length",
                        u->n_drafts ? 1 + (double)u->n_accepted / (double)u->n_drafts : 0);
    write_member_number(out, "saved_ms", u->draft_saved_seconds * 1e3);
    write_member(out, "why_off", u->draft_why[0] ? u->draft_why : NULL);
    write_close(out, '}');
}

/* Where the tokens of the prompt came from, and if there could have been more of them, why
 * there were not. */
static void put_reuse(struct str *out, const struct answer_result *r)
{
    const struct ingle_reuse *u = &r->usage.reuse;
    write_key(out, "ingle");
    write_open(out, '{');
    write_member_number(out, "queue_ms", r->usage.queue_seconds * 1e3);
    write_member_bool(out, "attached", r->info->attached);
    put_drafts(out, &r->usage);
    write_key(out, "reuse");
    write_open(out, '{');
    write_member_int(out, "tokens", u->kept);
    write_member_int(out, "from_session", u->from_session);
    write_member_int(out, "from_cache", u->from_cache);
    write_member_int(out, "from_disk", u->from_disk);
    write_member_int(out, "matched", u->matched);
    write_member(out, "why", r->info->reuse_note);
    write_close(out, '}');
    write_close(out, '}');
}

/* The member timings, still open.  The first token of each of n_choices comes with the end of the
 * prompt and took no time of its own. */
static void put_times(struct str *out, int64_t n_cached, int64_t n_prompt, double prompt_seconds,
                      int64_t n_predicted, int n_choices, double predicted_seconds)
{
    write_key(out, "timings");
    write_open(out, '{');
    write_member_int(out, "cache_n", n_cached);
    write_member_int(out, "prompt_n", n_prompt);
    write_member_number(out, "prompt_ms", prompt_seconds * 1e3);
    put_rate(out, "prompt_per_token_ms", "prompt_per_second", n_prompt, prompt_seconds);
    write_member_int(out, "predicted_n", n_predicted);
    write_member_number(out, "predicted_ms", predicted_seconds * 1e3);
    put_rate(out, "predicted_per_token_ms", "predicted_per_second",
             n_predicted > n_choices ? n_predicted - n_choices : 0, predicted_seconds);
}

void openai_timer_start(struct openai_timer *t)
{
    t->begun = clock_now();
    t->prompt_seconds = 0;
}

void openai_put_timer(struct str *out, struct openai_timer *t, const struct answer_info *i,
                      int64_t n_predicted)
{
    const double seconds = (double)(clock_now() - t->begun) * 1e-9;
    if (t->prompt_seconds <= 0)
        t->prompt_seconds = seconds;
    put_times(out, i->reuse.kept, i->n_prompt - i->n_skipped - i->reuse.kept, t->prompt_seconds,
              n_predicted, 1, seconds - t->prompt_seconds);
    write_close(out, '}');
}

/* Only where experts are not all in memory. */
static void put_experts(struct str *out, const struct ingle_expert_use *u)
{
    if (!u->hits && !u->misses)
        return;
    write_key(out, "experts");
    str_addf(out, "{\"hits\":%llu,\"misses\":%llu,\"read_bytes\":%llu,\"stall_ms\":%.3f}",
             (unsigned long long)u->hits, (unsigned long long)u->misses,
             (unsigned long long)u->read_bytes, (double)u->stall_ns * 1e-6);
}

/* Pictures and sounds; those that were not encoded were known. */
static void put_media(struct str *out, const struct ingle_usage *u)
{
    if (!u->n_media)
        return;
    write_key(out, "media");
    write_open(out, '{');
    write_member_int(out, "n", u->n_media);
    write_member_int(out, "encoded", u->n_encoded);
    write_member_number(out, "encode_ms", u->encode_seconds * 1e3);
    write_close(out, '}');
}

void openai_put_timings(struct str *out, const struct answer_result *r)
{
    const struct ingle_usage *u = &r->usage;
    put_times(out, u->reuse.kept, u->n_prompt - u->n_skipped - u->reuse.kept, u->prefill_seconds,
              u->n_generated, r->n_choices, u->decode_seconds);
    write_member_int(out, "draft_n", u->n_drafted);
    write_member_int(out, "draft_n_accepted", u->n_accepted);
    put_experts(out, &u->experts);
    put_media(out, u);
    write_computed(out, u);
    write_ways(out, &u->way);
    write_pages(out, &u->pages);
    put_reuse(out, r);
    write_close(out, '}');
}

/* ---- probabilities ---- */

void openai_put_bytes(struct str *out, const char *bytes, size_t n)
{
    write_key(out, "bytes");
    write_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_int(out, (unsigned char)bytes[i]);
    write_close(out, ']');
}

static void put_logprob(struct str *out, const struct answer_token *t)
{
    if (t->no_logprob)
        write_null(out);
    else
        write_float(out, t->logprob);
}

static void put_chat_token(struct str *out, const struct answer_choice *c,
                           const struct answer_token *t)
{
    write_open(out, '{');
    write_member_int(out, "id", t->id);
    write_member_string(out, "token", answer_token_text(c, t), t->n_text);
    openai_put_bytes(out, answer_bytes(c, t->bytes_at), t->n_bytes);
    write_key(out, "logprob");
    put_logprob(out, t);
    write_key(out, "top_logprobs");
    write_open(out, '[');
    for (int i = 0; i < t->n_top; i++) {
        const struct answer_top *top = &c->top[t->top_at + (size_t)i];
        const char *bytes = answer_bytes(c, top->bytes_at);
        write_open(out, '{');
        write_member_int(out, "id", top->id);
        write_member_string(out, "token", bytes, top->n_bytes);
        openai_put_bytes(out, bytes, top->n_bytes);
        write_key(out, "logprob");
        write_float(out, top->logprob);
        write_close(out, '}');
    }
    write_close(out, ']');
    write_close(out, '}');
}

void openai_put_tokens(struct str *out, const struct answer_choice *c, size_t first)
{
    write_open(out, '[');
    for (size_t i = first; i < c->n_tokens; i++)
        put_chat_token(out, c, &c->token[i]);
    write_close(out, ']');
}

void openai_put_chat_logprobs(struct str *out, const struct answer_choice *c, size_t first)
{
    write_open(out, '{');
    write_key(out, "content");
    openai_put_tokens(out, c, first);
    write_member_null(out, "refusal");
    write_close(out, '}');
}

static size_t n_characters(const char *s, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; count++) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
    }
    return count;
}

static void put_top_map(struct str *out, const struct answer_shown *s)
{
    if (!s->token->n_top || s->token->no_logprob) {
        write_null(out);
        return;
    }
    write_open(out, '{');
    for (int i = 0; i < s->token->n_top; i++) {
        const struct answer_top *top = &s->top[i];
        write_string(out, s->bytes + top->bytes_at, top->n_bytes);
        str_addc(out, ':');
        write_float(out, top->logprob);
    }
    write_close(out, '}');
}

void openai_put_text_logprobs(struct str *out, const struct answer_choice *c, size_t first,
                              size_t *offset)
{
    const size_t n = answer_n_shown(c);
    write_open(out, '{');
    write_key(out, "tokens");
    write_open(out, '[');
    for (size_t i = first; i < n; i++) {
        const struct answer_token *t = answer_shown_at(c, i).token;
        write_string(out, answer_token_text(c, t), t->n_text);
    }
    write_close(out, ']');
    write_key(out, "token_logprobs");
    write_open(out, '[');
    for (size_t i = first; i < n; i++)
        put_logprob(out, answer_shown_at(c, i).token);
    write_close(out, ']');
    write_key(out, "top_logprobs");
    write_open(out, '[');
    for (size_t i = first; i < n; i++) {
        const struct answer_shown s = answer_shown_at(c, i);
        put_top_map(out, &s);
    }
    write_close(out, ']');
    write_key(out, "text_offset");
    write_open(out, '[');
    for (size_t i = first; i < n; i++) {
        const struct answer_token *t = answer_shown_at(c, i).token;
        write_uint(out, *offset);
        *offset += n_characters(answer_token_text(c, t), t->n_text);
    }
    write_close(out, ']');
    write_close(out, '}');
}

/* ---- ends ---- */

const char *openai_finish(const struct answer_choice *c)
{
    switch (c->finish) {
    case ANSWER_LENGTH:
        return "length";
    case ANSWER_CALLS:
        return "tool_calls";
    case ANSWER_OPEN:
    case ANSWER_STOP:
        break;
    }
    return "stop";
}

void openai_put_finish_details(struct str *out, const struct answer_choice *c)
{
    if (!c->stop && !c->stop_id && !c->context_full)
        return;
    write_key(out, "finish_details");
    write_open(out, '{');
    write_member(out, "type", c->stop ? "stop_string" : c->stop_id ? "stop_token" : "context_full");
    if (c->stop_id)
        write_member_int(out, "stop", *c->stop_id);
    if (c->stop)
        write_member(out, "stop", c->stop);
    write_close(out, '}');
}

static const char *type_of(const struct fault *f)
{
    switch (f->kind) {
    case FAULT_BUSY:
        return "rate_limit_error";
    case FAULT_STOPPING:
        return "unavailable_error";
    case FAULT_UNSUP:
        return "not_supported_error";
    case FAULT_ENGINE:
    case FAULT_DEADLINE:
        return "server_error";
    case FAULT_NONE:
    case FAULT_REQUEST:
    case FAULT_MODEL:
    case FAULT_CONTEXT:
        break;
    }
    return "invalid_request_error";
}

static const char *code_of(const struct fault *f)
{
    if (f->code)
        return f->code;
    switch (f->kind) {
    case FAULT_CONTEXT:
        return "context_length_exceeded";
    case FAULT_MODEL:
        return "model_not_found";
    case FAULT_BUSY:
        return "queue_full";
    case FAULT_DEADLINE:
        return "deadline_exceeded";
    case FAULT_NONE:
    case FAULT_REQUEST:
    case FAULT_STOPPING:
    case FAULT_UNSUP:
    case FAULT_ENGINE:
        break;
    }
    return NULL;
}

void openai_put_fault(struct str *out, const struct fault *f)
{
    write_open(out, '{');
    write_key(out, "error");
    write_open(out, '{');
    write_member(out, "message", f->message);
    write_member(out, "type", type_of(f));
    write_member(out, "param", f->param[0] ? f->param : NULL);
    write_member(out, "code", code_of(f));
    write_member_int(out, "status", f->status);
    if (f->kind == FAULT_CONTEXT) {
        write_member_int(out, "n_prompt_tokens", f->n_prompt);
        write_member_int(out, "n_ctx", f->n_ctx);
    }
    write_close(out, '}');
    write_close(out, '}');
}

/* ---- what dialects share ---- */

void openai_put_progress(struct str *out, const struct answer_progress *p, bool timings)
{
    write_key(out, "prompt_progress");
    write_open(out, '{');
    write_member_int(out, "total", p->n_prompt);
    write_member_int(out, "cache", p->n_cached);
    write_member_int(out, "processed", p->n_done);
    write_member_int(out, "time_ms", (int64_t)(p->seconds * 1e3));
    if (p->n_media) {
        write_member_int(out, "media", p->n_media);
        write_member_number(out, "media_encoded", p->encoded);
    }
    write_close(out, '}');
    if (!timings)
        return;
    put_times(out, p->n_cached, p->n_done - p->n_cached, p->seconds, 0, 0, 0);
    write_close(out, '}');
}

void openai_keepalive(void *state, const struct answer_info *i, struct str *out)
{
    (void)state;
    (void)i;
    str_adds(out, ": keep-alive\n\n");
}

void openai_accepted(void *state, const struct answer_info *i, struct str *reply, struct str *out)
{
    const struct openai_wish *w = state;
    (void)i;
    (void)reply;
    (void)out;
    /* Without memory for its name it is a stream like any other. */
    (void)!streams_add(w->streams, w->user, w->conversation, w->tape);
}

void openai_error(void *state, const struct fault *f, bool in_stream, struct str *out)
{
    (void)state;
    if (in_stream)
        str_adds(out, "data: ");
    openai_put_fault(out, f);
    if (in_stream)
        str_adds(out, "\n\n");
}

void openai_no_call(void *state, const struct answer_choice *c, size_t call, struct str *out)
{
    (void)state;
    (void)c;
    (void)call;
    (void)out;
}

void openai_no_call_arguments(void *state, const struct answer_choice *c, size_t call,
                              const char *text, size_t n, struct str *out)
{
    (void)text;
    (void)n;
    openai_no_call(state, c, call, out);
}
