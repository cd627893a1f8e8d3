/*
 * tokenizer_impl - what the tokenizer's own files share.
 *
 * A tokenizer is one block of memory: the struct, then its tables.  Nothing in it changes
 * after creation.  What an encode call needs besides lives in struct text_bpe, which that
 * call owns.
 */
#ifndef INGLE_TEXT_TOKENIZER_IMPL_H
#define INGLE_TEXT_TOKENIZER_IMPL_H

#include "text/tokenizer.h"

enum {
    TEXT_TOKEN_MAX_BYTES = 64 << 10,
    TEXT_SPECIAL_MAX_BYTES = 1 << 10, /* bounds the work per byte of text */
    TEXT_MAX_BYTES = 1 << 30,         /* of one text */
    TEXT_N_ENDS = 5,
    TEXT_PATIENCE = 1 << 14, /* symbols between two looks at the bounds: a few milliseconds */
    TEXT_SHARE_BITS = 20,
};

/* The pair left, right becomes result.  Its index is its rank: lower merges first. */
struct text_merge {
    int32_t left, right, result;
};

struct tokenizer {
    enum text_tokenizer_kind kind;
    uint32_t n_tokens, n_merges, n_specials;
    int32_t bos;
    bool add_bos;
    int32_t end[TEXT_N_ENDS]; /* tokens that end an answer, -1: none */
    uint64_t seed;            /* of both hashes: a file cannot aim at collisions */
    uint32_t *offset;         /* [n_tokens + 1] into spelling */
    char *spelling;
    uint8_t *type;        /* [n_tokens] enum text_token_type */
    uint64_t *token_slot; /* [token_mask + 1] upper half of the hash, id + 1; 0: empty */
    size_t token_mask;
    struct text_merge *merge; /* [n_merges] */
    uint32_t *merge_slot;     /* [merge_mask + 1] rank + 1; 0: empty */
    size_t merge_mask;
    int32_t *special;            /* [n_specials] ids, sorted by spelling */
    uint32_t first_special[257]; /* specials whose first byte is b: [b] to [b + 1] */
    int32_t byte_id[256];        /* the token that stands for a byte */
    int32_t ascii_id[128];       /* Gemma: the plain token of a character, -1: none */
    /* Bit c of [b]: some merge joins a part that ends with byte b and one that begins with c.
     * Where none does, a text can be cut and its parts merged apart.  Gemma alone; its U+2581
     * counts as the space that it stands for. */
    uint8_t joins[256][32];
    /* The share of a token that a byte is at least, in units of 2^-TEXT_SHARE_BITS: one by the
     * length of the longest token that holds it. */
    uint32_t share[256];
};

static inline bool text_joins(const struct tokenizer *t, unsigned char last, unsigned char first)
{
    return t->joins[last][first >> 3] >> (first & 7) & 1;
}

/* Fills joins and share from tokens and merges. */
void text_fill_shares(struct tokenizer *t);

static inline size_t text_token_bytes(const struct tokenizer *t, int32_t id)
{
    return t->offset[id + 1] - t->offset[id];
}

/* Ordinary text becomes plain tokens only. */
static inline bool text_is_plain(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (t->type[id] == TEXT_NORMAL || t->type[id] == TEXT_UNUSED);
}

/* The rank of a pair, or -1. */
int64_t text_merge_rank(const struct tokenizer *t, int32_t left, int32_t right);

/* The longest special token that the text begins with: its id, or -1. */
int32_t text_special_at(const struct tokenizer *t, const char *text, size_t n);

/* GPT-2's alphabet: every byte has a visible character.  -1: not in the alphabet. */
uint32_t text_byte_char(unsigned char byte);
int text_char_byte(uint32_t cp);

/* The value of a token spelt <0xNN>, or -1. */
int text_byte_spelling(const char *s, size_t n);

MUST_CHECK bool text_ids_push(struct text_ids *ids, int32_t id);

/* The merge loop's memory.  A symbol is a token, or ~code point when there is no token. */
struct text_symbol {
    int32_t id;
    uint32_t prev, next;
};

struct text_bpe {
    const struct tokenizer *t;
    struct text_symbol *symbol;
    uint64_t *heap; /* rank and position of pairs that may be merged */
    size_t n_symbols, cap_symbols, n_heap, cap_heap;
    uint64_t n_steps; /* pairs looked at and heap levels walked: tests hold it against n */
    struct text_bounds *bounds; /* NULL: none */
    const struct text_ids *out; /* whose tokens count for them */
    int patience;               /* steps until they are looked at again */
    ingle_status why;           /* of the last false, if it was not memory; else INGLE_OK */
};

/* Looks at the bounds.  False: the call ends, b->why says why. */
MUST_CHECK bool text_bpe_may_go_on(struct text_bpe *b);

static inline bool text_bpe_step(struct text_bpe *b)
{
    return --b->patience > 0 || text_bpe_may_go_on(b);
}

void text_bpe_init(struct text_bpe *b, const struct tokenizer *t);
void text_bpe_release(struct text_bpe *b);
MUST_CHECK bool text_bpe_add(struct text_bpe *b, int32_t id);
/* Merges the symbols that were added, appends their ids to out and starts anew.
 * False: out of memory, or what b->why says; so it is with the two below. */
MUST_CHECK bool text_bpe_finish(struct text_bpe *b, struct text_ids *out);

/* Well-formed text without specials. */
MUST_CHECK bool text_gemma_encode(struct text_bpe *b, const char *text, size_t n,
                                  struct text_ids *out);
MUST_CHECK bool text_deepseek_encode(struct text_bpe *b, const char *text, size_t n,
                                     struct text_ids *out);

/* text_encode() on borrowed scratch. */
MUST_CHECK ingle_status text_encode_with(struct text_bpe *b, const char *text, size_t n,
                                         bool add_special, const struct text_range *specials,
                                         size_t n_specials, struct text_ids *out, struct err *err);

/* The DeepSeek pre-tokenizer: cuts well-formed text into pieces that are merged apart. */
struct text_split {
    const char *text;
    size_t n, at, section_end;
};
/* The next piece is [*begin, *end); false: no more. */
bool text_split_next(struct text_split *s, size_t *begin, size_t *end);

#endif
