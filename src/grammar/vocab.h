/*
 * vocab - inside the room: a vocabulary as a trie.
 */
#ifndef INGLE_GRAMMAR_VOCAB_H
#define INGLE_GRAMMAR_VOCAB_H

#include "grammar/impl.h"

/* ---- the vocabulary ---- */

/* Groups of bytes, for leaving out whole subtrees. */
enum { GRAMMAR_N_GROUPS = 32, GRAMMAR_GROUP_UTF8 = 30, GRAMMAR_GROUP_PART = 31 };

struct grammar_trie_node {
    uint32_t skip;   /* nodes of the subtree, this one too */
    uint32_t token;  /* the subtree's first token: index into id */
    uint32_t groups; /* of the bytes from here on, in all of the subtree's tokens */
    uint8_t byte;
};

struct grammar_trie {
    struct grammar_trie_node *node; /* [n_nodes + 1], preorder; the last one only ends it */
    int32_t *id;                    /* [n_tokens], by their bytes */
    uint32_t n_nodes, n_tokens, max_bytes;
};

/* Short and long tokens apart: near a counter's limit the many short ones still are alike. */
enum { GRAMMAR_N_TRIES = 2, GRAMMAR_SHORT_BYTES = 16 };

struct grammar_vocab {
    int64_t n_vocab;
    size_t n_words; /* of a mask */
    int32_t *end;
    size_t n_end;
    uint32_t *offset; /* [n_vocab + 1] into bytes; equal: no text */
    char *bytes;
    struct grammar_trie trie[GRAMMAR_N_TRIES];
};

extern const uint8_t grammar_g_group[256]; /* of ASCII; others: GRAMMAR_GROUP_PART */

#endif
