/* SPDX-License-Identifier: Apache-2.0 */
#include "kv/key.h"

#include "kv/media.h"
#include "kv/store_file.h"
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const char skipped[] = "+skip";

bool kv_hasher_begin(struct kv_hasher *h, struct kv_key context, struct kv_scope scope,
                     struct kv_media *media, const int32_t *tokens)
{
    const uint64_t head[3] = {context.lo, context.hi, scope.salt};
    *h = (struct kv_hasher){
        .state = XXH3_createState(), .token = tokens, .scope = scope, .media = media};
    if (!h->state)
        return false;
    XXH3_128bits_reset(h->state);
    XXH3_128bits_update(h->state, head, sizeof head);
    return true;
}

static struct kv_key key_with(struct kv_key key, uint64_t name)
{
    const uint64_t both[3] = {key.lo, key.hi, name};
    const XXH128_hash_t own = XXH3_128bits(both, sizeof both);
    return (struct kv_key){own.low64, own.high64};
}

/* A key counts as an index, which no token looks like, and the whole name. */
static void add_keys(struct kv_hasher *h, int64_t n)
{
    struct { int32_t index; uint8_t id[KV_MEDIUM_ID]; } one = {0};
    struct kv_medium of = {{0}, 0, 0};
    for (int32_t number = -1; h->n < n && h->token[h->n] < 0; h->n++) {
        const int32_t key = h->token[h->n];
        if (number != kv_media_number(key) && kv_media_of(h->media, kv_media_number(key), &of))
            memcpy(one.id, of.id, sizeof one.id);
        number = kv_media_number(key);
        one.index = (int32_t)(-1 - kv_media_index(key));
        XXH3_128bits_update(h->state, &one, sizeof one);
    }
}

struct kv_key kv_hasher_at(struct kv_hasher *h, int64_t n)
{
    while (n > h->n) {
        int64_t to = h->media ? h->n : n;
        while (to < n && h->token[to] >= 0)
            to++;
        XXH3_128bits_update(h->state, h->token + h->n, (size_t)(to - h->n) * sizeof *h->token);
        h->n = to;
        add_keys(h, n);
    }
    const XXH128_hash_t d = XXH3_128bits_digest(h->state);
    const struct kv_scope way = kv_scope_at(h->scope, n);
    const struct kv_name name = kv_sparse_name(way.sparse);
    struct kv_key key = {d.low64, d.high64};
    if (way.sparse)
        key = key_with(key, XXH3_64bits(name.at, strlen(name.at)));
    return way.shorten.name
               ? key_with(key, XXH3_64bits_withSeed(skipped, sizeof skipped, way.shorten.name))
               : key;
}

void kv_hasher_end(struct kv_hasher *h)
{
    XXH3_freeState(h->state);
    h->state = NULL;
}

struct kv_key kv_key_of(struct kv_key context, struct kv_scope scope, struct kv_media *media,
                        const int32_t *tokens, int64_t n)
{
    struct kv_hasher h;
    struct kv_key key = {0, 0};
    if (kv_hasher_begin(&h, context, scope, media, tokens))
        key = kv_hasher_at(&h, n);
    kv_hasher_end(&h);
    return key;
}

struct kv_key kv_context(const struct kv_spec *s, uint64_t identity, const char *numerics)
{
    const uint64_t head[] = {KV_KEY_VERSION, KV_ARITHMETIC, KV_PAGE, identity, s->n_groups,
                             s->n_streams};
    const XXH64_hash_t name = XXH3_64bits(numerics, strlen(numerics));
    XXH128_hash_t h = XXH3_128bits_withSeed(head, sizeof head, name);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        const uint64_t group[] = {h.low64, h.high64, (uint64_t)s->group[g].window,
                                  s->group[g].page_bytes};
        h = XXH3_128bits(group, sizeof group);
    }
    for (uint32_t i = 0; i < s->n_streams; i++) {
        const struct kv_stream *st = &s->stream[i];
        const uint64_t stream[] = {h.low64,     h.high64,
                                   st->kind,    st->layer,
                                   st->group,   st->n_heads,
                                   (uint64_t)st->k_width, (uint64_t)st->v_width,
                                   st->k_codec, st->v_codec,
                                   st->every,   st->at};
        h = XXH3_128bits(stream, sizeof stream);
    }
    if (s->n_own) {
        const uint64_t guest[] = {h.low64, h.high64, s->n_own, s->guest};
        h = XXH3_128bits(guest, sizeof guest);
    }
    return (struct kv_key){h.low64, h.high64};
}

int kv_forms(const struct kv_spec *s, uint64_t identity, const char *numerics,
             struct kv_form form[KV_FORMS])
{
    form[0] = (struct kv_form){*s, kv_context(s, identity, numerics)};
    if (!s->n_own)
        return 1;
    struct kv_spec own = *s;
    own.n_groups = s->n_own;
    own.n_own = 0;
    while (own.n_streams && own.stream[own.n_streams - 1].group >= s->n_own)
        own.n_streams--;
    form[1] = (struct kv_form){own, kv_context(&own, identity, numerics)};
    return 2;
}

struct kv_key kv_sum(const void *at, size_t n)
{
    const XXH128_hash_t h = XXH3_128bits(at, n);
    return (struct kv_key){h.low64, h.high64};
}
