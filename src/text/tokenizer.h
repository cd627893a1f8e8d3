/*
 * tokenizer - text to token ids and ids to bytes.
 *
 * Two kinds: Gemma 4 (BPE over code points with byte fallback) and byte-level BPE with the
 * DeepSeek V3/V4 pre-tokenizer.  Time is linear in the text up to a logarithm, also for
 * hostile input.  A tokenizer is read-only after creation and may be used by any thread.
 */
#ifndef INGLE_TEXT_TOKENIZER_H
#define INGLE_TEXT_TOKENIZER_H

#include "base/err.h"
#include "base/str.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum text_tokenizer_kind { TEXT_GEMMA4, TEXT_DEEPSEEK };

enum text_token_type {
    TEXT_NORMAL = 1,
    TEXT_UNKNOWN,
    TEXT_CONTROL,
    TEXT_USER_DEFINED,
    TEXT_UNUSED,
    TEXT_BYTE
};

/* What a tokenizer is made from; all borrowed for the call.  merge[i] is "left right", split
 * at the first space after its first byte, or where merge_left_bytes says. */
struct text_vocab {
    enum text_tokenizer_kind kind;
    const char *source; /* file name, for messages */
    size_t n_tokens;
    const char *const *token;  /* [n_tokens] bytes, may contain NUL */
    const size_t *token_bytes; /* [n_tokens] */
    const int32_t *token_type; /* [n_tokens] enum text_token_type, or NULL: all normal */
    size_t n_merges;
    const char *const *merge;        /* [n_merges] */
    const size_t *merge_bytes;       /* [n_merges] */
    const size_t *merge_left_bytes;  /* [n_merges] where the separating byte is, or NULL */
    int32_t bos, eos, eot, unk, pad; /* -1: none */
    bool add_bos;
};

struct tokenizer;

/* The kind that a GGUF file's tokenizer.ggml.model and .pre name (NULL: absent).  Others are
 * INGLE_UNSUP: with a wrong pre-tokenizer a model gets worse and nobody sees why. */
MUST_CHECK ingle_status text_vocab_kind(const char *model, const char *pre,
                                        enum text_tokenizer_kind *kind, struct err *err);

/* Of tokens with the same spelling the first is found and made; merges of unknown tokens are
 * skipped; Gemma 4 always wants its BOS. */
MUST_CHECK ingle_status text_tokenizer_create(struct tokenizer **out, const struct text_vocab *v,
                                              struct err *err);
/* From the text of a Hugging Face tokenizer.json (kind is recognised). */
MUST_CHECK ingle_status text_tokenizer_from_json(struct tokenizer **out, const char *source,
                                                 const char *text, size_t n, struct err *err);
/* What such a file holds, valid in fn; the result of fn. */
typedef ingle_status text_vocab_fn(void *arg, const struct text_vocab *v, struct err *err);
MUST_CHECK ingle_status text_vocab_from_json(const char *source, const char *text, size_t n,
                                             text_vocab_fn *fn, void *arg, struct err *err);
/* The patterns at which such a file of DeepSeek splits a text; i: 0 to 2. */
const char *text_deepseek_split(int i);
void text_tokenizer_free(struct tokenizer *t);

enum text_tokenizer_kind text_tokenizer_kind(const struct tokenizer *t);
size_t text_n_tokens(const struct tokenizer *t);
int32_t text_bos(const struct tokenizer *t); /* -1: none */
bool text_add_bos(const struct tokenizer *t);
/* The token's spelling in the vocabulary (bytes, borrowed); NULL if id is out of range. */
const char *text_token(const struct tokenizer *t, int32_t id, size_t *n);
enum text_token_type text_token_type(const struct tokenizer *t, int32_t id);
/* Whether the token ends an answer: eos, eot, and those that the family's format names. */
bool text_is_end(const struct tokenizer *t, int32_t id);
/* A model's answer of text may hold it.  False: control tokens that end nothing, markers of media,
 * tokens that are reserved. */
bool text_is_written(const struct tokenizer *t, int32_t id);
/* Whether two vocabularies are one: the same kind, tokens, types and merges.  Their ends of
 * generation may differ, and tokens that are never made or written may be of another type.  False:
 * why [n] says the first difference. */
bool text_tokenizer_same(const struct tokenizer *a, const struct tokenizer *b, char *why, size_t n);
/* The id whose spelling is exactly these bytes, or -1. */
int32_t text_find(const struct tokenizer *t, const char *bytes, size_t n);

struct text_ids {
    int32_t *id;
    size_t n, cap;
};
void text_ids_release(struct text_ids *ids);

/* A byte range of a text in which the spellings of special tokens count as those tokens.
 * Everywhere else they are ordinary text. */
struct text_range {
    size_t begin, end;
};

/* Appends the ids of text to out.  specials: sorted, disjoint ranges; a special token must
 * be within one.  Text around specials is tokenised as a whole, across range borders.
 * add_special puts BOS first if the vocabulary wants it.  Ill-formed UTF-8: each maximal
 * part is one U+FFFD. */
MUST_CHECK ingle_status text_encode(const struct tokenizer *t, const char *text, size_t n,
                                    bool add_special, const struct text_range *specials,
                                    size_t n_specials, struct text_ids *out, struct err *err);

/* What bounds the work of one call.  An encode call may take seconds for megabytes without a
 * space, so those who cannot wait say when it ends early. */
struct text_bounds {
    /* 0: any number.  A text whose bytes show that it has more tokens is refused at once
     * (INGLE_LIMIT), one that turns out to have more than twice as many when that is seen; one
     * with a few more is counted to its end. */
    size_t max_tokens;
    size_t least;            /* after INGLE_LIMIT: so many tokens it has at least */
    bool (*stop)(void *arg); /* NULL, or asked every few milliseconds: true is INGLE_CANCEL */
    void *arg;
};

/* text_encode() within bounds. */
MUST_CHECK ingle_status text_encode_within(const struct tokenizer *t, const char *text, size_t n,
                                           bool add_special, const struct text_range *specials,
                                           size_t n_specials, struct text_bounds *bounds,
                                           struct text_ids *out, struct err *err);
/* So many tokens these bytes give at least.  Fast: it looks at bytes, not at words. */
size_t text_least_tokens(const struct tokenizer *t, const char *text, size_t n);

/* Appends the bytes of one token.  show_control: control tokens give their spelling, else
 * nothing; user-defined ones always show.  INGLE_ARG: id outside the vocabulary. */
MUST_CHECK ingle_status text_decode(const struct tokenizer *t, int32_t id, bool show_control,
                                    struct str *out, struct err *err);

/* Streaming: holds back an incomplete character (at most 3 bytes) and nothing else; an
 * ill-formed part becomes U+FFFD as soon as it is certain. */
struct text_stream {
    char held[4];
    size_t n_held;
};
MUST_CHECK ingle_status text_stream_add(struct text_stream *s, const struct tokenizer *t,
                                        int32_t id, bool show_control, struct str *out,
                                        struct err *err);
void text_stream_end(struct text_stream *s, struct str *out); /* what is still held, as U+FFFD */

#endif
