/*
 * chat - a conversation to a prompt, and model output back to a message.
 *
 * One fixed renderer and parser per family, written in C.  Messages and tools come as JSON
 * in the form of OpenAI chat completions (role, content as string or parts, tool_calls,
 * tool_call_id, reasoning / reasoning_content, tool_responses).
 */
#ifndef INGLE_TEXT_CHAT_H
#define INGLE_TEXT_CHAT_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/tokenizer.h"
#include <stdbool.h>

enum text_chat_family { TEXT_CHAT_GEMMA4, TEXT_CHAT_DEEPSEEK_V4 };

struct text_chat_options {
    bool thinking;               /* enable_thinking */
    bool preserve_thinking;
    bool add_generation_prompt;
    bool large;                  /* Gemma 4: 12B, 26B-A4B, 31B (an empty thought suppresses thinking) */
    const char *effort;          /* DeepSeek V4 reasoning effort, or NULL */
};

/* A prompt with the ranges that the template wrote, in which special tokens count. */
struct text_prompt {
    struct str text;
    struct text_range *special;
    size_t n_special, cap_special;
};
void text_prompt_init(struct text_prompt *p);
void text_prompt_release(struct text_prompt *p);

/* messages: JSON array; tools: JSON array or NULL.  Errors name the message and field. */
MUST_CHECK ingle_status text_chat_render(enum text_chat_family family, struct json_object *messages, struct json_object *tools, const struct text_chat_options *o, struct text_prompt *out, struct err *err);

/* Tells whether a Jinja template from a file is one whose rules the renderer follows.
 * Returns a short name ("gemma4 2026-07-09 large") or NULL for an unknown one. */
const char *text_chat_template_name(enum text_chat_family family, const char *jinja, size_t n);

/* The parser: fed with chunks of any size, gives content, reasoning and tool calls. */
struct text_parser;

enum text_event_kind { TEXT_EVENT_CONTENT, TEXT_EVENT_REASONING, TEXT_EVENT_CALL_BEGIN, TEXT_EVENT_CALL_ARGUMENTS, TEXT_EVENT_CALL_END };

/* bytes: a piece of content, reasoning or arguments (JSON text); for CALL_BEGIN the name. */
typedef void text_event_fn(void *arg, enum text_event_kind kind, int call, const char *bytes, size_t n);

struct text_parser_options {
    bool tools_enabled;
    bool open_thought;  /* the prompt ended inside a thought */
};

MUST_CHECK ingle_status text_parser_create(struct text_parser **out, enum text_chat_family family, const struct text_parser_options *o, text_event_fn *fn, void *arg, struct err *err);
MUST_CHECK ingle_status text_parser_add(struct text_parser *p, const char *bytes, size_t n, struct err *err);
/* end: "turn", "length", ... as in the vector files; flushes what is held. */
MUST_CHECK ingle_status text_parser_end(struct text_parser *p, const char *end, struct err *err);
/* The whole message so far as JSON: {"content", "reasoning_content", "tool_calls"}. */
MUST_CHECK ingle_status text_parser_message(const struct text_parser *p, struct json_object **out, struct err *err);
void text_parser_free(struct text_parser *p);

#endif
