/* SPDX-License-Identifier: Apache-2.0 */
/* spans - where pictures and sounds stand in prompts. */
#include "api/api.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

static int32_t find(const struct tokenizer *t, const char *spelling)
{
    return t ? text_find(t, spelling, strlen(spelling)) : -1;
}

void engine_media_ids(const struct tokenizer *t, struct engine_media_ids *out)
{
    *out = (struct engine_media_ids){.image = find(t, "<|image|>"),
                                     .audio = find(t, "<|audio|>"),
                                     .video = find(t, "<|video|>"),
                                     .begin_image = find(t, "<|image>"),
                                     .end_image = find(t, "<image|>"),
                                     .begin_audio = find(t, "<|audio>"),
                                     .end_audio = find(t, "<audio|>")};
}

/* What a placeholder stands for; ANY: it is none. */
static enum ingle_media_kind kind_of(const struct engine_media_ids *d, int32_t id)
{
    return id < 0             ? INGLE_MEDIA_ANY
           : id == d->image   ? INGLE_MEDIA_IMAGE
           : id == d->audio   ? INGLE_MEDIA_AUDIO
                              : INGLE_MEDIA_ANY;
}

/* Tokens of the whole prompt. */
static ingle_status count(const struct engine_media_ids *d, const struct text_ids *ids,
                          struct ingle_medium *const *media, size_t n_media, size_t *out,
                          struct err *err)
{
    size_t n = ids->n, k = 0;
    for (size_t i = 0; i < ids->n; i++) {
        const enum ingle_media_kind kind = kind_of(d, ids->id[i]);
        if (d->video >= 0 && ids->id[i] == d->video)
            return err_set(err, INGLE_UNSUP, "the prompt has a video: this version reads pictures");
        if (kind == INGLE_MEDIA_ANY)
            continue;
        if (k < n_media && media[k]->info.kind != kind)
            return err_set(err, INGLE_ARG, "part %zu of the media is a %s, but a %s is given", k,
                           engine_medium_kind(kind), engine_medium_kind(media[k]->info.kind));
        if (k < n_media && !num_add(n, (size_t)media[k]->info.n_tokens - 1, &n))
            return err_set(err, INGLE_LIMIT, "the media of the prompt have too many tokens");
        k++;
    }
    if (k != n_media)
        return err_set(err, INGLE_ARG, "the prompt has %zu pictures and sounds, %zu are given", k,
                       n_media);
    *out = n;
    return INGLE_OK;
}

/* Marker, placeholders, marker from id[at] on; returns where they end. */
static size_t put(const struct engine_media_ids *d, struct ingle_medium *m, int32_t *id, size_t at,
                  struct ingle_span *span)
{
    const bool image = m->info.kind == INGLE_MEDIA_IMAGE;
    id[at++] = image ? d->begin_image : d->begin_audio;
    *span = (struct ingle_span){(int64_t)at, m->info.n_soft, ingle_medium_ref(m)};
    for (int64_t i = 0; i < m->info.n_soft; i++)
        id[at++] = image ? d->image : d->audio;
    id[at++] = image ? d->end_image : d->end_audio;
    return at;
}

ingle_status engine_media_expand(const struct ingle_model *m, struct text_ids *ids,
                                 struct ingle_medium *const *media, size_t n_media,
                                 struct ingle_prompt *out, struct err *err)
{
    const struct engine_media_ids *d = &m->media;
    size_t n = 0, at = 0, k = 0;
    const ingle_status st = count(d, ids, media, n_media, &n, err);
    if (st)
        return st;
    int32_t *id = mem_calloc(n + 1, sizeof *id);
    struct ingle_span *span = mem_calloc(n_media + 1, sizeof *span);
    if (!id || !span) {
        mem_free(id);
        mem_free(span);
        return err_set(err, INGLE_NOMEM, "no memory for a prompt of %zu tokens", n);
    }
    for (size_t i = 0; i < ids->n; i++)
        if (kind_of(d, ids->id[i]) != INGLE_MEDIA_ANY) {
            at = put(d, media[k], id, at, &span[k]);
            k++;
        } else {
            id[at++] = ids->id[i];
        }
    text_ids_release(ids);
    out->ids = id;
    out->n_ids = n;
    out->span = span;
    out->n_spans = n_media;
    return INGLE_OK;
}

ingle_status engine_media_check(const struct ingle_model *m, const int32_t *tokens, int64_t n,
                                const struct ingle_span *span, size_t n_spans, struct err *err)
{
    int64_t end = 0;
    for (size_t i = 0; i < n_spans; i++) {
        const struct ingle_span *s = &span[i];
        if (!s->medium || s->n != s->medium->info.n_soft)
            return err_set(err, INGLE_ARG, "span %zu has %lld soft tokens, its medium %lld", i,
                           (long long)s->n,
                           (long long)(s->medium ? s->medium->info.n_soft : 0));
        if (s->start < end || s->n > n || s->start > n - s->n)
            return err_set(err, INGLE_ARG,
                           "span %zu is at %lld to %lld, expected from %lld on and below %lld", i,
                           (long long)s->start, (long long)(s->start + s->n), (long long)end,
                           (long long)n);
        for (int64_t k = s->start; k < s->start + s->n; k++)
            if (kind_of(&m->media, tokens[k]) != s->medium->info.kind)
                return err_set(err, INGLE_ARG, "token %lld is %d, no placeholder of the %s there",
                               (long long)k, tokens[k], engine_medium_kind(s->medium->info.kind));
        end = s->start + s->n + 1;
    }
    return INGLE_OK;
}

/* Appends the tokens of text [n], or a placeholder. */
static ingle_status add_piece(const struct ingle_model *m, const char *text, size_t n, int flags,
                              struct ingle_bounds *bounds, struct text_ids *ids, struct err *err)
{
    const struct text_range all = {0, n};
    const bool special = (flags & INGLE_PARSE_SPECIAL) != 0 && n;
    return engine_encode(m->tokenizer, text, n, (flags & INGLE_ADD_SPECIAL) != 0,
                         special ? &all : NULL, special, bounds, ids, err);
}

/* Tokens with one placeholder for each marker. */
static ingle_status split(const struct ingle_model *m, const char *text, size_t n, int flags,
                          const char *marker, struct ingle_medium *const *media, size_t n_media,
                          struct ingle_bounds *bounds, struct text_ids *ids, struct err *err)
{
    const size_t n_marker = strlen(marker);
    size_t begin = 0, k = 0;
    for (size_t i = 0; i + n_marker <= n;) {
        if (memcmp(text + i, marker, n_marker) != 0) {
            i++;
            continue;
        }
        if (k == n_media)
            return err_set(err, INGLE_ARG, "the text has more markers '%s' than the %zu media",
                           marker, n_media);
        const ingle_status st = add_piece(m, text + begin, i - begin, flags, bounds, ids, err);
        if (st)
            return st;
        if (!mem_grow(&ids->id, &ids->cap, ids->n + 1, sizeof *ids->id))
            return err_set(err, INGLE_NOMEM, "no memory for tokens");
        ids->id[ids->n++] =
            media[k++]->info.kind == INGLE_MEDIA_IMAGE ? m->media.image : m->media.audio;
        flags &= ~INGLE_ADD_SPECIAL;
        i += n_marker;
        begin = i;
    }
    if (k < n_media)
        return err_set(err, INGLE_ARG, "the text has %zu markers '%s', %zu media are given", k,
                       marker, n_media);
    return add_piece(m, text + begin, n - begin, flags, bounds, ids, err);
}

ingle_status ingle_tokenize_media(const struct ingle_model *m, const char *text, size_t n,
                                  int flags, const char *marker, struct ingle_medium *const *media,
                                  size_t n_media, struct ingle_bounds *bounds,
                                  struct ingle_prompt *out, struct ingle_error *error)
{
    struct err err;
    struct text_ids ids = {0};
    struct ingle_prompt r = {0};
    ingle_status st = engine_need_words(m, &err);
    if (!st && !*marker)
        st = err_set(&err, INGLE_ARG, "the marker of media is empty");
    if (!st)
        st = split(m, text, n, flags, marker, media, n_media, bounds, &ids, &err);
    if (!st && !(r.text = mem_strndup(text, n)))
        st = err_set(&err, INGLE_NOMEM, "no memory for a prompt");
    if (!st)
        st = engine_media_expand(m, &ids, media, n_media, &r, &err);
    text_ids_release(&ids);
    r.n_text = n;
    if (st)
        ingle_prompt_release(&r);
    else
        *out = r;
    return engine_say(error, st, &err);
}

ingle_status engine_media_soft(const struct ingle_span *span, size_t n_spans,
                               struct session_soft **out, struct err *err)
{
    *out = NULL;
    if (!n_spans)
        return INGLE_OK;
    struct session_soft *soft = mem_calloc(n_spans, sizeof *soft);
    if (!soft)
        return err_set(err, INGLE_NOMEM, "no memory for %zu spans", n_spans);
    for (size_t i = 0; i < n_spans; i++)
        soft[i] = (struct session_soft){span[i].start, &span[i].medium->soft};
    *out = soft;
    return INGLE_OK;
}
