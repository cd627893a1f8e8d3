/* grammar_fuzz - what holds of every grammar that compiles: a draw among the tokens of a mask
 * fits, masks and single tokens agree, and what is refused says why. */
#ifndef INGLE_TESTS_GRAMMAR_FUZZ_H
#define INGLE_TESTS_GRAMMAR_FUZZ_H

#include "base/bug.h"
#include "base/utf8.h"
#include "grammar/build.h"
#include "grammar/impl.h"
#include "grammar/vocab.h"
#include "text/tokenizer_impl.h"
#include <string.h>

enum { FUZZ_STEPS = 48 };

struct grammar_fuzz {
    struct tokenizer *t;
    struct grammar_vocab *v;
    size_t n;
};

/* All bytes, some words, a special token and the end. */
static inline void grammar_fuzz_open(struct grammar_fuzz *f)
{
    static const char *const word[] = {"{\"", "\":", "\"}", "true",   "aaaa",
                                       "12",  "\\u", "]}",  "<mark>", "<end>"};
    enum { N_WORDS = sizeof word / sizeof *word };
    const char *token[256 + N_WORDS];
    size_t n_bytes[256 + N_WORDS];
    int32_t type[256 + N_WORDS];
    char byte[256][8];
    for (unsigned b = 0; b < 256; b++) {
        n_bytes[b] = utf8_encode(text_byte_char((unsigned char)b), byte[b]);
        token[b] = byte[b];
        type[b] = TEXT_NORMAL;
    }
    for (size_t i = 0; i < N_WORDS; i++) {
        token[256 + i] = word[i];
        n_bytes[256 + i] = strlen(word[i]);
        type[256 + i] = i + 2 < N_WORDS ? TEXT_NORMAL : TEXT_CONTROL;
    }
    const struct text_vocab v = {.kind = TEXT_DEEPSEEK,
                                 .source = "fuzz",
                                 .n_tokens = 256 + N_WORDS,
                                 .token = token,
                                 .token_bytes = n_bytes,
                                 .token_type = type,
                                 .bos = -1,
                                 .eos = 256 + N_WORDS - 1,
                                 .eot = -1,
                                 .unk = -1,
                                 .pad = -1};
    const int32_t end = v.eos;
    f->n = v.n_tokens;
    if (text_tokenizer_create(&f->t, &v, NULL) ||
        grammar_vocab_create(&f->v, f->t, (int64_t)f->n, &end, 1, NULL))
        BUG("no vocabulary");
}

static inline uint64_t grammar_fuzz_next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* What is forced is what the mask leaves, which has n tokens. */
static inline void grammar_fuzz_forced(const struct grammar_fuzz *f, struct grammar_matcher *m,
                                       const int32_t *allowed, size_t n)
{
    struct grammar_forced piece[3];
    struct err err;
    char bytes[40];
    size_t k = 3, all = 0;
    bool open = false;
    const ingle_status st = grammar_matcher_forced(m, piece, &k, bytes, sizeof bytes, &open, &err);
    if (st && st != INGLE_LIMIT)
        BUG("what is forced failed");
    for (size_t i = 0; i < k && !st; i++)
        all += piece[i].n_bytes;
    if (st || !k)
        return;
    if (k > 3 || all > sizeof bytes)
        BUG("more is forced than there is room for");
    if (piece[0].token >= 0) {
        if (n != 1 || allowed[0] != piece[0].token)
            BUG("a token is forced that is not the only one");
        return;
    }
    if (grammar_vocab_single(f->v, bytes, piece[0].n_bytes, k > 1 || open) && n != 1)
        BUG("several tokens where one is alone");
    for (size_t i = 0; i < n; i++)
        if (f->v->offset[allowed[i]] != f->v->offset[allowed[i] + 1] &&
            f->v->bytes[f->v->offset[allowed[i]]] != bytes[0])
            BUG("a byte is forced that is not the only one");
}

/* One step; false: the answer has ended, or a limit was hit. */
static inline bool grammar_fuzz_step(const struct grammar_fuzz *f, struct grammar_matcher *m,
                                     uint64_t *seed)
{
    const uint64_t *bit;
    struct err err = {0};
    uint64_t mask[8] = {0};
    int32_t allowed[512];
    size_t n = 0;
    ingle_status st = grammar_matcher_mask(m, &bit, &err);
    if (st == INGLE_LIMIT)
        return false;
    if (st)
        BUG("a mask failed");
    memcpy(mask, bit, (f->n + 63) / 64 * sizeof *mask);
    for (size_t i = 0; i < f->n; i++) {
        const bool in_mask = mask[i / 64] >> i % 64 & 1;
        bool fits = false;
        if (in_mask)
            allowed[n++] = (int32_t)i;
        if (in_mask || grammar_fuzz_next(seed) % 8 == 0) {
            st = grammar_matcher_allows(m, (int32_t)i, &fits, &err);
            if (st == INGLE_LIMIT)
                return false;
            if (st || (in_mask && !fits))
                BUG("a token of the mask does not fit");
        }
    }
    if (!n)
        BUG("an empty mask");
    grammar_fuzz_forced(f, m, allowed, n);
    const int32_t token = allowed[grammar_fuzz_next(seed) % n];
    st = grammar_matcher_accept(m, token, &err);
    if (st && st != INGLE_LIMIT)
        BUG("a token of the mask is refused");
    return !st && (size_t)token != f->n - 1;
}

/* Takes g; st: how compiling it went. */
static inline void grammar_fuzz_run(const struct grammar_fuzz *f, struct grammar *g,
                                    ingle_status st, const struct err *err, uint64_t seed)
{
    struct grammar_matcher *m = NULL;
    if (st && (g || err->status != st || !err->msg[0]))
        BUG("a failure without a reason");
    if (st)
        return;
    if (grammar_matcher_create(&m, g, f->v, NULL) == INGLE_OK)
        for (int i = 0; i < FUZZ_STEPS && grammar_fuzz_step(f, m, &seed); i++)
            ;
    grammar_matcher_free(m);
    grammar_free(g);
}

#endif
