/*
 * part - one part of a message's content, in the words of every vendor.
 *
 * Contents come as strings, parts, lists of both, or nothing.  What a part says is text or a
 * thought of the assistant's; media are what this version cannot show, and a note stands for them
 * where the client can do nothing about it: in results of tools and in turns that have been
 * answered.
 */
#ifndef INGLE_SERVER_PART_H
#define INGLE_SERVER_PART_H

#include "server/view.h"

enum part {
    PART_TEXT,
    PART_THOUGHT,
    PART_NONE,   /* null, or a thought that only its provider can read */
    PART_BROKEN, /* a part of text without any */
    PART_MEDIUM,
    /* its type is a value, but no string, or it is neither a string nor an object: no client has
     * such a history */
    PART_MISTYPED,
    PART_UNKNOWN
};
/* What stands for a medium. */
#define PART_NOTE "[an image or file that cannot be shown]"
/* The types that a client may send, for faults. */
#define PART_TYPES "text, input_text, output_text, refusal, thinking or reasoning"

/* Those of Anthropic's blocks that hold more than a text. */
bool part_is_block(struct view type);
#define PART_BLOCKS                                                                                \
    "text, image, document, search_result, tool_result, tool_reference, tool_addition or "         \
    "tool_removal"

/* Appends what the part says (of PART_TEXT and PART_THOUGHT). */
enum part part_read(struct json_object *part, struct str *text);
/* Whether the type of a part, tool or call is there and no string, or it is a number, a boolean or
 * a list. */
bool part_is_mistyped(struct json_object *part);
/* A list of parts, a part, or a string: no value of another kind, which only its JSON text can
 * show. */
bool part_is_content(struct json_object *content);

#endif
