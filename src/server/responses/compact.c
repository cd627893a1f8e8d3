/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compact - POST /responses/compact: the model summarises a conversation, and the reply is an item
 * that stands for all of it.
 *
 * The summary is sealed in the item as thoughts are: clients hand it back unread.
 */
#include "server/responses/responses.h"

#include "server/answer.h"
#include "server/serve.h"
#include "server/thought.h"
#include "server/write.h"

/* Where the request says nothing: enough for a summary, and an end for a model that finds none. */
enum { MOST_TOKENS = 8192 };

#define TASK                                                                                       \
    "Summarise this conversation so that another assistant can continue it without reading it. "   \
    "Keep what was asked "                                                                         \
    "for and which rules were set, what was done and decided, names, paths, numbers and results "  \
    "that are still "                                                                              \
    "needed, and what remains to be done. Reply with the summary only, and call no tool."

#define FRONT "Summary of the conversation so far:\n\n"

bool responses_open_compaction(struct json_object *item, struct str *out)
{
    str_adds(out, FRONT);
    return thought_open(view_member(item, "encrypted_content"), out);
}

void responses_request_compaction(struct responses_reader *d, struct json_object *body,
                                  struct chat_request *r)
{
    static const char *const never[] = {"stream", "background"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (json_object_get_boolean(view_get(body, never[i])))
            request_fault(d->fault, FAULT_REQUEST, never[i],
                          "'%s' is not for /responses/compact: the reply is whole", never[i]);
    if (r->has_grammar)
        report(d->sink, INGLE_REPORT_NOTE, "field", "text.format", "left out: a summary is text");
    r->has_grammar = false;
    if (r->o.max_tokens < 0)
        r->o.max_tokens = MOST_TOKENS;
    d->state->store = d->state->conversations = NULL;
    convert_user(&d->convert, VIEW(TASK));
}

static void put_items(struct str *out, const struct responses_items *items)
{
    for (size_t i = 0; i < items->n; i++)
        write_raw(out, items->at[i]->text, items->at[i]->n);
}

static void put_compaction(struct str *out, const char *id, struct view summary)
{
    struct str seal;
    str_init(&seal);
    thought_seal(&seal, summary, true);
    write_open(out, '{');
    str_addf(out, "\"id\":\"cmp_%s\"", id);
    write_member(out, "type", "compaction");
    write_member_string(out, "encrypted_content", seal.at, seal.n);
    write_close(out, '}');
    out->failed |= seal.failed;
    str_release(&seal);
}

/* Without a summary the conversation itself is the reply: the client puts it in place of what it
 * has. */
static void on_whole(void *state, const struct answer_result *r, struct str *out)
{
    const struct responses *s = state;
    const struct answer_choice *c = &r->choice[0];
    const struct str *text = c->content.n ? &c->content : &c->reasoning;
    const char *warning[REQUEST_MAX_WARNINGS + 1];
    size_t n = 0;
    for (; n < r->info->n_warnings && n < REQUEST_MAX_WARNINGS; n++)
        warning[n] = r->info->warnings[n];
    if (!text->n)
        warning[n++] = "the model wrote no summary: the items are those of the request";
    else if (c->finish == ANSWER_LENGTH)
        warning[n++] = "the summary is cut: tokens ran out (max_output_tokens)";
    str_addf(out, "{\"id\":\"resp_%s\",\"object\":\"response.compaction\",\"created_at\":%lld",
             r->info->id, (long long)r->info->created);
    write_member(out, "model", r->info->model);
    write_member_texts(out, "warnings", warning, n);
    write_key(out, "output");
    write_open(out, '[');
    if (text->n)
        put_compaction(out, r->info->id, view_str(text));
    else
        put_items(out, &s->items);
    write_close(out, ']');
    responses_put_usage(out, r);
    str_addc(out, '}');
}

static void on_error(void *state, const struct fault *f, bool in_stream, struct str *out)
{
    (void)state;
    (void)in_stream;
    openai_put_fault(out, f);
}

static void on_free(void *state) { responses_free(state); }

const struct dialect responses_compact_dialect = {
    .name = "openai-compact",
    .whole = on_whole,
    .error = on_error,
    .free = on_free,
};
