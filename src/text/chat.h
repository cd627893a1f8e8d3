/*
 * chat - a conversation to a prompt, and model output back to a message.
 *
 * One fixed renderer and parser per family, written in C.  Messages and tools come as JSON in the
 * form of OpenAI chat completions: role, content as a string or parts, tool_calls, tool_call_id,
 * reasoning, reasoning_content or thinking (also as parts of the content); Gemma 4 also reads
 * tool_responses, DeepSeek V4 also task, wo_eos, and tools or response_format on a message.
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
    bool (*stop)(void *arg); /* NULL, or asked at some of the messages: true is INGLE_CANCEL */
    void *arg;
    bool thinking; /* Gemma 4: enable_thinking; DeepSeek V4: thinking mode */
    /* DeepSeek V4 ends a prompt with what leads to the assistant whenever the last message
     * asks for an answer; this adds it after other messages, too. */
    bool add_generation_prompt;

    /* Gemma 4 */
    bool preserve_thinking; /* older turns keep the thoughts that led to tool calls */
    bool system_media;      /* the system turn has markers of media; else they are only counted */
    bool large;             /* 12B, 26B-A4B, 31B: an empty thought suppresses thinking */

    /* DeepSeek V4 */
    bool revision_0731;                  /* the effort texts of the 0731 release */
    bool keep_thinking;                  /* drop_thinking false: older turns keep their reasoning */
    const char *effort;                  /* "low", "high", "max", or NULL */
    struct json_object *response_format; /* a JSON schema for the answer, or NULL */
};

/* A prompt with the ranges that the template wrote, in which special tokens count: one
 * range a token, in order.  Text that came from a message is never inside one. */
struct text_prompt {
    struct str text;
    struct text_range *special;
    size_t n_special, cap_special;
    size_t n_media; /* images, audio and video in the messages, */
    size_t n_media_marks; /* ... of which so many have a marker here, in their order, */
    int32_t *medium;      /* ... [n_media_marks]: what their parts have as "medium"; -1: nothing */
    size_t cap_medium;
};
void text_prompt_init(struct text_prompt *p);
void text_prompt_clear(struct text_prompt *p);
void text_prompt_release(struct text_prompt *p);

/* messages: JSON array; tools: JSON array or NULL.  Appends to *out, which is cleared on
 * failure.  Errors (INGLE_ARG) name the message or tool by its index, and the field. */
MUST_CHECK ingle_status text_chat_render(enum text_chat_family family, struct json_object *messages,
                                         struct json_object *tools,
                                         const struct text_chat_options *o, struct text_prompt *out,
                                         struct err *err);

/* The tokens that show where turns of a family's prompts meet; -1: the vocabulary has none. */
struct text_turns {
    int32_t open[3], close; /* of a turn; of the result of a tool */
    /* opens a system turn, after open; or the text before the first turn is one: */
    int32_t system;
    bool bare_system;
};
/* t may be NULL: no borders. */
void text_borders_init(struct text_turns *out, enum text_chat_family family,
                       const struct tokenizer *t);

/* Places where later prompts may part from this one: the end of the first turn, and the last ones
 * where a turn begins or the result of a tool ends.  0 < at <= n. */
enum { TEXT_BORDERS = 8 };
struct text_borders {
    int64_t at[TEXT_BORDERS]; /* [n] ascending */
    int n;
    int64_t system; /* the end of the system turn with its tools, one of them; 0: there is none */
};
void text_borders_find(const struct text_turns *t, const int32_t *ids, int64_t n,
                       struct text_borders *out);

/* Whether a Jinja template from a file is one whose rules are known.  Returns a short
 * name ("gemma4 2026-07-09 large") or NULL for an unknown one. */
const char *text_chat_template_name(enum text_chat_family family, const char *jinja, size_t n);

/* Appends a Jinja template that writes what text_chat_render() writes, for files that others read.
 * variant: of Gemma 4 the small sizes, of DeepSeek V4 the 0731 release. */
void text_chat_jinja(enum text_chat_family family, bool variant, struct str *out);

/* The parser: fed with chunks of any size, gives content, reasoning and tool calls. */
struct text_parser;

enum text_event_kind {
    TEXT_EVENT_CONTENT,
    TEXT_EVENT_REASONING,
    TEXT_EVENT_CALL_BEGIN,
    TEXT_EVENT_CALL_ARGUMENTS,
    TEXT_EVENT_CALL_END,
    TEXT_EVENT_CALL_CUT /* instead of CALL_END: the arguments are only a beginning */
};

/* bytes: a piece of content, reasoning or arguments (JSON text); for CALL_BEGIN the name.
 * call: index of the call; -1 for content and reasoning.  Pieces may end inside a UTF-8
 * character only where a chunk did. */
typedef void text_event_fn(void *arg, enum text_event_kind kind, int call, const char *bytes,
                           size_t n);

struct text_parser_options {
    bool tools_enabled;
    bool open_thought;  /* the prompt ended inside a thought (DeepSeek V4: thinking mode) */
    bool partial_calls; /* a call that the end "length" cuts is one, not text; CALL_CUT says so */
    size_t limit_bytes; /* of output text, 0: 64 MiB; at most 256 MiB */
    size_t limit_calls; /* 0: 4096 */
};

/* fn may be NULL.  Borrows arg until the parser is freed. */
MUST_CHECK ingle_status text_parser_create(struct text_parser **out, enum text_chat_family family,
                                           const struct text_parser_options *o, text_event_fn *fn,
                                           void *arg, struct err *err);
MUST_CHECK ingle_status text_parser_add(struct text_parser *p, const char *bytes, size_t n,
                                        struct err *err);
/* end: "turn", "length", ... as in the vector files; flushes what is held. */
MUST_CHECK ingle_status text_parser_end(struct text_parser *p, const char *end, struct err *err);
/* What comes next would still be reasoning, as far as the output so far shows. */
bool text_parser_in_thought(const struct text_parser *p);
/* Inside of what is a call if it goes on well (DeepSeek V4: a block of calls), and where it
 * counts as one.  *rest (may be NULL): the *n bytes after the marker with which it began, NULL
 * once a call in it is complete, or if it is certain; borrowed until the next call on p. */
bool text_parser_in_call(const struct text_parser *p, const char **rest, size_t *n);
/* It is certain, because a grammar holds the output to it up to its end: name and arguments are
 * reported while they come.  Only where text_parser_in_call(). */
void text_parser_trust_call(struct text_parser *p);
/* The whole message so far as JSON: {"content", "reasoning_content", "tool_calls"}. */
MUST_CHECK ingle_status text_parser_message(const struct text_parser *p, struct json_object **out,
                                            struct err *err);
void text_parser_free(struct text_parser *p);

/* A case is one JSON object: the arguments of the calls above as members, with the names
 * that the vector files use.  Parsing does "splits" (lists of byte offsets) as well, and
 * fails if one changes the message.  The caller ends *message with json_object_put(). */
MUST_CHECK ingle_status text_chat_render_case(enum text_chat_family family, struct json_object *c,
                                              struct text_prompt *out, struct err *err);
MUST_CHECK ingle_status text_chat_parse_case(enum text_chat_family family, struct json_object *c,
                                             struct json_object **message, struct err *err);

#endif
