/*
 * template - what the chat renderers share: a writer that keeps the first error and knows
 * where it is, reading of JSON fields, and text as Python and JSON print it.
 */
#ifndef INGLE_TEXT_TEMPLATE_H
#define INGLE_TEXT_TEMPLATE_H

#include "text/chat.h"

/* Values may nest this deep inside a message or tool. */
#define TEXT_DEPTH 100

struct text_writer {
    struct text_prompt *out;
    struct err *err;
    ingle_status status; /* the first failure; later writes do not matter */
    char where[96];      /* "message 3: tool call 1" */
    bool (*stop)(void *arg); /* NULL, or asked by text_at() now and then */
    void *arg;
    uint32_t n_at;
};

void text_writer_init(struct text_writer *w, struct text_prompt *out, struct err *err);
/* The status of the whole; a failed prompt is cleared. */
MUST_CHECK ingle_status text_writer_end(struct text_writer *w);

ATTR_PRINTF(2, 3) void text_at(struct text_writer *w, const char *fmt, ...);
/* Records "WHERE: text" unless something failed before.  Always false. */
ATTR_PRINTF(2, 3) bool text_fail(struct text_writer *w, const char *fmt, ...);
bool text_fail_nomem(struct text_writer *w);

struct text_view {
    const char *at; /* NULL: the field is missing or null */
    size_t n;
};
#define TEXT_LITERAL(s) ((struct text_view){s, sizeof(s) - 1})

bool text_is(struct text_view v, const char *s);
/* Without white space at both ends, as Python's str.strip() does. */
struct text_view text_trim(struct text_view v);
/* Where part begins in v from byte i on, or v.n. */
size_t text_seek(struct text_view v, size_t i, const char *part);

void text_put(struct text_writer *w, struct text_view v);
void text_puts(struct text_writer *w, const char *s);
/* The spelling of a special token, written by the template. */
void text_mark(struct text_writer *w, const char *marker);
/* An image or other medium: a marker that stands for n_media content. */
void text_mark_medium(struct text_writer *w, const char *marker, struct json_object *part);
/* A number as Python prints it. */
void text_put_number(struct text_writer *w, struct json_object *v);
/* A JSON value as Python's json.dumps(ensure_ascii=False) prints it. */
void text_put_json(struct text_writer *w, struct json_object *v, int depth);

struct text_view text_string(struct json_object *v);
/* The member, or NULL when it is missing or null. */
struct json_object *text_get(struct json_object *o, const char *key);
/* The member, NULL when it is missing or null; a failure (and NULL) if of another type. */
struct json_object *text_get_type(struct text_writer *w, struct json_object *o, const char *key,
                                  enum json_type type);
struct text_view text_get_string(struct text_writer *w, struct json_object *o, const char *key);
/* A part of a content list that holds a thought: thinking, reasoning, redacted_thinking. */
bool text_is_thought(struct json_object *part);
/* The thought of a message, appended: the first of its fields first, second and thinking that is
 * not empty, else the texts of its parts, a line each.  What is redacted has no text. */
void text_add_thought(struct text_writer *w, struct json_object *message, const char *first,
                      const char *second, struct str *out);
/* "a string", "an object", ... */
const char *text_type_name(struct json_object *v);
/* Python's truth: false for null, false, 0, "", [] and {}. */
bool text_truth(struct json_object *v);

/* The members of an object by lower-cased key, as Jinja's dictsort orders them. */
struct text_pair {
    const char *key, *low;
    struct json_object *value;
    size_t i;
};
struct text_sorted {
    struct text_pair *at;
    size_t n;
    char *low;
};
MUST_CHECK bool text_sort(struct text_writer *w, struct json_object *o, struct text_sorted *out);
void text_sorted_release(struct text_sorted *s);

/* The renderers. */
void text_render_gemma4(struct text_writer *w, struct json_object *messages,
                        struct json_object *tools, const struct text_chat_options *o);
void text_render_deepseek4(struct text_writer *w, struct json_object *messages,
                           struct json_object *tools, const struct text_chat_options *o);

#endif
