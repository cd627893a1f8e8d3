/*
 * grammar_impl - what the grammar's own files share: the automaton, how it is built, the trie.
 *
 * A rule is a graph of nodes.  An item (node, count, frame) is a place in one invocation of
 * a rule: count is the invocation's counter, frame says where it goes on when it ends.
 */
#ifndef INGLE_GRAMMAR_IMPL_H
#define INGLE_GRAMMAR_IMPL_H

#include "grammar/grammar.h"

enum {
    GRAMMAR_MAX_NODES = 1 << 20,
    GRAMMAR_MAX_RULES = 1 << 16,
    GRAMMAR_MAX_SETS = 1 << 15,
    GRAMMAR_MAX_REPEAT = 1 << 24,
    GRAMMAR_MAX_EMPTY = 64,       /* {m,n} of something that may be empty */
    GRAMMAR_MAX_NESTING = 128,    /* of a grammar's text */
    GRAMMAR_MAX_DEPTH = 400,      /* frames: rules within rules in an answer */
    GRAMMAR_MAX_ITEMS = 4096,     /* of a state */
    GRAMMAR_MAX_STEPS = 1 << 25,  /* of a mask */
    GRAMMAR_MAX_BYTES = 56 << 20, /* of a matcher's states */
    GRAMMAR_MAX_STATES = 1 << 13, /* then the matcher starts its tables anew */
    GRAMMAR_MAX_FRAMES = 1 << 17,
};
#define GRAMMAR_INFINITE UINT32_MAX

enum grammar_kind {
    GRAMMAR_END,   /* of the rule */
    GRAMMAR_JUMP,  /* to a */
    GRAMMAR_SPLIT, /* to a and b */
    GRAMMAR_BYTES, /* a byte of set b, then a */
    GRAMMAR_TOKEN, /* token b, then a */
    GRAMMAR_CALL,  /* rule b, then a */
    GRAMMAR_LOOP,  /* to a if count < max, to b if count >= min */
    GRAMMAR_COUNT, /* count + 1, then a */
    /* to a with bit b & 31 of count set, if it is not, and (b >> 8: not 0) fewer than that are */
    GRAMMAR_ONCE,
    GRAMMAR_ALL,   /* to a if count has all bits of b */
    GRAMMAR_LEAST, /* to a if count has at least b bits */
};
enum { GRAMMAR_MAX_ONCE = 30 }; /* bits */

struct grammar_node {
    uint8_t kind;
    bool dead; /* nothing that ends can follow */
    uint32_t rule;
    uint32_t a, b;
};

struct grammar_set {
    uint64_t bit[4];
};

struct grammar_rule {
    char *name; /* owned; NULL: made by a repetition */
    uint32_t start;
    uint32_t min, max; /* of its LOOP nodes */
    bool nullable;
};

/* Node 0 is the END of all rules. */
struct grammar {
    struct grammar_node *node;
    struct grammar_set *set;
    struct grammar_rule *rule;
    size_t n_nodes, n_sets, n_rules, cap_nodes, cap_sets, cap_rules;
    uint32_t root;
    uint8_t class_of[256]; /* bytes that are in the same sets */
    uint8_t sample[256];   /* a byte of each class */
    uint32_t n_classes;
};

static inline bool grammar_has(const struct grammar_set *s, unsigned byte)
{
    return s->bit[byte >> 6] >> (byte & 63) & 1;
}

#endif
