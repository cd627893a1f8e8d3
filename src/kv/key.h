/* key - hashes of tokens, for this room only. */
#ifndef INGLE_KV_KEY_H
#define INGLE_KV_KEY_H

#include "kv/kv.h"

/* The hash of a growing prefix: begin, then at() ascending lengths, then end. */
struct kv_hasher {
    void *state; /* NULL: out of memory */
    const int32_t *token;
    int64_t n;
    struct kv_scope scope;
    struct kv_media *media; /* of keys among the tokens; NULL: there are none */
};
bool kv_hasher_begin(struct kv_hasher *h, struct kv_key context, struct kv_scope scope,
                     struct kv_media *media, const int32_t *tokens);
struct kv_key kv_hasher_at(struct kv_hasher *h, int64_t n);
void kv_hasher_end(struct kv_hasher *h);

/* The checksum of bytes in files. */
struct kv_key kv_sum(const void *at, size_t n);

/* Who wrote a page: model, layout, numerics. */
struct kv_key kv_context(const struct kv_spec *s, uint64_t identity, const char *numerics);

/* What a file can be: pages of all groups, or with a guest of the model's own groups alone. */
struct kv_form {
    struct kv_spec spec; /* streams are borrowed */
    struct kv_key context;
};
enum { KV_FORMS = 2 };
/* form[0] has all groups.  Returns how many there are. */
int kv_forms(const struct kv_spec *s, uint64_t identity, const char *numerics,
             struct kv_form form[KV_FORMS]);

#endif
