/* key - hashes of tokens, for this room only. */
#ifndef INGLE_KV_KEY_H
#define INGLE_KV_KEY_H

#include "kv/kv.h"

/* The hash of a growing prefix: begin, then at() ascending lengths, then end. */
struct kv_hasher {
    void *state; /* NULL: out of memory */
    const int32_t *token;
    int64_t n;
};
bool kv_hasher_begin(struct kv_hasher *h, struct kv_key context, uint64_t salt,
                     const int32_t *tokens);
struct kv_key kv_hasher_at(struct kv_hasher *h, int64_t n);
void kv_hasher_end(struct kv_hasher *h);

/* Who wrote a page: model, layout, numerics. */
struct kv_key kv_context(const struct kv_spec *s, uint64_t identity, const char *numerics);

#endif
