/*
 * anthropic - Anthropic's Messages: /v1/messages as Claude Code and the anthropic package
 * speak it.  anthropic_read.c turns a request into a chat_request, anthropic_write.c is the
 * dialect that turns an answer into content blocks and events again.
 */
#ifndef INGLE_SERVER_ANTHROPIC_ANTHROPIC_H
#define INGLE_SERVER_ANTHROPIC_ANTHROPIC_H

#include "base/report.h"
#include "server/answer.h"
#include "server/convert.h"
#include "server/dialect.h"

enum anthropic_block {
    ANTHROPIC_NONE,
    ANTHROPIC_THINKING,
    ANTHROPIC_TEXT,
    ANTHROPIC_TOOL_USE
};

/* The dialect's state of one request. */
struct anthropic {
    struct str request_id;
    bool omit; /* thoughts are not shown; their seal carries them */
    bool begun;
    enum anthropic_block open;
    int64_t index;   /* of the open block, or of the next one */
    struct str text; /* of the open thinking block */
};

/* Reads a body.  *out is NULL only when memory ran out; *r is initialised.  sink may be
 * NULL. */
void anthropic_read(struct json_object *body, const struct answer_options *o,
                    const char *request_id, const struct report_sink *sink, struct chat_request *r,
                    struct anthropic **out, struct fault *fault);
void anthropic_free(struct anthropic *s);

/* {"type":"error","error":{"type","message"},"request_id"} */
void anthropic_put_error(struct str *out, const struct fault *f, const char *request_id);

extern const struct dialect anthropic_dialect;

#endif
