/*
 * parse_loose - calls that models spell otherwise than their format says: JSON's quotes, keys in
 * quotes, names that come twice, commas and braces too many or too few, fences of Markdown.
 *
 * Read here is only what the strict parsers refuse, and only when its end is known.
 */
#ifndef INGLE_TEXT_PARSE_LOOSE_H
#define INGLE_TEXT_PARSE_LOOSE_H

#include "text/parse.h"

enum text_loose {
    TEXT_LOOSE_BAD,
    TEXT_LOOSE_PART, /* so far well, but there is no more of it */
    TEXT_LOOSE_DONE
};

/* The n bytes between <|tool_call> and <tool_call|>: call:NAME{...}, NAME{...}, or an object that
 * names the call and its arguments.  Adds to name and json, which are empty; what is there of them
 * after PART is a beginning.  whole: nothing was cut off, so that closers may be missing. */
enum text_loose text_loose_gemma4(const char *s, size_t n, bool whole, struct str *name,
                                  struct str *json);
/* The same of a JSON object alone, perhaps in a fence, with the arguments. */
enum text_loose text_loose_object(const char *s, size_t n, bool whole, struct str *json);
/* Whether what comes after <|tool_call> may be a call that text_loose_gemma4() reads. */
enum text_match text_loose_gemma4_begins(const char *s, size_t n);

/* Text of DeepSeek V4 that begins with <DSML>: its calls are reported, what else stands between and
 * after them is content.  False: there is no call in it, not even a beginning that was cut, and
 * nothing was reported. */
bool text_loose_deepseek4(struct text_parser *p, const char *s, size_t n, bool whole);
/* Whether what comes after <DSML> may begin such calls. */
enum text_match text_loose_deepseek4_begins(const char *s, size_t n);

#endif
