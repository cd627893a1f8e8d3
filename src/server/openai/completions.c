/* SPDX-License-Identifier: Apache-2.0 */
/* openai_completions - POST /v1/completions: prompts are continued as they stand. */
#include "server/fields.h"
#include "server/openai/openai.h"

#include "base/mem.h"

#include <string.h>

struct text {
    struct openai_wish wish;
    const struct answer_info *info;
    struct str head;   /* the members that all chunks share */
    size_t *n_sent;    /* [n_choices] tokens with probabilities */
    size_t *offset;    /* [n_choices] characters of their texts */
    int n_choices;
};

static void chunk_open(const struct text *s, int index, struct str *out)
{
    str_adds(out, "data: ");
    str_add(out, s->head.at, s->head.n);
    write_key(out, "choices");
    write_open(out, '[');
    write_open(out, '{');
    write_member_int(out, "index", index);
}

static void chunk_close(const struct text *s, const struct answer_choice *c, struct str *out)
{
    str_adds(out, "}]");
    openai_put_usage_so_far(out, s->info->request, c->n_prompt, c->n_generated);
    str_adds(out, "}\n\n");
}

static void put_logprobs(struct text *s, const struct answer_choice *c, struct str *out)
{
    write_key(out, "logprobs");
    if (!s->info->request->logprobs || c->index >= s->n_choices ||
        s->n_sent[c->index] == answer_n_shown(c)) {
        write_null(out);
        return;
    }
    openai_put_text_logprobs(out, c, s->n_sent[c->index], &s->offset[c->index]);
    s->n_sent[c->index] = answer_n_shown(c);
}

static void text_begin(void *state, const struct answer_info *i, struct str *out)
{
    struct text *s = state;
    s->info = i;
    (void)out;
    str_clear(&s->head);
    write_open(&s->head, '{');
    openai_put_head(&s->head, i, "cmpl-", "text_completion");
    if (s->n_sent)
        return;
    const size_t n = i->request->n_prompts * (size_t)i->request->o.n;
    s->n_sent = mem_calloc(n, sizeof *s->n_sent);
    s->offset = mem_calloc(n, sizeof *s->offset);
    s->n_choices = s->n_sent && s->offset ? (int)n : 0;
}

static void text_progress(void *state, const struct answer_progress *p, struct str *out)
{
    (void)state;
    (void)p;
    (void)out;
}

static void text_text(void *state, const struct answer_choice *c, enum answer_text kind,
                      const char *text, size_t n, size_t first_token, struct str *out)
{
    struct text *s = state;
    (void)kind;
    (void)first_token;
    chunk_open(s, c->index, out);
    write_member_string(out, "text", text, n);
    put_logprobs(s, c, out);
    write_member_null(out, "finish_reason");
    chunk_close(s, c, out);
}

static void text_end(void *state, const struct answer_choice *c, struct str *out)
{
    struct text *s = state;
    chunk_open(s, c->index, out);
    write_member(out, "text", "");
    put_logprobs(s, c, out);
    write_member(out, "finish_reason", openai_finish(c));
    openai_put_finish_details(out, c);
    chunk_close(s, c, out);
}

static void text_done(void *state, const struct answer_result *r, struct str *out)
{
    const struct text *s = state;
    if (s->info->request->include_usage) {
        str_adds(out, "data: ");
        str_add(out, s->head.at, s->head.n);
        write_key(out, "choices");
        str_adds(out, "[]");
        openai_put_usage(out, r);
        openai_put_timings(out, r);
        str_adds(out, "}\n\n");
    }
    str_adds(out, "data: [DONE]\n\n");
}

static void text_whole(void *state, const struct answer_result *r, struct str *out)
{
    (void)state;
    write_open(out, '{');
    openai_put_head(out, r->info, "cmpl-", "text_completion");
    write_member_texts(out, "warnings", r->info->warnings, r->info->n_warnings);
    write_key(out, "choices");
    write_open(out, '[');
    for (int i = 0; i < r->n_choices; i++) {
        const struct answer_choice *c = &r->choice[i];
        size_t offset = 0;
        write_open(out, '{');
        write_member_int(out, "index", c->index);
        write_member_string(out, "text", c->content.at, c->content.n);
        write_key(out, "logprobs");
        if (r->info->request->logprobs)
            openai_put_text_logprobs(out, c, 0, &offset);
        else
            write_null(out);
        write_member(out, "finish_reason", openai_finish(c));
        openai_put_finish_details(out, c);
        write_close(out, '}');
    }
    write_close(out, ']');
    openai_put_usage(out, r);
    openai_put_timings(out, r);
    write_close(out, '}');
}

static void text_free(void *state)
{
    struct text *s = state;
    str_release(&s->head);
    mem_free(s->n_sent);
    mem_free(s->offset);
    mem_free(s);
}

static const struct dialect text_dialect = {
    .name = "openai-completions",
    .begin = text_begin,
    .progress = text_progress,
    .text = text_text,
    .call_begin = openai_no_call,
    .call_arguments = openai_no_call_arguments,
    .call_end = openai_no_call,
    .end = text_end,
    .done = text_done,
    .keepalive = openai_keepalive,
    .error = openai_error,
    .accepted = openai_accepted,
    .whole = text_whole,
    .free = text_free,
};

/* ---- the request ---- */

static void read_logprobs(struct chat_request *r, struct json_object *body,
                          const struct answer_options *o, struct fault *f)
{
    int64_t top = -1;
    if (json_object_is_type(request_get(body, "logprobs"), json_type_boolean))
        request_get_bool(body, "logprobs", &r->logprobs, f);
    else
        request_get_int(body, "logprobs", 0, o->any_top ? REQUEST_MOST_TOP : REQUEST_MAX_TOP, &top,
                        f);
    if (top < 0)
        return;
    r->logprobs = true;
    r->o.n_top = (int)top;
}

static void read_best_of(struct chat_request *r, struct json_object *body, struct fault *f)
{
    int64_t best = r->o.n;
    request_get_int(body, "best_of", 1, REQUEST_MAX_N, &best, f);
    if (best < r->o.n)
        request_fault(f, FAULT_REQUEST, "best_of", "'best_of' is %lld, below n, which is %d",
                      (long long)best, r->o.n);
    if (best > r->o.n && r->stream)
        request_fault(f, FAULT_REQUEST, "best_of",
                      "the best of 'best_of' are known at the end: no stream can give them");
    r->best_of = (int)best;
}

static void read_text(struct chat_request *r, struct json_object *body,
                      const struct answer_options *o, void *state, struct fault *f)
{
    bool many;
    struct str suffix;
    (void)state;
    str_init(&suffix);
    r->o.max_tokens = o->max_tokens;
    r->o.ignore_end = o->ignore_end;
    request_get_text(body, "model", 256, &r->model, f);
    request_get_text(body, "suffix", 1 << 20, &suffix, f);
    if (suffix.n)
        request_fault(f, FAULT_REQUEST, "suffix", "there is no insertion in front of a suffix");
    str_release(&suffix);
    openai_read_prompts(r, request_get(body, "prompt"), &many, o, f);
    openai_read_params(r, body, o, PARAMS_TEXT, f);
    if (!r->cache_key.n)
        request_get_cache_key(body, "user", r);
    openai_read_stop(r, body, f);
    openai_read_stream(r, body, o, f);
    openai_read_format(r, body, f);
    read_logprobs(r, body, o, f);
    read_best_of(r, body, f);
}

static void *create_text(void)
{
    struct text *s = mem_zalloc(sizeof *s);
    if (s)
        str_init(&s->head);
    return s;
}

const struct openai_kind openai_kind_text = {&text_dialect, create_text, read_text};
