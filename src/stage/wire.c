/* SPDX-License-Identifier: Apache-2.0 */
/* wire - who an end is as bytes, and whether two ends can compute together. */
#include "stage/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

void stage_put(struct wire *w, const void *from, size_t n)
{
    w->bad = w->bad || n > w->cap - w->n;
    if (w->bad)
        return;
    if (n)
        memcpy(w->at + w->n, from, n);
    w->n += n;
}

void stage_put_u32(struct wire *w, uint64_t v)
{
    const uint32_t x = (uint32_t)v;
    stage_put(w, &x, sizeof x);
}

void stage_put_u64(struct wire *w, uint64_t v)
{
    stage_put(w, &v, sizeof v);
}

const uint8_t *stage_get(struct wire_in *w, size_t n)
{
    static const uint8_t none[8] = {0};
    w->bad = w->bad || n > w->cap - w->n;
    if (w->bad)
        return none;
    w->n += n;
    return w->at + w->n - n;
}

uint32_t stage_get_u32(struct wire_in *w)
{
    uint32_t v;
    memcpy(&v, stage_get(w, sizeof v), sizeof v);
    return v;
}

uint64_t stage_get_u64(struct wire_in *w)
{
    uint64_t v;
    memcpy(&v, stage_get(w, sizeof v), sizeof v);
    return v;
}

bool stage_has_bad(const uint8_t *at, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i += sizeof(uint32_t)) {
        uint32_t v;
        memcpy(&v, at + i, sizeof v);
        bad |= (v & UINT32_C(0x7f800000)) == UINT32_C(0x7f800000);
    }
    return bad;
}

/* ---- who one is ---- */

struct field { void *at; size_t n; };
enum { FIELDS = 27 };

static void list_fields(struct stage_hello *h, struct field out[FIELDS])
{
    const struct field all[FIELDS] = {
        {&h->version, sizeof h->version},
        {&h->look, sizeof h->look},
        {&h->from, sizeof h->from},
        {&h->to, sizeof h->to},
        {&h->first, sizeof h->first},
        {&h->n_layers, sizeof h->n_layers},
        {&h->n_embd, sizeof h->n_embd},
        {&h->n_ctx, sizeof h->n_ctx},
        {&h->max_rows, sizeof h->max_rows},
        {&h->arithmetic, sizeof h->arithmetic},
        {&h->layout, sizeof h->layout},
        {&h->form, sizeof h->form},
        {&h->sum, sizeof h->sum},
        {&h->pages, sizeof h->pages},
        {&h->budget_bytes, sizeof h->budget_bytes},
        {&h->instance, sizeof h->instance},
        {&h->weight_bytes, sizeof h->weight_bytes},
        {&h->limit_bytes, sizeof h->limit_bytes},
        {h->numerics, sizeof h->numerics},
        {h->family, sizeof h->family},
        {h->kv, sizeof h->kv},
        {h->cpu, sizeof h->cpu},
        {h->engine, sizeof h->engine},
        {&h->open, sizeof h->open},
        {&h->loading, sizeof h->loading},
        {&h->read_rate, sizeof h->read_rate},
        {&h->keeps, sizeof h->keeps},
    };
    memcpy(out, all, sizeof all);
}

void stage_hello_write(const struct stage_hello *h, uint8_t out[LINK_JOIN_BYTES])
{
    struct stage_hello copy = *h;
    struct field f[FIELDS];
    struct wire w = {.at = out, .cap = LINK_JOIN_BYTES};
    memset(out, 0, LINK_JOIN_BYTES);
    list_fields(&copy, f);
    for (int i = 0; i < FIELDS; i++)
        stage_put(&w, f[i].at, f[i].n);
}

/* Ended by 0, printable. */
static bool is_text(const char *s, size_t n)
{
    const char *end = memchr(s, 0, n);
    for (; end && s < end; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s > 126)
            return false;
    return end != NULL;
}

ingle_status stage_hello_read(const uint8_t *at, size_t n, struct stage_hello *out,
                              struct err *err)
{
    struct stage_hello h = {0};
    struct field f[FIELDS];
    struct wire_in w = {.at = at, .cap = n};
    if (n != LINK_JOIN_BYTES)
        return err_set(err, INGLE_FORMAT, "a JOIN has %zu bytes, not %d", n, LINK_JOIN_BYTES);
    list_fields(&h, f);
    for (int i = 0; i < FIELDS; i++)
        memcpy(f[i].at, stage_get(&w, f[i].n), f[i].n);
    if (!is_text(h.numerics, sizeof h.numerics) || !is_text(h.family, sizeof h.family) ||
        !is_text(h.kv, sizeof h.kv) || !is_text(h.cpu, sizeof h.cpu) ||
        !is_text(h.engine, sizeof h.engine))
        return err_set(err, INGLE_FORMAT, "a JOIN has a name that is no printable ASCII");
    if (h.n_layers < 1 || h.n_layers > LINK_MAX_LAYERS || h.n_embd < 1 ||
        h.n_embd > LINK_MAX_WIDTH || h.from >= h.to || h.to > h.n_layers || h.max_rows < 1 ||
        h.max_rows > LINK_MAX_ROWS || h.first > h.n_layers || h.n_ctx < 1 ||
        h.n_ctx > INT32_MAX)
        return err_set(err, INGLE_FORMAT,
                       "a JOIN has layers %u to %u of %u, width %u, %u rows, context %u: outside "
                       "the limits",
                       h.from, h.to, h.n_layers, h.n_embd, h.max_rows, h.n_ctx);
    *out = h;
    return INGLE_OK;
}

ingle_status stage_hello_agree(const struct stage_hello *e, const struct stage_hello *there,
                               struct err *err)
{
    if (e->version != there->version || e->arithmetic != there->arithmetic ||
        e->layout != there->layout)
        return err_set(err, INGLE_UNSUP,
                       "another version of ingle: protocol %u, arithmetic %u, layout %u here (%s), "
                       "%u, %u, %u there (%s)",
                       e->version, e->arithmetic, e->layout, e->engine, there->version,
                       there->arithmetic, there->layout, there->engine);
    if (strcmp(e->family, there->family) != 0)
        return err_set(err, INGLE_UNSUP, "another model: the family is '%s' here, '%s' there",
                       e->family, there->family);
    if (e->n_layers != there->n_layers)
        return err_set(err, INGLE_UNSUP, "another model: %u layers here, %u there", e->n_layers,
                       there->n_layers);
    if (e->n_embd != there->n_embd)
        return err_set(err, INGLE_UNSUP, "another model: width (--hidden) %u here, %u there",
                       e->n_embd, there->n_embd);
    if (e->form != there->form)
        return err_set(err, INGLE_UNSUP,
                       "another model or another quantisation: the hash of tensors and parameters "
                       "is %016" PRIx64 " here, %016" PRIx64 " there",
                       e->form, there->form);
    if (e->sum && there->sum && e->sum != there->sum)
        return err_set(err, INGLE_UNSUP,
                       "another model: the hash of all weights is %016" PRIx64 " here, %016" PRIx64
                       " there",
                       e->sum, there->sum);
    if (strcmp(e->numerics, there->numerics) != 0)
        return err_set(
            err, INGLE_UNSUP,
            "the numerics are '%s' here, '%s' there: both ends need the same (--numerics)",
            e->numerics, there->numerics);
    if (strcmp(e->kv, there->kv) != 0)
        return err_set(err, INGLE_UNSUP,
                       "keys and values are '%s' here, '%s' there: both ends need the same (--kv)",
                       e->kv, there->kv);
    if (e->n_ctx > there->n_ctx)
        return err_set(err, INGLE_UNSUP,
                       "a context of %u tokens here, at most %u there: both ends need the same "
                       "(--ctx)",
                       e->n_ctx, there->n_ctx);
    if (e->pages && there->pages && e->pages != there->pages)
        return err_set(err, INGLE_UNSUP,
                       "the layout of keys and values is %016" PRIx64 " here, %016" PRIx64 " there",
                       e->pages, there->pages);
    return INGLE_OK;
}

uint64_t stage_pages_hash(const struct kv_spec *s)
{
    uint64_t h = 1;
    for (uint32_t i = 0; i < s->n_streams; i++) {
        const struct kv_stream *st = &s->stream[i];
        const uint64_t v[] = {st->layer,   st->group,   st->n_heads, (uint64_t)st->k_width,
                              st->k_codec, st->v_codec, st->every,   st->at,
                              st->n_bytes, (uint64_t)s->group[st->group].window};
        if (s->n_own && st->group >= s->n_own)
            continue;
        h = XXH3_64bits_withSeed(v, sizeof v, h);
    }
    return h;
}
