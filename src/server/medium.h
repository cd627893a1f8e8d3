/*
 * medium - pictures and sounds in requests, in the words of every vendor.
 *
 * A part that the model is shown becomes an entry of chat_request.medium: its bytes, or an address
 * to fetch them from.  In the messages stands {"type":"image","medium":K} for it.  While a dialect
 * gathers text, a mark of bytes that no text has stands for the part: medium_put_content() makes
 * parts of it.
 */
#ifndef INGLE_SERVER_MEDIUM_H
#define INGLE_SERVER_MEDIUM_H

#include "server/answer.h"
#include "server/view.h"

enum { MEDIUM_MOST = 16 };          /* in a request */
#define MEDIUM_MARKER "<__media__>" /* in a prompt of /completion, llama.cpp's */

/* Whether the model is shown a part that part_read() calls PART_MEDIUM, or a string: a file in
 * base64, as Ollama's images are. */
bool medium_is_shown(const struct answer_options *o, struct json_object *part);
/* What it reads, for faults: "text and pictures, no sound". */
const char *medium_readable(const struct answer_options *o);

/* Where a part stands, for errors: numbers from 0. */
#define MEDIUM_UNNUMBERED SIZE_MAX /* there is one of them: "system" */
struct medium_place {
    const char *of, *part; /* "message", "part" */
    size_t i, k;
    const char *param; /* "messages[3].content[1]" */
};
/* Adds the part to r; its number in r->medium, or -1 and a fault. */
int medium_read(struct chat_request *r, struct json_object *part, const struct medium_place *at,
                const struct answer_options *o, struct fault *f);

/* Appends the part of the messages for r->medium[i], or its mark in a text. */
void medium_put_part(struct str *out, const struct chat_request *r, int i);
void medium_put_mark(struct str *out, const struct chat_request *r, int i);
/* Whether text is joined to what is in s without a break: there is a mark on one of the sides. */
bool medium_joins(const struct str *s, struct view t);
/* Appends the value of a content: a string, or with marks a list of parts. */
void medium_put_content(struct str *out, struct view t);

/* The bytes of a file: base64 of both alphabets, with or without padding and white space. */
bool medium_add_base64(struct str *out, struct view t, struct fault *f, const char *param,
                       const char *where);
/* Of a "data:" URL. */
bool medium_add_data_url(struct str *out, struct view t, struct fault *f, const char *param,
                         const char *where);

/* The media of r, decoded: [r->n_media], the caller closes them, also on a fault (NULL: not
 * opened). */
void medium_open_all(struct chat_request *r, const struct answer_options *o,
                     struct ingle_medium **out, struct fault *f);

#endif
