/* SPDX-License-Identifier: Apache-2.0 */
/* types - what keys and values are kept as: names, and what follows for layers that nobody
 * named. */
#include "kv/kv.h"

#include <stdio.h>
#include <string.h>

static const char *const kinds[KV_TYPE_KINDS] = {"full", "sliding"};

struct kv_types kv_types_of(enum kern_kv_codec c)
{
    return (struct kv_types){.k = {c, c}, .v = {c, c}};
}

/* Windows are small: what is coded pays nothing there. */
static enum kern_kv_codec in_windows(enum kern_kv_codec c)
{
    return kern_kv_needs_coded(c, c) ? KERN_KV_F16 : c;
}

static struct kv_types with_windows(enum kern_kv_codec k, enum kern_kv_codec v)
{
    const bool made = k == KERN_KV_FROM_V || kern_kv_is_rot(k);
    return (struct kv_types){.k = {k, in_windows(k)}, .v = {v, made ? KERN_KV_F16 : in_windows(v)}};
}

static ingle_status no_type(const char *name, size_t n, struct err *err)
{
    return err_set(err, INGLE_ARG,
                   "there is no KV format '%.*s': there are %s, and K:V of two of these; with keys "
                   "made of values f32v, f16v, bf16v, q8r+rot, n4r+rot and q8r:n4r+rot",
                   (int)(n < 40 ? n : 40), name, kern_kv_names);
}

static ingle_status one_type(const char *name, size_t n, enum kern_kv_codec *out, struct err *err)
{
    char text[16];
    snprintf(text, sizeof text, "%.*s", (int)(n < sizeof text ? n : 0), name);
    return kern_kv_by_name(text, out) ? INGLE_OK : no_type(name, n, err);
}

/* What +rot is said of; false: it has no such form. */
static bool make_rot(enum kern_kv_codec *c)
{
    *c = *c == KERN_KV_Q8R ? KERN_KV_Q8R_ROT : *c == KERN_KV_N4R ? KERN_KV_N4R_ROT : *c;
    return kern_kv_is_rot(*c);
}

/* TYPE, K:V or TYPEv. */
static ingle_status pair_of_types(const char *name, size_t n, enum kern_kv_codec *k,
                                  enum kern_kv_codec *v, struct err *err)
{
    static const char removed[] = "q8_0v";
    const char *colon = memchr(name, ':', n);
    if (colon) {
        const ingle_status s = one_type(name, (size_t)(colon - name), k, err);
        return s ? s : one_type(colon + 1, n - 1 - (size_t)(colon - name), v, err);
    }
    if (n > 1 && name[n - 1] == 'v') {
        *k = KERN_KV_FROM_V;
        if (n == sizeof removed - 1 && memcmp(name, removed, n) == 0)
            return err_set(err, INGLE_ARG,
                           "there is no KV format '%s': q8r+rot is as near and faster, "
                           "q8r:n4r+rot is smaller and faster",
                           removed);
        return one_type(name, n - 1, v, NULL) || *v == KERN_KV_Q8_0 ||
                       (int)*v >= KERN_KV_BLOCK_CODECS
                   ? no_type(name, n, err)
                   : INGLE_OK;
    }
    const ingle_status s = one_type(name, n, k, err);
    *v = *k;
    return s;
}

/* TYPE, K:V, TYPEv, or one of the first two with +rot. */
static ingle_status both_types(const char *name, size_t n, enum kern_kv_codec *k,
                               enum kern_kv_codec *v, struct err *err)
{
    static const char rot[] = "+rot";
    const size_t all = n, n_rot = sizeof rot - 1;
    if (n > n_rot && memcmp(name + n - n_rot, rot, n_rot) == 0) {
        n -= n_rot;
        if (pair_of_types(name, n, k, v, NULL) || !make_rot(k) || !make_rot(v))
            return no_type(name, all, err);
        return INGLE_OK;
    }
    return pair_of_types(name, n, k, v, err);
}

enum { MOST_LAYERS = 9999 };

/* A number of up to four digits at *p, which is moved after it; -1: there is none. */
static int64_t read_layer(const char **p)
{
    int64_t n = -1;
    for (int i = 0; i < 5 && **p >= '0' && **p <= '9'; i++, ++*p)
        n = (n < 0 ? 0 : n * 10) + (**p - '0');
    return n > MOST_LAYERS ? -1 : n;
}

/* "7" or "8-11", n bytes. */
static bool read_range(const char *p, size_t n, struct kv_type_range *r)
{
    const char *end = p + n;
    r->first = r->last = read_layer(&p);
    if (r->first >= 0 && *p == '-' && p < end) {
        p++;
        r->last = read_layer(&p);
    }
    return r->first >= 0 && p == end && r->last >= r->first;
}

/* full=TYPES,sliding=TYPES,LAYER=TYPES,FIRST-LAST=TYPES */
static ingle_status of_layers(const char *text, struct kv_types *t, struct err *err)
{
    for (const char *p = text;; p++) {
        const size_t n = strcspn(p, ","), name = strcspn(p, "=");
        struct kv_type_range one = {0};
        int kind = 0;
        while (kind < KV_TYPE_KINDS &&
               (strlen(kinds[kind]) != name || strncmp(kinds[kind], p, name) != 0))
            kind++;
        if (name >= n || (kind == KV_TYPE_KINDS && !read_range(p, name, &one)))
            return err_set(err, INGLE_ARG,
                           "KV formats of layers '%.60s' are not full=TYPE, sliding=TYPE, 7=TYPE "
                           "or 8-11=TYPE, with a comma between them (--kv-layers)",
                           text);
        const ingle_status s = both_types(p + name + 1, n - name - 1, &one.k, &one.v, err);
        if (s)
            return s;
        if (kind < KV_TYPE_KINDS) {
            t->k[kind] = one.k;
            t->v[kind] = one.v;
        } else if (t->n_ranges == KV_TYPE_RANGES) {
            return err_set(err, INGLE_ARG,
                           "KV formats of layers '%.60s': more than %d layers or ranges are named",
                           text, KV_TYPE_RANGES);
        } else {
            t->range[t->n_ranges++] = one;
        }
        p += n;
        if (!*p)
            return INGLE_OK;
    }
}

void kv_types_of_layer(const struct kv_types *t, int64_t layer, int kind, enum kern_kv_codec *k,
                       enum kern_kv_codec *v)
{
    *k = t->k[kind];
    *v = t->v[kind];
    for (int i = 0; i < t->n_ranges; i++)
        if (layer >= t->range[i].first && layer <= t->range[i].last) {
            *k = t->range[i].k;
            *v = t->range[i].v;
        }
}

ingle_status kv_types_check_layers(const struct kv_types *t, int64_t n_own, int64_t n_layers,
                                   struct err *err)
{
    for (int i = 0; i < t->n_ranges; i++) {
        const int64_t last = t->range[i].last;
        if (last >= n_layers)
            return err_set(err, INGLE_ARG,
                           "KV formats name layer %lld, and the layers are 0 to %lld",
                           (long long)last, (long long)n_layers - 1);
        if (last >= n_own)
            return err_set(err, INGLE_ARG,
                           "KV formats name layer %lld, which reads the keys and values of others: "
                           "those with their "
                           "own are 0 to %lld",
                           (long long)last, (long long)n_own - 1);
    }
    return INGLE_OK;
}

ingle_status kv_types_parse(const char *both, const char *keys, const char *values,
                            const char *layers, struct kv_types *out, struct err *err)
{
    enum kern_kv_codec k = KERN_KV_F16, v = KERN_KV_F16;
    ingle_status s = both ? both_types(both, strlen(both), &k, &v, err) : INGLE_OK;
    const bool rot = !s && kern_kv_is_rot(k);
    if (!s && keys && (k == KERN_KV_FROM_V || rot))
        return err_set(err, INGLE_ARG,
                       "KV format '%s' makes keys of values: it goes with no format of keys ('%s')",
                       both, keys);
    if (!s && keys)
        s = one_type(keys, strlen(keys), &k, err);
    if (!s && values)
        s = one_type(values, strlen(values), &v, err);
    if (!s && values && rot && !make_rot(&v))
        return err_set(err, INGLE_ARG,
                       "KV format '%s' makes keys of values in q8r or n4r, not in '%s'", both,
                       values);
    struct kv_types t = with_windows(k, v);
    if (!s && layers)
        s = of_layers(layers, &t, err);
    if (!s)
        *out = t;
    return s;
}

static void put_pair(char *out, size_t n, enum kern_kv_codec k, enum kern_kv_codec v)
{
    if (k == KERN_KV_FROM_V)
        snprintf(out, n, "%sv", kern_kv_name(v));
    else if (k == v)
        snprintf(out, n, "%s", kern_kv_name(k));
    else if (kern_kv_is_rot(k))
        snprintf(out, n, "%s:%s", kern_kv_name(kern_kv_code(k)), kern_kv_name(v));
    else
        snprintf(out, n, "%s:%s", kern_kv_name(k), kern_kv_name(v));
}

struct kv_types_text kv_types_name(const struct kv_types *t)
{
    struct kv_types_text text;
    char window[24];
    const struct kv_types usual = with_windows(t->k[KV_FULL], t->v[KV_FULL]);
    put_pair(text.at, sizeof text.at, t->k[KV_FULL], t->v[KV_FULL]);
    size_t at = strlen(text.at);
    if (usual.k[KV_SLIDING] != t->k[KV_SLIDING] || usual.v[KV_SLIDING] != t->v[KV_SLIDING]) {
        put_pair(window, sizeof window, t->k[KV_SLIDING], t->v[KV_SLIDING]);
        at += (size_t)snprintf(text.at + at, sizeof text.at - at, ",sliding=%s", window);
    }
    for (int i = 0; i < t->n_ranges; i++) { /* at most 8 of 27 bytes */
        const struct kv_type_range *r = &t->range[i];
        put_pair(window, sizeof window, r->k, r->v);
        at += (size_t)snprintf(text.at + at, sizeof text.at - at, ",%lld", (long long)r->first);
        if (r->last > r->first)
            at += (size_t)snprintf(text.at + at, sizeof text.at - at, "-%lld", (long long)r->last);
        at += (size_t)snprintf(text.at + at, sizeof text.at - at, "=%s", window);
    }
    return text;
}

struct kv_types kv_types_of_drafter(const struct kv_types *t)
{
    struct kv_types plain = {.shadow = false};
    for (int i = 0; i < KV_TYPE_KINDS; i++) {
        plain.k[i] = in_windows(t->k[i]);
        plain.v[i] = t->k[i] == KERN_KV_FROM_V ? KERN_KV_F16 : in_windows(t->v[i]);
    }
    return plain;
}

ingle_status kv_types_of_rows(const struct kv_types *t, enum kern_kv_codec *out, struct err *err)
{
    const enum kern_kv_codec c = t->k[KV_FULL];
    const bool alike =
        !t->n_ranges && t->v[KV_FULL] == c && t->k[KV_SLIDING] == c && t->v[KV_SLIDING] == c;
    if (!alike || (c != KERN_KV_F32 && c != KERN_KV_F16 && c != KERN_KV_BF16 && c != KERN_KV_FP8))
        return err_set(err, INGLE_UNSUP,
                       "this model keeps one row for keys and values together: as f32, f16, bf16 "
                       "or fp8, not as '%s'",
                       kv_types_name(t).at);
    *out = c;
    return INGLE_OK;
}
