/* server_dialect - plays an answer to a dialect and reads the events that come of it. */
#ifndef INGLE_TESTS_SERVER_DIALECT_H
#define INGLE_TESTS_SERVER_DIALECT_H

#include "unit/unit.h"

#include "base/json.h"
#include "base/mem.h"
#include "server/dialect.h"
#include <string.h>

/* One piece of an answer: 't' content, 'r' reasoning, 'c' a call "name{arguments}". */
struct piece {
    char kind;
    const char *text;
};

struct play {
    struct answer_info info;
    struct answer_choice choice;
    struct str out;
};

static inline void play_init(struct play *p)
{
    *p = (struct play){.info = {.model = "nano", .fingerprint = "b1", .created = 1000,
                                .id = "0123456789abcdef0123456789abcdef", .n_prompt = 20,
                                .n_ctx = 100}};
    str_init(&p->choice.content);
    str_init(&p->choice.reasoning);
    str_init(&p->choice.bytes);
    str_init(&p->out);
}

static inline void play_release(struct play *p)
{
    for (size_t i = 0; i < p->choice.n_calls; i++) {
        str_release(&p->choice.call[i].name);
        str_release(&p->choice.call[i].arguments);
    }
    mem_free(p->choice.call);
    str_release(&p->choice.content);
    str_release(&p->choice.reasoning);
    str_release(&p->choice.bytes);
    str_release(&p->out);
}

static inline void play_call(struct play *p, const struct dialect *d, void *state,
                             const char *text, bool stream)
{
    struct answer_choice *c = &p->choice;
    const size_t i = c->n_calls, n_name = strcspn(text, "{"), n = strlen(text + n_name);
    assert_true(mem_grow(&c->call, &c->cap_calls, i + 1, sizeof *c->call));
    struct answer_call *k = &c->call[c->n_calls++];
    memset(k, 0, sizeof *k);
    strcpy(k->id, "call_00000000000000000000000");
    k->id[27] = (char)('0' + i);
    str_init(&k->name);
    str_init(&k->arguments);
    str_add(&k->name, text, n_name);
    if (stream)
        d->call_begin(state, c, i, &p->out);
    str_add(&k->arguments, text + n_name, n);
    if (stream) {
        d->call_arguments(state, c, i, text + n_name, n, &p->out);
        d->call_end(state, c, i, &p->out);
    }
}

/* The pieces up to one with kind 0, then the end. */
static inline void play(struct play *p, const struct dialect *d, void *state, bool stream,
                        const struct piece *piece, enum answer_finish finish)
{
    struct answer_choice *c = &p->choice;
    if (stream)
        d->begin(state, &p->info, &p->out);
    for (; piece->kind; piece++) {
        const enum answer_text kind = piece->kind == 't' ? ANSWER_CONTENT : ANSWER_REASONING;
        if (piece->kind == 'c') {
            play_call(p, d, state, piece->text, stream);
            continue;
        }
        str_adds(kind == ANSWER_CONTENT ? &c->content : &c->reasoning, piece->text);
        if (stream)
            d->text(state, c, kind, piece->text, strlen(piece->text), 0, &p->out);
    }
    c->finish = finish;
    const struct answer_result r = {.info = &p->info, .choice = c, .n_choices = 1,
                                    .usage = {.reuse = {.kept = 5}, .n_prompt = 20,
                                              .n_generated = 7},
                                    .n_reasoning = 3};
    if (stream) {
        d->end(state, c, &p->out);
        d->done(state, &r, &p->out);
    } else {
        d->whole(state, &r, &p->out);
    }
    assert_true(str_ok(&p->out));
}

/* Event i of a stream: its name in *name, its data; ended with json_object_put().  NULL:
 * there are no more. */
static inline struct json_object *event_at(const struct str *out, size_t i, char name[64])
{
    const char *at = out->at;
    while (i--) {
        const char *end = strstr(at, "\n\n");
        if (!end)
            return NULL;
        at = end + 2;
    }
    if (!*at)
        return NULL;
    struct json_object *o = NULL;
    struct err err = {0};
    assert_memory_equal(at, "event: ", 7);
    const char *line = strchr(at, '\n');
    assert_non_null(line);
    assert_true(line - at - 7 < 63);
    memcpy(name, at + 7, (size_t)(line - at - 7));
    name[line - at - 7] = 0;
    assert_memory_equal(line, "\ndata: ", 7);
    const char *end = strstr(line, "\n\n");
    assert_non_null(end);
    if (json_parse(line + 7, (size_t)(end - line - 7), NULL, &o, &err) != INGLE_OK)
        fail_msg("%s in %.*s", err.msg, (int)(end - line), line);
    return o;
}

static inline const char *text_at(struct json_object *o, const char *key)
{
    struct json_object *v = NULL;
    assert_true(json_object_object_get_ex(o, key, &v));
    return json_object_get_string(v);
}

/* The names of all events, with spaces between; each equals its "type". */
static inline void event_names(const struct str *out, struct str *names)
{
    char name[64];
    struct json_object *o;
    str_init(names);
    for (size_t i = 0; (o = event_at(out, i, name)); i++) {
        assert_string_equal(text_at(o, "type"), name);
        str_adds(names, i ? " " : "");
        str_adds(names, name);
        json_object_put(o);
    }
}

#endif
