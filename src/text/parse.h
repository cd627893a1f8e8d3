/*
 * parse - what the output parsers share: the message so far, the text that is still
 * undecided, and the way out of both.
 */
#ifndef INGLE_TEXT_PARSE_H
#define INGLE_TEXT_PARSE_H

#include "base/mem.h"
#include "text/chat.h"

struct text_call {
    char *name;      /* owned */
    struct str json; /* the arguments */
};

/* First member of each family's parser. */
struct text_parser {
    void (*read)(struct text_parser *p, bool final); /* decides what it can of held */
    void (*release)(struct text_parser *p);
    bool (*in_thought)(const struct text_parser *p);
    bool (*in_call)(const struct text_parser *p, const char **rest, size_t *n);
    void (*trust_call)(struct text_parser *p);
    struct text_parser_options o;
    text_event_fn *fn;
    void *arg;
    struct str content, reasoning;
    struct text_call *call;
    size_t n_calls, cap_calls;
    struct str held; /* held.at[from..held.n) is undecided */
    size_t from;
    size_t n_bytes; /* of output so far */
    bool ended, cut; /* cut: no more tokens were to come, and partial_calls */
    bool whole;      /* the end came by itself */
    struct err failed; /* status other than INGLE_OK: the first failure, for good */
};

/* Each moves bytes into the message and notifies the listener; empty pieces are nothing. */
void text_parser_content(struct text_parser *p, const char *bytes, size_t n);
void text_parser_reasoning(struct text_parser *p, const char *bytes, size_t n);
/* A call: its name, pieces of its arguments, its end. */
void text_parser_call_begin(struct text_parser *p, const char *name, size_t n);
void text_parser_call_more(struct text_parser *p, const char *json, size_t n);
void text_parser_call_end(struct text_parser *p, bool cut);
/* All of it at once. */
void text_parser_call(struct text_parser *p, const char *name, size_t n, const struct str *json);
void text_parser_nomem(struct text_parser *p);

static inline bool text_parser_ok(const struct text_parser *p)
{
    return p->failed.status == INGLE_OK;
}

/* The names of the members of the objects that are open: within one no name comes twice. */
enum { TEXT_NAMES_DEPTH = 64 };
struct text_names {
    struct str list; /* for each its length, size_t, and its bytes */
    size_t from[TEXT_NAMES_DEPTH];
    int depth;
};
/* An object opens (at most TEXT_NAMES_DEPTH at once) and closes. */
void text_names_open(struct text_names *t);
void text_names_close(struct text_names *t);
/* False: the innermost object has it already. */
bool text_names_add(struct text_names *t, const char *name, size_t n);

/* How the n bytes at s compare with word: all of it, a beginning of it, or neither. */
enum text_match { TEXT_MATCH_NONE, TEXT_MATCH_PART, TEXT_MATCH_ALL };
enum text_match text_match(const char *s, size_t n, const char *word);

struct text_parser *text_parser_gemma4(void); /* NULL: out of memory */
struct text_parser *text_parser_deepseek4(void);

#endif
