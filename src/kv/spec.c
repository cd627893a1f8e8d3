/* SPDX-License-Identifier: Apache-2.0 */
/* spec - where each stream stands in a page. */
#include "kv/kv.h"

#include "base/mem.h"
#include "base/num.h"

enum { SPEC_ALIGN = 64, SPEC_HEADS_MAX = 1 << 16 };

void kv_spec_release(struct kv_spec *s)
{
    if (!s)
        return;
    mem_free(s->stream);
    *s = (struct kv_spec){0};
}

static ingle_status spec_too_large(const struct kv_stream *st, struct err *err)
{
    return err_set(err, INGLE_LIMIT, "layer %u: a page of keys and values is too large to address",
                   st->layer);
}

static ingle_status made_of_values(const struct kv_stream *st, struct err *err)
{
    const bool rot = kern_kv_is_rot(st->k_codec);
    if (!st->from_v)
        return err_set(err, INGLE_UNSUP,
                       "layer %u has values of its own: its keys are not made of them ('%s%s')",
                       st->layer, kern_kv_name(st->v_codec), rot ? "" : "v");
    if (rot && st->k_width == st->v_width &&
        (st->from_v->n_pairs * 8 != st->k_width || st->from_v->half * 2 != st->k_width))
        return err_set(err, INGLE_UNSUP,
                       "layer %u: positions turn %lld of %lld numbers of a key: KV format '%s' is "
                       "for a quarter",
                       st->layer, (long long)(2 * st->from_v->n_pairs), (long long)st->k_width,
                       kern_kv_name(st->k_codec));
    if (rot && st->k_width == st->v_width && kern_kv_is_rot(st->v_codec))
        return INGLE_OK;
    if (rot || st->k_width != st->v_width || st->k_width > KERN_KV_WIDE ||
        (int)st->v_codec >= KERN_KV_BLOCK_CODECS)
        return err_set(
            err, INGLE_UNSUP,
            "layer %u: keys of width %lld cannot be made of values of width %lld as '%s'",
            st->layer, (long long)st->k_width, (long long)st->v_width, kern_kv_name(st->v_codec));
    return INGLE_OK;
}

/* Block bytes of one head; 0 is the width's own size when a stream has no values. */
static ingle_status spec_block(const struct kv_stream *st, bool key, size_t *out, struct err *err)
{
    const int64_t width = key ? st->k_width : st->v_width;
    const enum kern_kv_codec codec = key ? st->k_codec : st->v_codec;
    *out = 0;
    if (!key && width == 0)
        return INGLE_OK;
    if ((unsigned)codec >= KERN_KV_CODECS)
        return err_set(err, INGLE_ARG, "layer %u: there is no KV format %d", st->layer, (int)codec);
    if (width < 1 || width > INT32_MAX)
        return err_set(err, INGLE_ARG, "layer %u: %s width %lld is not in 1..%d", st->layer,
                       key ? "key" : "value", (long long)width, INT32_MAX);
    const ingle_status made = key && (codec == KERN_KV_FROM_V || kern_kv_is_rot(codec))
                                  ? made_of_values(st, err)
                                  : INGLE_OK;
    if (made || (key && codec == KERN_KV_FROM_V)) /* kept nowhere */
        return made;
    *out = kern_kv_block_bytes(codec, key, width);
    if (!*out)
        return err_set(err, INGLE_UNSUP,
                       "layer %u: KV format '%s' cannot hold %ss of width %lld: it holds %s",
                       st->layer, kern_kv_name(codec), key ? "key" : "value", (long long)width,
                       kern_kv_widths(codec));
    return INGLE_OK;
}

static ingle_status spec_heads(struct kv_stream *st, size_t *bytes, struct err *err)
{
    size_t k, v;
    ingle_status s = spec_block(st, true, &k, err);
    if (s == INGLE_OK)
        s = spec_block(st, false, &v, err);
    if (s != INGLE_OK)
        return s;
    if (st->every != 1 || st->n_heads < 1 || st->n_heads > SPEC_HEADS_MAX)
        return err_set(
            err, INGLE_ARG,
            "layer %u: %u heads, one row every %u positions: need 1..%d heads and every = 1",
            st->layer, st->n_heads, st->every, SPEC_HEADS_MAX);
    st->v_at = k;
    if (!num_add(k, v, &st->head_bytes) || !num_mul(st->head_bytes, st->n_heads, bytes))
        return spec_too_large(st, err);
    return INGLE_OK;
}

static ingle_status spec_rows(struct kv_stream *st, size_t *bytes, struct err *err)
{
    if (st->every < 1 || st->every > KV_PAGE || KV_PAGE % st->every || st->k_width < 1 ||
        st->k_width > INT32_MAX)
        return err_set(err, INGLE_ARG,
                       "layer %u: rows of width %lld every %u positions: %u must divide %d",
                       st->layer, (long long)st->k_width, st->every, st->every, KV_PAGE);
    st->head_bytes = 0;
    st->v_at = 0;
    const size_t row = kern_row_bytes(st->k_codec, st->k_width, st->v_width);
    if (!row)
        return err_set(err, INGLE_UNSUP, "layer %u: KV format '%s' cannot hold rows of width %lld",
                       st->layer, kern_kv_name(st->k_codec), (long long)st->k_width);
    if (!num_mul(row, KV_PAGE / st->every, bytes))
        return spec_too_large(st, err);
    return INGLE_OK;
}

static ingle_status spec_shadow(struct kv_stream *st, size_t *bytes, struct err *err)
{
    st->head_bytes = kern_select_bytes(st->k_width, st->v_width, &st->v_at);
    if (!st->head_bytes || st->n_heads < 1 || st->n_heads > SPEC_HEADS_MAX)
        return err_set(err, INGLE_ARG, "layer %u: no shadow keys of %u heads of width %lld",
                       st->layer, st->n_heads, (long long)st->k_width);
    return num_mul(st->head_bytes, st->n_heads, bytes) ? INGLE_OK : spec_too_large(st, err);
}

static ingle_status spec_stream(struct kv_spec *s, struct kv_stream *st, struct err *err)
{
    if (st->group >= s->n_groups)
        return err_set(err, INGLE_ARG, "layer %u: group %u of %u", st->layer, st->group,
                       s->n_groups);
    size_t bytes = 0;
    const ingle_status status =
        st->kind == KV_HEADS    ? spec_heads(st, &bytes, err)
        : st->kind == KV_SHADOW ? spec_shadow(st, &bytes, err)
                                : spec_rows(st, &bytes, err);
    if (status != INGLE_OK)
        return status;
    size_t *end = &s->group[st->group].page_bytes;
    st->at = *end;
    st->n_bytes = bytes;
    if (!num_add(*end, bytes, end) || !num_align(*end, SPEC_ALIGN, end))
        return spec_too_large(st, err);
    return INGLE_OK;
}

ingle_status kv_spec_add_shadows(struct kv_spec *s, struct err *err)
{
    const uint32_t n = s->n_streams;
    struct kv_stream *all = mem_calloc(2 * (size_t)n + 1, sizeof *all);
    if (!all)
        return err_set(err, INGLE_NOMEM, "no memory for the KV layout");
    for (uint32_t i = 0; i < n; i++) {
        struct kv_stream *st = &all[i];
        *st = s->stream[i];
        if (st->kind != KV_HEADS || s->group[st->group].window ||
            kern_select_refuses(st->k_codec, st->v_codec, st->k_width, st->v_width))
            continue;
        st->shadow = s->n_streams;
        all[s->n_streams++] = (struct kv_stream){.kind = KV_SHADOW,
                                                 .layer = st->layer,
                                                 .group = s->n_groups,
                                                 .n_heads = st->n_heads,
                                                 .k_width = st->k_width,
                                                 .v_width = st->v_width,
                                                 .k_codec = KERN_KV_N4R,
                                                 .v_codec = KERN_KV_F32,
                                                 .every = 1};
    }
    mem_free(s->stream);
    s->stream = all;
    s->n_groups += s->n_streams > n;
    return INGLE_OK;
}

void kv_spec_set_own(struct kv_spec *s)
{
    for (uint32_t g = 0; g < s->n_groups; g++)
        s->group[g].own_at = s->group[g].own_bytes = 0;
    for (uint32_t i = 0; i < s->n_streams; i++) {
        const struct kv_stream *st = &s->stream[i];
        if (!st->own)
            continue;
        size_t *at = &s->group[st->group].own_at, *n = &s->group[st->group].own_bytes;
        *at = *n ? *at : st->at; /* they ascend */
        *n = (st->at + st->n_bytes - *at + SPEC_ALIGN - 1) / SPEC_ALIGN * SPEC_ALIGN;
    }
}

void kv_spec_set_away(struct kv_spec *s)
{
    for (uint32_t g = 0; g < s->n_groups; g++)
        s->group[g].own_at = s->group[g].own_bytes = 0;
    for (uint32_t i = 0; i < s->n_streams; i++)
        if (s->stream[i].own || s->stream[i].twin)
            s->group[s->stream[i].group].own_bytes = s->group[s->stream[i].group].page_bytes;
}

ingle_status kv_layout(struct kv_spec *s, struct err *err)
{
    if (s->n_groups < 1 || s->n_groups > KV_MAX_GROUPS)
        return err_set(err, INGLE_ARG, "%u groups of KV streams are not in 1..%d", s->n_groups,
                       KV_MAX_GROUPS);
    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (s->group[g].window < 0)
            return err_set(err, INGLE_ARG, "group %u: window %lld is negative", g,
                           (long long)s->group[g].window);
        s->group[g].page_bytes = 0;
    }
    for (uint32_t i = 0; i < s->n_streams; i++) {
        const ingle_status status = spec_stream(s, &s->stream[i], err);
        if (status != INGLE_OK)
            return status;
    }
    for (uint32_t g = 0; g < s->n_groups; g++)
        if (!s->group[g].page_bytes)
            return err_set(err, INGLE_ARG, "group %u has no streams", g);
    return INGLE_OK;
}
