/* SPDX-License-Identifier: Apache-2.0 */
#include "server/answer_inner.h"
#include "server/answer_prompt.h"
#include "server/fields.h"
#include "server/answer_parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "server/medium.h"

#include <stdio.h>
#include <string.h>

static const char GEMMA_THOUGHT[] = "<|channel>thought\n";

void answer_token_bytes(const struct ingle_model *m, int32_t id, struct str *out)
{
    char *text;
    size_t n;
    if (ingle_detokenize(m, &id, 1, true, &text, &n, NULL))
        return;
    str_add(out, text, n);
    ingle_free(text);
}

/* ---- the end of the conversation that the answer continues ---- */

struct prefill {
    struct str content, reasoning; /* content has MARK for each medium */
    struct ingle_medium *medium[MEDIUM_MOST];
    size_t n_media;
    bool there;
};

static const char MARK[] = "\xFF"; /* no text of JSON has it */

static bool role_is(struct json_object *messages, size_t i, const char *role)
{
    struct json_object *m = json_object_array_get_idx(messages, i);
    struct json_object *r =
        json_object_is_type(m, json_type_object) ? request_get(m, "role") : NULL;
    return json_object_is_type(r, json_type_string) && strcmp(json_object_get_string(r), role) == 0;
}

static void add_string(struct str *out, struct json_object *v)
{
    if (json_object_is_type(v, json_type_string))
        str_add(out, json_object_get_string(v), (size_t)json_object_get_string_len(v));
}

/* The medium of a part of a message; NULL: it has none. */
static struct ingle_medium *medium_of(const struct answer *a, struct json_object *part)
{
    struct json_object *number =
        json_object_is_type(part, json_type_object) ? request_get(part, "medium") : NULL;
    const int64_t at = number ? json_object_get_int64(number) : -1;
    return a->medium && at >= 0 && at < (int64_t)a->request.n_media ? a->medium[at] : NULL;
}

static void add_content(const struct answer *a, struct prefill *p, struct json_object *content)
{
    add_string(&p->content, content);
    if (!json_object_is_type(content, json_type_array))
        return;
    for (size_t i = 0; i < json_object_array_length(content); i++) {
        struct json_object *part = json_object_array_get_idx(content, i);
        struct ingle_medium *medium = medium_of(a, part);
        if (medium && p->n_media < MEDIUM_MOST) {
            p->medium[p->n_media++] = medium;
            str_adds(&p->content, MARK);
        } else if (json_object_is_type(part, json_type_object)) {
            add_string(&p->content, request_get(part, "text"));
        }
    }
}

/* Takes a last assistant message without calls out of messages. */
static void take_prefill(const struct answer *a, struct json_object *messages, struct prefill *p,
                         struct fault *f)
{
    const size_t n = json_object_array_length(messages);
    if (!n || !role_is(messages, n - 1, "assistant"))
        return;
    if (n > 1 && role_is(messages, n - 2, "assistant")) {
        request_fault(
            f, FAULT_REQUEST, "messages",
            "the last two of 'messages' are both the assistant's: only one can be continued");
        return;
    }
    struct json_object *m = json_object_array_get_idx(messages, n - 1);
    struct json_object *calls = request_get(m, "tool_calls");
    if (json_object_is_type(calls, json_type_array) && json_object_array_length(calls))
        return;
    add_content(a, p, request_get(m, "content"));
    add_string(&p->reasoning, request_get(m, "reasoning_content"));
    if (!p->reasoning.n)
        add_string(&p->reasoning, request_get(m, "reasoning"));
    p->there = true;
    json_object_array_del_idx(messages, n - 1, 1);
}

/* ---- prompts ---- */

static bool append_ids(struct answer_part *p, const int32_t *ids, size_t n)
{
    size_t want;
    if (!num_add(p->n_ids, n, &want))
        return false;
    int32_t *grown = mem_realloc(p->ids, want ? want : 1, sizeof *grown);
    if (!grown)
        return false;
    if (n)
        memcpy(grown + p->n_ids, ids, n * sizeof *ids);
    p->ids = grown;
    p->n_ids = want;
    return true;
}

/* Whether something may be left out of its prompts: what tools and grammars need of them nobody
 * knows, and an echo is whole. */
static bool may_shorten(const struct answer *a)
{
    const struct chat_request *r = &a->request;
    const bool strict = r->has_grammar || (r->tools.n && r->tool_choice != TOOLS_NONE);
    return !a->counted && !r->n_media && !r->echo && r->prompt_keep < 1 &&
           (r->keep_requested || (!strict && a->core->o.prompt_ctx));
}

/* Nobody waits for the tokens of a client that has left, nor for those of a text that cannot be
 * answered. */
static struct ingle_bounds bounds_of(const struct answer *a, struct fault *f)
{
    return (struct ingle_bounds){
        .max_tokens =
            a->counted ? 0 : num_max(a->core->o.n_ctx, may_shorten(a) ? a->core->o.prompt_ctx : 0),
        .stop = request_has_ended,
        .arg = f};
}

static void say_untokenised(const struct answer *a, ingle_status st, const struct ingle_bounds *b,
                            const struct ingle_error *e, struct fault *f)
{
    const char *what = request_prompt_param(&a->request);
    if (st != INGLE_LIMIT || !b->least) {
        request_fault_from(f, st, what, e->text);
        return;
    }
    request_fault(
        f, FAULT_CONTEXT, what,
        "the prompt has at least %lld tokens and exceeds the available context size of %lld tokens",
        (long long)b->least, (long long)a->core->o.n_ctx);
    f->n_prompt = b->least;
    f->n_ctx = a->core->o.n_ctx;
}

static void append_text(const struct answer *a, struct answer_part *p, const char *text, size_t n,
                        int flags, struct fault *f)
{
    struct ingle_error e;
    struct ingle_bounds b = bounds_of(a, f);
    int32_t *ids;
    size_t n_ids;
    if (f->kind)
        return;
    const ingle_status st =
        ingle_tokenize_within(a->info.llm, text, n, flags, &b, &ids, &n_ids, &e);
    if (st) {
        say_untokenised(a, st, &b, &e, f);
        return;
    }
    if (!append_ids(p, ids, n_ids))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt of %zu tokens", n_ids);
    ingle_free(ids);
}

static bool append_spans(struct answer_part *p, struct ingle_prompt *from)
{
    struct ingle_span *grown =
        mem_realloc(p->span, p->n_spans + from->n_spans + 1, sizeof *grown);
    if (!grown)
        return false;
    p->span = grown;
    for (size_t i = 0; i < from->n_spans; i++) {
        grown[p->n_spans] = from->span[i];
        grown[p->n_spans++].start += (int64_t)p->n_ids;
    }
    from->n_spans = 0; /* their media are p's */
    return true;
}

static void append_answer(const struct answer *a, struct answer_part *p, const struct prefill *pre,
                          struct fault *f)
{
    struct ingle_error e;
    struct ingle_bounds b = bounds_of(a, f);
    struct ingle_prompt more = {0};
    if (!pre->n_media)
        append_text(a, p, pre->content.at, pre->content.n, 0, f);
    if (!pre->n_media || f->kind)
        return;
    const ingle_status st =
        ingle_tokenize_media(a->info.llm, pre->content.at, pre->content.n, 0, MARK, pre->medium,
                             pre->n_media, &b, &more, &e);
    if (st)
        say_untokenised(a, st, &b, &e, f);
    else if (!append_spans(p, &more) || !append_ids(p, more.ids, more.n_ids))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt of %zu tokens", more.n_ids);
    ingle_prompt_release(&more);
}

static bool thinks(const struct answer *a)
{
    if (!a->request.thinking_budget)
        return false;
    if (a->request.thinking == THINKING_DEFAULT)
        return a->core->o.thinking;
    return a->request.thinking == THINKING_ON;
}

static bool is_gemma(const struct ingle_model *m)
{
    struct ingle_model_info info;
    ingle_model_info(m, &info);
    return strcmp(info.chat, "gemma4") == 0;
}

/* What the model calls it: DeepSeek V4 knows low, high and max. */
static const char *effort_of(const struct answer *a, bool gemma)
{
    const char *e = a->request.effort.n ? a->request.effort.at : a->core->o.effort;
    if (!e || gemma)
        return NULL;
    return strcmp(e, "medium") == 0 ? "high" : e;
}

/* Continues the rendered prompt with what the assistant has said already.  A thought that is
 * continued stays open, any other text comes after it. */
static void append_prefill(struct answer *a, struct answer_part *p, const struct prefill *pre,
                           bool gemma, struct fault *f)
{
    const bool in_thought = pre->reasoning.n && !pre->content.n;
    if (pre->reasoning.n && !p->open_thought && gemma) {
        append_text(a, p, GEMMA_THOUGHT, sizeof GEMMA_THOUGHT - 1, INGLE_PARSE_SPECIAL, f);
        p->open_thought = true;
    }
    if (p->open_thought && pre->reasoning.n)
        append_text(a, p, pre->reasoning.at, pre->reasoning.n, 0, f);
    if (in_thought)
        return;
    if (p->open_thought) {
        const char *close = gemma ? "\n<channel|>" : "</think>";
        append_text(a, p, close, strlen(close), INGLE_PARSE_SPECIAL, f);
        p->open_thought = false;
    }
    append_answer(a, p, pre, f);
}

/* The media of messages in the order of their parts, each of which has its number. */
static size_t order_media(const struct answer *a, struct json_object *messages,
                          struct ingle_medium **out)
{
    size_t n = 0;
    for (size_t i = 0; i < json_object_array_length(messages); i++) {
        struct json_object *m = json_object_array_get_idx(messages, i);
        struct json_object *content =
            json_object_is_type(m, json_type_object) ? request_get(m, "content") : NULL;
        for (size_t k = 0; json_object_is_type(content, json_type_array) &&
                           k < json_object_array_length(content);
             k++) {
            struct ingle_medium *medium = medium_of(a, json_object_array_get_idx(content, k));
            if (medium && n < MEDIUM_MOST)
                out[n++] = medium;
        }
    }
    return n;
}

/* Takes what a rendered prompt has. */
static void take_prompt(struct answer_part *p, struct ingle_prompt *prompt)
{
    p->ids = prompt->ids;
    p->n_ids = prompt->n_ids;
    p->span = prompt->span;
    p->n_spans = prompt->n_spans;
    p->open_thought = prompt->open_thought;
    prompt->ids = NULL;
    prompt->span = NULL;
    prompt->n_spans = 0;
    ingle_prompt_release(prompt);
}

/* messages, also as text, and what ingle_chat_render() makes of it. */
static void render(struct answer *a, struct answer_part *p, struct json_object *list,
                   const struct prefill *pre, struct fault *f)
{
    const struct str *messages = &a->request.messages;
    struct ingle_medium *medium[MEDIUM_MOST];
    const size_t n_media = a->medium ? order_media(a, list, medium) : 0;
    const bool gemma = is_gemma(a->info.llm);
    const bool tools = a->request.tools.n && a->request.tool_choice != TOOLS_NONE;
    struct ingle_bounds bounds = bounds_of(a, f);
    const struct ingle_chat c = {
        .bounds = &bounds,
        .messages = messages->at,
        .n_messages = messages->n,
        .tools = tools ? a->request.tools.at : NULL,
        .n_tools = tools ? a->request.tools.n : 0,
        .thinking = pre->there ? pre->reasoning.n != 0 : thinks(a),
        .preserve_thinking = a->request.preserve_thinking || a->core->o.preserve_thinking,
        .no_generation_prompt = a->request.no_generation_prompt && !pre->there,
        .effort = effort_of(a, gemma),
        .developer_own = a->core->o.developer_own,
        .media = medium,
        .n_media = n_media,
    };
    struct ingle_prompt prompt = {0};
    struct ingle_error e;
    const ingle_status st = ingle_chat_render(a->info.llm, &c, &prompt, &e);
    if (st) {
        say_untokenised(a, st, &bounds, &e, f);
        return;
    }
    take_prompt(p, &prompt);
    if (pre->there)
        append_prefill(a, p, pre, gemma, f);
    /* A constraint would forbid the thought that the model may open by itself. */
    const bool later = a->request.has_grammar || a->request.tool_choice == TOOLS_REQUIRED ||
                       a->request.tool_choice == TOOLS_NAMED;
    if (later && c.thinking && !p->open_thought && !pre->there && gemma) {
        append_text(a, p, GEMMA_THOUGHT, sizeof GEMMA_THOUGHT - 1, INGLE_PARSE_SPECIAL, f);
        p->open_thought = true;
    }
}

static void render_chat(struct answer *a, struct answer_part *p, struct fault *f)
{
    struct json_object *messages = NULL;
    struct prefill pre = {0};
    struct err err;
    str_init(&pre.content);
    str_init(&pre.reasoning);
    const struct json_limits limits = {.stop = request_has_ended, .arg = f};
    const ingle_status st =
        json_parse(a->request.messages.at, a->request.messages.n, &limits, &messages, &err);
    if (st || !json_object_is_type(messages, json_type_array)) {
        request_fault(f, FAULT_REQUEST, "messages", "'messages': %s", st ? err.msg : "no array");
        json_object_put(messages);
        return;
    }
    if (!a->request.no_prefill)
        take_prefill(a, messages, &pre, f);
    if (pre.there && !f->kind) {
        str_clear(&a->request.messages);
        request_add_value(&a->request.messages, messages);
    }
    if (!str_ok(&pre.content) || !str_ok(&pre.reasoning) || !str_ok(&a->request.messages))
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
    if (!f->kind)
        render(a, p, messages, &pre, f);
    str_release(&pre.content);
    str_release(&pre.reasoning);
    json_object_put(messages);
}

static void check_ids(const struct answer *a, const struct request_prompt *q, struct fault *f)
{
    const int64_t n_vocab = a->core->o.n_vocab;
    for (size_t i = 0; i < q->n_ids; i++)
        if (q->ids[i] < 0 || q->ids[i] >= n_vocab) {
            request_fault(f, FAULT_REQUEST, "prompt",
                          "'prompt' has token %d at %zu, outside the vocabulary of %lld", q->ids[i],
                          i, (long long)n_vocab);
            return;
        }
}

/* A text with markers for its media. */
static void append_media(struct answer *a, struct answer_part *p, const struct request_prompt *q,
                         struct fault *f)
{
    struct ingle_error e;
    struct ingle_bounds b = bounds_of(a, f);
    struct ingle_prompt prompt = {0};
    if (f->kind || !a->medium)
        return;
    const ingle_status st = ingle_tokenize_media(
        a->info.llm, q->text.at, q->text.n, INGLE_PARSE_SPECIAL, MEDIUM_MARKER,
        a->medium + q->first_medium, q->n_media, &b, &prompt, &e);
    if (st)
        say_untokenised(a, st, &b, &e, f);
    else
        take_prompt(p, &prompt);
}

static void read_prompt(struct answer *a, struct answer_part *p, const struct request_prompt *q,
                        struct fault *f)
{
    if (q->is_ids) {
        check_ids(a, q, f);
        if (!f->kind && !append_ids(p, q->ids, q->n_ids))
            request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt of %zu tokens", q->n_ids);
        return;
    }
    if (q->n_media)
        append_media(a, p, q, f);
    else
        append_text(a, p, q->text.at, q->text.n, INGLE_PARSE_SPECIAL, f);
    struct ingle_model_info info;
    ingle_model_info(a->info.llm, &info);
    if (f->kind || !a->request.add_special || !info.add_bos || info.bos < 0 ||
        (p->n_ids && p->ids[0] == info.bos))
        return;
    if (!append_ids(p, &info.bos, 1)) {
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a prompt");
        return;
    }
    memmove(p->ids + 1, p->ids, (p->n_ids - 1) * sizeof *p->ids);
    p->ids[0] = info.bos;
    p->hidden = 1;
    for (size_t i = 0; i < p->n_spans; i++)
        p->span[i].start++;
}

static void shorten(struct answer *a, struct answer_part *p, struct fault *f)
{
    struct ingle_error e;
    if (f->kind || !p->n_ids || !may_shorten(a))
        return;
    const struct ingle_shorten_options o = {.keep = a->request.prompt_keep,
                                            .user = a->request.user.n ? a->request.user.at : NULL,
                                            .span = p->span,
                                            .n_spans = p->n_spans,
                                            .stop = request_has_ended,
                                            .arg = f};
    const ingle_status st =
        ingle_shorten(a->core->o.engine, p->ids, (int64_t)p->n_ids, &o, &p->kept, &e);
    if (st)
        request_fault_from(
            f, st, st == INGLE_ARG ? "prompt_keep" : request_prompt_param(&a->request), e.text);
}

static void check_length(struct answer *a, const struct answer_part *p, struct fault *f)
{
    const int64_t n_ctx = a->core->o.n_ctx, n = answer_part_n(p);
    if (f->kind)
        return;
    if (!n) {
        request_fault(f, FAULT_REQUEST, request_prompt_param(&a->request),
                      "the prompt has no tokens");
        return;
    }
    if (n < n_ctx || (n == n_ctx && a->request.o.max_tokens == 0))
        return;
    int64_t n_soft = 0;
    for (size_t i = 0; i < p->n_spans; i++)
        n_soft += p->span[i].n;
    if (n_soft)
        request_fault(f, FAULT_CONTEXT, request_prompt_param(&a->request),
                      "the prompt has %lld tokens, %lld of them of %zu pictures and sounds, and "
                      "exceeds the available context size of %lld tokens",
                      (long long)n, (long long)n_soft, p->n_spans, (long long)n_ctx);
    else if (p->kept.n)
        request_fault(f, FAULT_CONTEXT, request_prompt_param(&a->request),
                      "the prompt has %zu tokens, is shortened to %lld, and exceeds the available "
                      "context size of %lld tokens",
                      p->n_ids, (long long)n, (long long)n_ctx);
    else
        request_fault(
            f, FAULT_CONTEXT, request_prompt_param(&a->request),
            "the prompt has %lld tokens and exceeds the available context size of %lld tokens%s%s",
            (long long)n, (long long)n_ctx, *p->kept.why ? "; it is not shortened: " : "",
            p->kept.why);
    f->n_prompt = n;
    f->n_ctx = n_ctx;
}

/* Before any prompt: how many tokens they have is known then. */
static void open_media(struct answer *a, struct fault *f)
{
    if (f->kind || !a->request.n_media)
        return;
    a->medium = mem_calloc(a->request.n_media, sizeof *a->medium);
    if (!a->medium)
        request_fault(f, FAULT_ENGINE, NULL, "no memory for the media of a request");
    else
        medium_open_all(&a->request, &a->core->o, a->medium, f);
}

static void release_media(struct answer *a)
{
    for (size_t i = 0; a->medium && i < a->request.n_media; i++)
        ingle_medium_close(a->medium[i]);
    mem_free(a->medium);
    a->medium = NULL;
}

static void make_prompts(struct answer *a, struct fault *f)
{
    open_media(a, f);
    for (int i = 0; i < a->n_parts && !request_has_ended(f); i++) {
        struct answer_part *p = &a->part[i];
        if (p->first) { /* the same prompt once more */
            p->ids = p[-1].ids;
            p->n_ids = p[-1].n_ids;
            p->kept = p[-1].kept;
            p->span = p[-1].span;
            p->n_spans = p[-1].n_spans;
            p->hidden = p[-1].hidden;
            p->open_thought = p[-1].open_thought;
            continue;
        }
        if (a->request.chat)
            render_chat(a, p, f);
        else
            read_prompt(a, p, &a->request.prompt[p->prompt], f);
        shorten(a, p, f);
        check_length(a, p, f);
        a->info.n_prompt += (int64_t)p->n_ids;
        a->info.n_skipped += (int64_t)p->n_ids - answer_part_n(p);
    }
}

/* ---- grammars ---- */

/* A client that has left, or whose time is up, ends the compiler, too. */
static struct ingle_grammar_options grammar_options(const struct answer *a, struct fault *f)
{
    const struct ingle_bounds b = bounds_of(a, f);
    const enum request_unsupported requested = a->request.unsupported;
    return (struct ingle_grammar_options){
        .stop = b.stop,
        .arg = b.arg,
        .drop = requested == UNSUPPORTED_DROP ||
                (requested == UNSUPPORTED_DEFAULT && a->core->o.drop_unsupported)};
}

/* In the reply, and for streams in a header: what of the request is left out, and what the answer
 * is not held to. */
static void send_warnings(struct answer *a)
{
    const struct ingle_grammar *g = a->grammar ? a->grammar : a->calls;
    struct str all;
    size_t n = 0;
    const char *const *of = g ? ingle_grammar_warnings(g, &n) : NULL;
    const struct chat_request *r = &a->request;
    if (n + r->n_warnings == 0 ||
        !(a->warnings = mem_alloc((n + r->n_warnings) * sizeof *a->warnings)))
        return;
    for (size_t i = 0; i < r->n_warnings; i++)
        a->warnings[i] = r->warning[i];
    for (size_t i = 0; i < n; i++)
        a->warnings[r->n_warnings + i] = of[i];
    a->info.warnings = a->warnings;
    a->info.n_warnings = n + r->n_warnings;
    str_init(&all);
    for (size_t i = 0; i < a->info.n_warnings && all.n < 1000; i++)
        str_addf(&all, "%s%.400s", i ? "; " : "", a->info.warnings[i]);
    for (size_t i = 0; i < all.n; i++)
        if (all.at[i] < ' ' || all.at[i] > '~')
            all.at[i] = '?';
    if (all.n && str_ok(&all))
        http_header(a->exchange, "X-Ingle-Warnings", all.at);
    str_release(&all);
}

/* Of an error of a schema, "schema at '#/properties/a/0': 'type' ...", after the field that has
 * the schema: .properties.a[0].type.  What does not fit is left out. */
static void put_place(const char *error, char *param, size_t n)
{
    static const char front[] = "schema at '#";
    const char *at = error + strlen(front), *last = at;
    size_t n_last = 0;
    if (strncmp(error, front, strlen(front)) != 0)
        return;
    for (bool keyword = false;;) {
        const size_t len = strcspn(at + 1, keyword ? "'" : "/'"), k = strlen(param);
        const bool number = !keyword && len && strspn(at + 1, "0123456789") >= len;
        if (!keyword && at[0] == '\'') {
            if (strncmp(at, "': '", 4) != 0)
                return;
            at += 3;
            keyword = true;
            continue;
        }
        if (!at[len + 1] || len + k + 4 > n ||
            (keyword && len == n_last && memcmp(last, at + 1, len) == 0))
            return;
        last = at + 1;
        n_last = len;
        snprintf(param + k, n - k, number ? "[%.*s]" : ".%.*s", (int)len, at + 1);
        at += len + 1;
        if (keyword)
            return;
    }
}

static void open_grammar(struct answer *a, enum ingle_grammar_kind kind, const struct str *text,
                         const char *param, struct fault *f)
{
    struct ingle_error e;
    const bool none = kind == INGLE_GRAMMAR_JSON;
    const struct ingle_grammar_options o = grammar_options(a, f);
    const ingle_status st = ingle_grammar_open_with(
        &a->grammar, a->info.llm, kind, none ? NULL : text->at, none ? 0 : text->n, &o, &e);
    char place[sizeof f->param];
    snprintf(place, sizeof place, "%s", param);
    if (st && kind == INGLE_GRAMMAR_JSON_SCHEMA)
        put_place(e.text, place, sizeof place);
    if (st)
        request_fault_from(f, st, place, e.text);
}

/* Both arrays as one. */
static void add_tools(struct str *s, const struct chat_request *r)
{
    const bool both = r->tools.n && r->late_tools.n;
    str_add(s, r->tools.at, both ? r->tools.n - 1 : r->tools.n);
    str_adds(s, both ? "," : "");
    str_add(s, r->late_tools.at + both, r->late_tools.n - both);
}

/* {"tools":..., "choice":..., "parallel":...: without the end. */
static void put_tools(struct str *s, const struct chat_request *r)
{
    str_adds(s, "{\"tools\":");
    add_tools(s, r);
    str_adds(s, ",\"choice\":");
    if (r->tool_choice == TOOLS_NAMED)
        str_add_json(s, r->tool_name.at, r->tool_name.n);
    else if (r->allowed.n)
        str_add(s, r->allowed.at, r->allowed.n);
    else
        str_adds(s, "\"required\"");
    str_adds(s, r->parallel_calls ? ",\"parallel\":true" : ",\"parallel\":false");
}

static void open_tools_grammar(struct answer *a, struct fault *f)
{
    const struct chat_request *r = &a->request;
    struct str s;
    str_init(&s);
    put_tools(&s, r);
    if (r->tool_choice == TOOLS_AUTO) {
        str_adds(&s, ",\"answer\":");
        if (r->grammar_kind == INGLE_GRAMMAR_JSON)
            str_adds(&s, "true");
        else
            str_add(&s, r->grammar.at, r->grammar.n);
    }
    str_addc(&s, '}');
    a->grammar_calls = true;
    if (str_ok(&s))
        open_grammar(a, INGLE_GRAMMAR_TOOLS, &s, "tools", f); /* the text says which, or "answer" */
    else
        request_fault(f, FAULT_ENGINE, NULL, "no memory for a grammar");
    str_release(&s);
}

/* For calls that the model makes by itself.  Without it, which is reported, they are read as they
 * come. */
static void open_calls_grammar(struct answer *a, struct fault *f)
{
    struct str s;
    str_init(&s);
    put_tools(&s, &a->request);
    str_adds(&s, ",\"behind\":true}");
    const struct ingle_grammar_options o = grammar_options(a, f);
    if (str_ok(&s))
        (void)!ingle_grammar_open_with(&a->calls, a->info.llm, INGLE_GRAMMAR_TOOLS, s.at, s.n, &o,
                                       NULL);
    str_release(&s);
}

/* Tools that the model may or may not call stand beside JSON, which a call cannot be taken for;
 * of other grammars nobody knows what in them would be a call. */
static void make_grammar(struct answer *a, struct fault *f)
{
    const struct chat_request *r = &a->request;
    const bool tools = request_has_tools(r);
    if (f->kind)
        return;
    const bool json = r->grammar_kind == INGLE_GRAMMAR_JSON ||
                      r->grammar_kind == INGLE_GRAMMAR_JSON_SCHEMA;
    const char *param = r->grammar_param ? r->grammar_param : "response_format";
    if (tools && r->tool_choice == TOOLS_AUTO && r->has_grammar && !json)
        request_fault(f, FAULT_REQUEST, param,
                      "'%s' cannot stand beside tools that may be called: JSON can, or tool_choice "
                      "none or required", param);
    else if (tools && (r->tool_choice != TOOLS_AUTO || r->has_grammar))
        open_tools_grammar(a, f);
    else if (r->has_grammar && !tools)
        open_grammar(a, r->grammar_kind, &r->grammar, param, f);
    else if (tools)
        open_calls_grammar(a, f);
    a->grammar_first = a->grammar && !(a->n_parts && a->part[0].open_thought);
    if (!f->kind)
        send_warnings(a);
}

/* The end of a thought as a token; -1: the vocabulary has none. */
static int32_t thought_end(const struct answer *a)
{
    const char *end = is_gemma(a->info.llm) ? "<channel|>" : "</think>";
    return ingle_find_token(a->info.llm, end, strlen(end));
}

static void open_thought_grammar(struct answer *a, struct ingle_grammar **out, const char *text,
                                 struct fault *f)
{
    struct ingle_error e;
    const ingle_status st =
        ingle_grammar_open(out, a->info.llm, INGLE_GRAMMAR_GBNF, text, strlen(text), &e);
    if (st)
        request_fault(f, FAULT_ENGINE, NULL, "a grammar for thoughts: %s", e.text);
}

/* A thought that has used its budget ends: one token.  And where something is to follow, it
 * ends by nothing else: neither with the answer itself, nor in a call. */
static void make_thought(struct answer *a, struct fault *f)
{
    char text[64];
    const int32_t id = thought_end(a);
    if (f->kind || !a->request.chat || id < 0)
        return;
    snprintf(text, sizeof text, "root ::= <[%d]>", id);
    if (a->request.thinking_budget > 0 || a->request.thought_control)
        open_thought_grammar(a, &a->closer, text, f);
    snprintf(text, sizeof text, "root ::= .* <[%d]>", id);
    if (a->grammar && !a->grammar_first && !f->kind)
        open_thought_grammar(a, &a->thought, text, f);
}

/* ---- what is gathered of tokens ---- */

/* What a token takes that is kept for the reply: one with its probability and those of alternatives
 * counts eight times as much as one of which text or number alone is kept. */
enum { PLAIN = 1, PROBABLE = 8 };

/* Of the tokens of all prompts, which the reply repeats for each choice. */
static int64_t echo_weight(const struct answer *a)
{
    const struct chat_request *r = &a->request;
    int64_t n = 0;
    for (int i = 0; i < a->n_parts; i++)
        n += (int64_t)a->part[i].n_ids * a->part[i].n;
    return !r->echo ? 0 : n * (r->logprobs ? PROBABLE * (1 + r->o.n_top) : PLAIN);
}

/* The longest answer that was requested. */
static int64_t requested_tokens(const struct answer *a)
{
    int64_t least = a->core->o.n_ctx;
    for (int i = 0; i < a->n_parts; i++)
        if (answer_part_n(&a->part[i]) < least)
            least = answer_part_n(&a->part[i]);
    const int64_t room = a->core->o.n_ctx - least;
    return a->request.o.max_tokens >= 0 && a->request.o.max_tokens < room ? a->request.o.max_tokens
                                                                      : room;
}

/* A request keeps what it reports of tokens until its end, so that has a limit.  Where nobody said
 * how long the answers may be, they are as long as it allows. */
static void bound_gathered(struct answer *a, struct fault *f)
{
    const struct chat_request *r = &a->request;
    const int64_t most = a->core->o.max_logprobs * PROBABLE;
    const int64_t each = r->logprobs ? PROBABLE * (1 + r->o.n_top) : r->keep_tokens ? PLAIN : 0;
    const int64_t before = echo_weight(a), per_token = each * a->n_runs;
    a->most_tokens = -1;
    if (f->kind || !a->core->o.max_logprobs || (!before && !each))
        return;
    const int64_t left = before > most ? -1 : each ? (most - before) / per_token : INT64_MAX;
    if (left < (r->o.max_tokens >= 0 ? requested_tokens(a) : each ? 1 : 0))
        request_fault(f, FAULT_REQUEST,
                      r->logprobs ? "logprobs"
                      : r->echo   ? "echo"
                                  : "max_tokens",
                      "%d choices of up to %lld tokens with %d alternatives%s are more than is "
                      "kept of a request: "
                      "%lld tokens with alternatives, or %d times as many without "
                      "(--limit logprobs)",
                      a->n_runs, (long long)requested_tokens(a), r->o.n_top,
                      r->echo ? " and the prompts" : "", (long long)a->core->o.max_logprobs,
                      PROBABLE);
    else if (each && r->o.max_tokens < 0)
        a->most_tokens = left;
}

/* ---- all of it ---- */

static void init_run(struct answer *a, struct answer_part *p, int k)
{
    struct answer_run *r = &p->run[k];
    r->a = a;
    r->part = p;
    r->local = k;
    r->c.index = (int)(r - a->run);
    r->c.prompt = p->prompt;
    str_init(&r->c.content);
    str_init(&r->c.reasoning);
    str_init(&r->c.bytes);
}

static void init_parts(struct answer *a, int most)
{
    for (int i = 0, run = 0, left = 0; i < a->n_parts; i++) {
        struct answer_part *p = &a->part[i];
        left = left ? left : a->n_per_prompt;
        p->a = a;
        p->n = left < most ? left : most;
        p->first = a->n_per_prompt - left;
        p->prompt = run / a->n_per_prompt;
        p->run = a->run + run;
        str_init(&p->echo.bytes);
        for (int k = 0; k < p->n; k++)
            init_run(a, p, k);
        left -= p->n;
        run += p->n;
    }
}

static void make_parts(struct answer *a, struct fault *f)
{
    const int n_prompts = a->request.chat ? 1 : (int)a->request.n_prompts;
    const int most = a->core->o.max_running > 0 ? a->core->o.max_running : REQUEST_MAX_N;
    a->n_per_prompt = a->request.best_of > a->request.o.n ? a->request.best_of : a->request.o.n;
    const int n_parts = n_prompts * ((a->n_per_prompt + most - 1) / most);
    const int n_runs = n_prompts * a->n_per_prompt; /* at most 64 x 16 */
    if (f->kind)
        return;
    if (!n_prompts) {
        request_fault(f, FAULT_REQUEST, "prompt", "there is no prompt");
        return;
    }
    a->part = mem_calloc((size_t)n_parts, sizeof *a->part);
    a->run = mem_calloc((size_t)n_runs, sizeof *a->run);
    a->shown = mem_calloc((size_t)n_runs, sizeof *a->shown);
    if (!a->part || !a->run || !a->shown) {
        request_fault(f, FAULT_ENGINE, NULL, "no memory for %d answers", n_runs);
        return;
    }
    a->n_parts = n_parts;
    a->n_runs = n_runs;
    init_parts(a, most);
}

/* For those who want to see what the model sees. */
static void keep_prompt_text(struct answer *a)
{
    const struct answer_part *p = a->part;
    char *text;
    size_t n;
    if (ingle_detokenize(a->info.llm, p->ids, p->n_ids, true, &text, &n, NULL))
        return;
    str_add(&a->prompt_text, text, n);
    ingle_free(text);
    a->info.prompt = a->prompt_text.at;
}

void answer_prepare(struct answer *a, struct fault *f)
{
    make_parts(a, f);
    make_prompts(a, f);
    bound_gathered(a, f);
    make_grammar(a, f);
    make_thought(a, f);
    if ((a->core->o.verbose || a->request.verbose) && !f->kind)
        keep_prompt_text(a);
    for (int i = 0; i < a->n_runs && request_go_on(f); i++) {
        struct ingle_error e;
        a->run[i].c.n_prompt = (int64_t)a->run[i].part->n_ids;
        const ingle_status st = answer_open_reader(&a->run[i], &e);
        if (st)
            request_fault_from(f, st, NULL, e.text);
    }
}

void answer_check_grammar(const struct answer_core *c, struct http_exchange *x,
                          const struct chat_request *r, struct fault *f)
{
    struct answer a = {.core = (struct answer_core *)(uintptr_t)c, .exchange = x, .request = *r};
    a.info.llm = c->o.model;
    make_grammar(&a, f);
    ingle_grammar_close(a.grammar);
    ingle_grammar_close(a.calls);
}

void answer_release_parts(struct answer *a)
{
    for (int i = 0; i < a->n_parts; i++) {
        struct answer_part *p = &a->part[i];
        if (!p->first) {
            ingle_free(p->ids);
            ingle_shortened_release(&p->kept);
            for (size_t k = 0; k < p->n_spans; k++)
                ingle_medium_close(p->span[k].medium);
            ingle_free(p->span);
        }
        mem_free(p->echo.token);
        mem_free(p->echo.top);
        str_release(&p->echo.bytes);
    }
    for (int i = 0; i < a->n_runs; i++)
        answer_release_run(&a->run[i]);
    mem_free(a->part);
    mem_free(a->run);
    mem_free(a->shown);
    release_media(a);
}

void answer_reply_count(const struct answer_core *c, struct http_exchange *x,
                        const struct chat_request *r, const struct dialect *d, void *state,
                        const char *more, struct fault *f)
{
    struct str out;
    str_init(&out);
    const int64_t n = f->kind ? -1 : answer_render(c, x, r, NULL, f);
    if (f->kind)
        d->error(state, f, false, &out);
    else
        str_addf(&out, "{%s\"input_tokens\":%lld}", more, (long long)n);
    http_reply(x, f->kind ? f->status : 200, "application/json", out.at, out.n);
    str_release(&out);
}

void answer_each_prompt(const struct answer_core *c, struct http_exchange *x,
                        const struct chat_request *r, bool any_length, answer_prompt_fn *fn,
                        void *arg, struct fault *f)
{
    struct answer a = {
        .core = (struct answer_core *)(uintptr_t)c, .exchange = x, .counted = true, .request = *r};
    a.info.llm = c->o.model;
    str_init(&a.out);
    /* A copy of the only member that rendering changes. */
    str_init(&a.request.messages);
    str_add(&a.request.messages, r->messages.at, r->messages.n);
    a.request.o.n = 1;
    a.request.best_of = 0;
    answer_check_model(c, r, f);
    make_parts(&a, f);
    make_prompts(&a, f);
    if (f->kind == FAULT_CONTEXT && any_length)
        f->kind = FAULT_NONE;
    for (int i = 0; i < a.n_parts && request_go_on(f); i++)
        if (!a.part[i].first)
            fn(arg, a.part[i].ids, a.part[i].n_ids);
    answer_release_parts(&a);
    str_release(&a.request.messages);
}

/* What answer_render() gathers. */
struct rendered {
    const struct answer_core *core;
    struct str *text; /* of the first prompt, or NULL */
    struct fault *f;
    int64_t n_tokens;
    bool again;
};

static void add_rendered(void *arg, const int32_t *ids, size_t n)
{
    struct rendered *q = arg;
    for (size_t i = 0; q->text && !q->again && i < n && request_go_on(q->f); i++)
        answer_token_bytes(q->core->o.model, ids[i], q->text);
    q->again = true;
    q->n_tokens += (int64_t)n;
}

int64_t answer_render(const struct answer_core *c, struct http_exchange *x,
                      const struct chat_request *r, struct str *text, struct fault *f)
{
    struct rendered q = {.core = c, .text = text, .f = f};
    answer_each_prompt(c, x, r, true, add_rendered, &q, f);
    return f->kind ? -1 : q.n_tokens;
}
