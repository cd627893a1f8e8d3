/* SPDX-License-Identifier: Apache-2.0 */
/* match - which encoders each size of Gemma 4 has. */
#include "tower/bind.h"
#include "tower/inner.h"

#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct size {
    const char *label;
    bool per_layer, experts; /* the language model */
    enum tower_vision vision_kind;
    enum tower_audio audio_kind;
    bool standard; /* the encoder of pictures has */
    bool clamps;   /* it may have */
    bool deaf;     /* a file without an encoder of sound may be its */
} sizes[] = {
    {"E2B", true, false, VISION_ENCODER, AUDIO_CONFORMER, false, true, true},
    {"E4B", true, false, VISION_ENCODER, AUDIO_CONFORMER, false, true, true},
    {"12B", false, false, VISION_PATCHES, AUDIO_FRAMES, false, false, true},
    {"26B-A4B", false, true, VISION_ENCODER, AUDIO_NONE, true, false, true},
    {"31B", false, false, VISION_ENCODER, AUDIO_NONE, true, false, true},
    {"nano-gemma4", false, false, VISION_ENCODER, AUDIO_CONFORMER, false, false, false},
};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

const char *tower_vision_name(enum tower_vision vision_kind)
{
    return vision_kind == VISION_ENCODER   ? "gemma4v"
           : vision_kind == VISION_PATCHES ? "gemma4uv"
                                           : NULL;
}

const char *tower_audio_name(enum tower_audio audio_kind)
{
    return audio_kind == AUDIO_CONFORMER ? "gemma4a"
           : audio_kind == AUDIO_FRAMES  ? "gemma4ua"
                                         : NULL;
}

/* A set of sizes is a mask of their numbers. */
static bool is_known(const char *label)
{
    for (int i = 0; i < N_SIZES; i++)
        if (!strcmp(sizes[i].label, label))
            return true;
    return false;
}

static unsigned sizes_of(const struct tower_host *h)
{
    unsigned set = 0;
    for (int i = 0; i < N_SIZES; i++)
        if (!h || (is_known(h->size) ? !strcmp(sizes[i].label, h->size)
                                     : sizes[i].per_layer == h->per_layer &&
                                           sizes[i].experts == h->experts))
            set |= 1U << i;
    return set;
}

static unsigned with_vision(unsigned set, const struct tower *t)
{
    for (int i = 0; i < N_SIZES; i++)
        if (t->vision_kind && sizes[i].vision_kind != t->vision_kind)
            set &= ~(1U << i);
    return set;
}

static unsigned with_audio(unsigned set, const struct tower *t)
{
    for (int i = 0; i < N_SIZES; i++)
        if (t->audio_kind ? sizes[i].audio_kind != t->audio_kind : !sizes[i].deaf)
            set &= ~(1U << i);
    return set;
}

static bool has_standard(const struct tower *t)
{
    return t->vision.std_scale != NULL;
}

static unsigned with_standard(unsigned set, const struct tower *t)
{
    for (int i = 0; i < N_SIZES; i++)
        if (t->vision_kind == VISION_ENCODER && sizes[i].standard != has_standard(t))
            set &= ~(1U << i);
    return set;
}

/* The first layer of the encoder of pictures with bounds; -1: none. */
static int64_t first_clamped(const struct tower *t)
{
    for (int64_t i = 0; t->vision_kind == VISION_ENCODER && i < t->vision.n_layers; i++) {
        const struct vision_layer *l = &t->vision.layer[i];
        if (l->q.clamps || l->k.clamps || l->v.clamps || l->o.clamps || l->gate.clamps ||
            l->up.clamps || l->down.clamps)
            return i;
    }
    return -1;
}

static unsigned with_clamps(unsigned set, const struct tower *t)
{
    const bool any = first_clamped(t) >= 0;
    for (int i = 0; i < N_SIZES; i++)
        if (any && !sizes[i].clamps)
            set &= ~(1U << i);
    return set;
}

/* "'m.gguf', a 12B": of which model the encoders are to be. */
static void name_host(char *out, size_t n, const struct tower_options *o)
{
    const struct tower_host *h = o->host;
    const char *path = o->model ? o->model : "the language model";
    const char *quote = o->model ? "'" : "";
    if (!h)
        snprintf(out, n, "any size of Gemma 4");
    else if (is_known(h->size))
        snprintf(out, n, "%s%.200s%s, a %s", quote, path, quote, h->size);
    else
        snprintf(out, n, "%s%.200s%s, %s", quote, path, quote,
                 h->per_layer ? "which has per-layer inputs, as E2B and E4B have"
                 : h->experts ? "which has experts, as 26B-A4B has"
                              : "which is dense, as 12B and 31B are");
}

/* Those of a set, each once: "'gemma4v' or 'gemma4uv'". */
static void name_kinds(char *out, size_t n, unsigned set, bool audio_kind)
{
    const char *last = NULL;
    *out = 0;
    for (int i = 0; i < N_SIZES; i++) {
        const char *kind = audio_kind ? tower_audio_name(sizes[i].audio_kind)
                                      : tower_vision_name(sizes[i].vision_kind);
        if (!(set & 1U << i) || !kind || kind == last || strstr(out, kind))
            continue;
        const size_t at = strlen(out);
        snprintf(out + at, n - at, "%s'%s'", last ? " or " : "", kind);
        last = kind;
    }
}

ingle_status tower_match_kinds(const struct tower *t, const struct tower_options *o,
                               struct err *err)
{
    const unsigned all = sizes_of(o->host), with_v = with_vision(all, t),
                   with_va = with_audio(with_v, t);
    char host[320], kinds[64];
    if (with_va)
        return INGLE_OK;
    name_host(host, sizeof host, o);
    if (!with_v) {
        name_kinds(kinds, sizeof kinds, all, false);
        return err_set(err, INGLE_UNSUP,
                       "'%s': 'clip.vision.projector_type' is '%s', expected %s: this projector is "
                       "not that of %s",
                       io_path(t->file), tower_vision_name(t->vision_kind), kinds, host);
    }
    name_kinds(kinds, sizeof kinds, with_v, true);
    if (!*kinds)
        return err_set(err, INGLE_UNSUP,
                       "'%s': 'clip.has_audio_encoder' is true, expected false: this projector is "
                       "not that of %s, which does not hear",
                       io_path(t->file), host);
    return err_set(err, INGLE_UNSUP,
                   "'%s': 'clip.audio.projector_type' is '%s', expected %s beside '%s': this "
                   "projector is not that of %s",
                   io_path(t->file), tower_audio_name(t->audio_kind), kinds,
                   t->vision_kind ? tower_vision_name(t->vision_kind) : "none", host);
}

ingle_status tower_match_tensors(const struct tower *t, const struct tower_options *o,
                                 struct err *err)
{
    const unsigned all = with_audio(with_vision(sizes_of(o->host), t), t);
    const unsigned same = with_standard(all, t);
    char host[320];
    name_host(host, sizeof host, o);
    if (!same)
        return err_set(err, INGLE_UNSUP,
                       "'%s': tensor 'v.std_scale' is %s: this projector is not that of %s",
                       io_path(t->file), has_standard(t) ? "there" : "missing", host);
    if (with_clamps(same, t))
        return INGLE_OK;
    return err_set(err, INGLE_UNSUP,
                   "'%s': layer %lld has bounds ('v.blk.%lld.*.input_max'), which only E2B and E4B "
                   "have: this projector is not that of %s",
                   io_path(t->file), (long long)first_clamped(t), (long long)first_clamped(t),
                   host);
}
