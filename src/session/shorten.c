/* SPDX-License-Identifier: Apache-2.0 */
#include "session/shorten.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct chunk {
    float score;
    int64_t index;
};

static int by_score(const void *a, const void *b)
{
    const struct chunk *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static int64_t chunk_end(const struct session_shorten *s, int64_t c)
{
    return num_min(s->n, (c + 1) * SHORTEN_CHUNK);
}

/* The mean of the scores around a token; what is no number counts as 0. */
static float pooled(const struct session_shorten *s, int64_t at)
{
    const int64_t first = num_max(0, at - SHORTEN_POOL / 2),
                  end = num_min(s->n, at + SHORTEN_POOL / 2 + 1);
    float sum = 0;
    for (int64_t i = first; i < end; i++)
        sum += isfinite(s->score[i]) ? s->score[i] : 0.0f;
    return sum / (float)(end - first);
}

static float mean_score(const struct session_shorten *s, int64_t c)
{
    float sum = 0;
    for (int64_t i = c * SHORTEN_CHUNK; i < chunk_end(s, c); i++)
        sum += pooled(s, i);
    return sum / (float)(chunk_end(s, c) - c * SHORTEN_CHUNK);
}

static void keep_chunk(const struct session_shorten *s, int64_t c, bool *kept)
{
    for (int64_t i = c * SHORTEN_CHUNK; i < chunk_end(s, c); i++)
        kept[i] = true;
}

static bool is_plain(const struct session_shorten *s, int64_t at)
{
    for (int64_t k = 0; k < SHORTEN_GRAM; k++)
        if (s->always[at + k])
            return false;
    return true;
}

/* Whether the tokens at `at` are some of the end's. */
static bool is_of_end(const struct session_shorten *s, int64_t at)
{
    for (int64_t i = s->n - SHORTEN_END; i + SHORTEN_GRAM <= s->n; i++)
        if (s->token[i] == s->token[at] &&
            !memcmp(s->token + i, s->token + at, SHORTEN_GRAM * sizeof *s->token) && is_plain(s, i))
            return true;
    return false;
}

/* Chunks in which the end's words occur, and their neighbours. */
static void keep_hits(const struct session_shorten *s, int64_t n_chunks, bool *kept)
{
    int64_t n_hits = 0, last = -1;
    for (int64_t i = 0; i + SHORTEN_GRAM <= s->n - SHORTEN_END && n_hits < SHORTEN_HITS; i++) {
        const int64_t c = i / SHORTEN_CHUNK;
        if (c == last || !is_of_end(s, i))
            continue;
        n_hits++;
        last = c;
        for (int64_t k = num_max(0, c - 1); k <= num_min(n_chunks - 1, c + 1); k++)
            keep_chunk(s, k, kept);
    }
}

ingle_status session_shorten_choose(const struct session_shorten *s, bool *kept, int64_t *n_kept,
                                 struct err *err)
{
    const int64_t n_chunks = num_div_up(s->n, SHORTEN_CHUNK);
    struct chunk *order = mem_calloc((size_t)n_chunks + 1, sizeof *order);
    if (!order)
        return err_set(err, INGLE_NOMEM, "no memory for the scores of %lld tokens",
                       (long long)s->n);
    for (int64_t i = 0; i < s->n; i++)
        kept[i] = s->always[i] || i < s->system;
    for (int64_t c = 0; c < n_chunks; c++) {
        order[c] = (struct chunk){mean_score(s, c), c};
        if (c < SHORTEN_FIRST || c >= n_chunks - SHORTEN_LAST)
            keep_chunk(s, c, kept);
    }
    if (s->n > SHORTEN_END)
        keep_hits(s, n_chunks, kept);
    qsort(order, (size_t)n_chunks, sizeof *order, by_score);
    const int64_t most = (int64_t)(s->keep * (double)s->n);
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++)
        n += kept[i];
    for (int64_t k = 0; k < n_chunks; k++) {
        int64_t more = 0;
        for (int64_t i = order[k].index * SHORTEN_CHUNK; i < chunk_end(s, order[k].index); i++)
            more += !kept[i];
        if (n + more > most)
            break;
        n += more;
        keep_chunk(s, order[k].index, kept);
    }
    mem_free(order);
    *n_kept = n;
    return INGLE_OK;
}

void session_shorten_map(const int64_t *from, const bool *kept_from, int64_t n_from,
                         const int64_t *to, bool *kept_to, int64_t n_to)
{
    int64_t begin = 0;
    for (int64_t i = 0, k = 0; i < n_to; begin = to[i++]) {
        kept_to[i] = to[i] == begin;
        while (k < n_from && from[k] <= begin)
            k++;
        for (int64_t j = k; j < n_from && (j ? from[j - 1] : 0) < to[i]; j++)
            kept_to[i] |= kept_from[j];
    }
}
