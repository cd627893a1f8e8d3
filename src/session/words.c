/* SPDX-License-Identifier: Apache-2.0 */
#include "session/words.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCKS = 2048, /* of a vocabulary, about */
    LEVELS = 4,    /* a sixteenth, an eighth, a quarter, a half */
    /* tokens at least between two orders of the blocks, and a part of those before: */
    ORDER = 64,
    ORDER_PART = 8,
    CHOOSE = 128,  /* tokens between two choices */
};

/* Memory of misses, in tokens; so many on top until more is known.  A head over all tokens costs
 * about as much as missing HEAD of them: reading it takes 0.07 (Gemma 31B) to 0.2 (26B-A4B) of a
 * step, and tokens that no text had recently are seldom guessed anyhow. */
static const float FADE = 1 - 1.0f / 1024, DOUBT = 1.5f, HEAD = 0.09f;

struct block { float n; int32_t index; };

struct words {
    int64_t n_vocab, width, n_blocks; /* tokens of a block */
    float *count;        /* [n_blocks] */
    int32_t *rank;       /* [n_blocks]: place in the order */
    struct block *order; /* [n_blocks]: seen ones by falling count, then the others as they stand */
    float tried, missed[LEVELS];
    int64_t n, ordered, chosen; /* tokens so far, at the last order, at the last choice */
    int level;                  /* of the choice; LEVELS: all */
    uint8_t *in;                /* [n_blocks]: scratch */
    struct device_columns only[FAMILY_MOST_COLUMNS];
    int64_t n_only;
};

static int64_t blocks_of(int64_t n_vocab, int64_t *width)
{
    *width = num_div_up(num_div_up(n_vocab, BLOCKS), DEVICE_COLUMNS) * DEVICE_COLUMNS;
    return num_div_up(n_vocab, *width);
}

uint64_t session_words_bytes(int64_t n_vocab)
{
    int64_t width;
    const uint64_t n = (uint64_t)blocks_of(n_vocab, &width);
    return sizeof(struct words) + n * (sizeof(float) + sizeof(int32_t) + sizeof(struct block) + 1);
}

ingle_status session_words_create(struct words **out, int64_t n_vocab, struct err *err)
{
    struct words *w = mem_zalloc(sizeof *w);
    if (!w)
        return err_set(err, INGLE_NOMEM, "no memory for drafts");
    w->n_vocab = n_vocab;
    w->n_blocks = blocks_of(n_vocab, &w->width);
    w->level = LEVELS;
    w->count = mem_calloc((size_t)w->n_blocks, sizeof *w->count);
    w->rank = mem_calloc((size_t)w->n_blocks, sizeof *w->rank);
    w->order = mem_calloc((size_t)w->n_blocks, sizeof *w->order);
    w->in = mem_calloc((size_t)w->n_blocks, 1);
    if (!w->count || !w->rank || !w->order || !w->in) {
        session_words_free(w);
        return err_set(err, INGLE_NOMEM, "no memory for drafts");
    }
    for (int64_t i = 0; i < w->n_blocks; i++)
        w->rank[i] = w->order[i].index = (int32_t)i;
    *out = w;
    return INGLE_OK;
}

void session_words_free(struct words *w)
{
    if (!w)
        return;
    mem_free(w->count);
    mem_free(w->rank);
    mem_free(w->order);
    mem_free(w->in);
    mem_free(w);
}

static int by_count(const void *x, const void *y)
{
    const struct block *a = x, *b = y;
    if (a->n > b->n || a->n < b->n)
        return a->n > b->n ? -1 : 1;
    return (a->index > b->index) - (a->index < b->index);
}

static void order(struct words *w)
{
    for (int64_t i = 0; i < w->n_blocks; i++)
        w->order[i] = (struct block){w->count[i], (int32_t)i};
    qsort(w->order, (size_t)w->n_blocks, sizeof *w->order, by_count);
    for (int64_t i = 0; i < w->n_blocks; i++)
        w->rank[w->order[i].index] = (int32_t)i;
    w->ordered = w->n;
}

/* Blocks of a level. */
static int64_t level_blocks(const struct words *w, int level)
{
    return num_max(1, w->n_blocks >> (LEVELS - level));
}

static void note(struct words *w, int64_t block)
{
    w->tried = w->tried * FADE + 1;
    for (int l = 0; l < LEVELS; l++)
        w->missed[l] = w->missed[l] * FADE + (w->rank[block] >= level_blocks(w, l) ? 1 : 0);
    w->count[block] += 1;
    w->n++;
}

void session_words_note(struct words *w, const int32_t *token, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (token[i] < 0 || token[i] >= w->n_vocab)
            continue;
        note(w, token[i] / w->width);
        if (w->n - w->ordered >= num_max(ORDER, w->ordered / ORDER_PART))
            order(w);
    }
}

/* What costs least: the head's part, and what is missed. */
static int level_of(const struct words *w)
{
    int best = LEVELS;
    float least = HEAD * w->tried;
    for (int l = LEVELS - 1; l >= 0; l--) {
        const float cost = HEAD * w->tried / (float)(1 << (LEVELS - l)) + w->missed[l] + DOUBT;
        if (cost < least) {
            least = cost;
            best = l;
        }
    }
    return best;
}

/* The runs of the first n blocks of the order; where there are too many the smallest gaps are
 * taken, too. */
static void list(struct words *w, int64_t n)
{
    memset(w->in, 0, (size_t)w->n_blocks);
    for (int64_t i = 0; i < n; i++)
        w->in[w->order[i].index] = 1;
    for (int64_t gap = 0;; gap++) {
        int64_t end = -1; /* after the last run */
        w->n_only = 0;
        bool fits = true;
        for (int64_t b = 0; b < w->n_blocks && fits; b++) {
            if (!w->in[b])
                continue;
            const bool joins = end >= 0 && b - end <= gap;
            fits = joins || w->n_only < FAMILY_MOST_COLUMNS;
            if (!joins && fits)
                w->only[w->n_only++].first = b * w->width;
            end = b + 1;
            if (fits)
                w->only[w->n_only - 1].n =
                    num_min(end * w->width, w->n_vocab) - w->only[w->n_only - 1].first;
        }
        if (fits)
            return;
    }
}

bool session_words_choose(struct words *w, const struct device_columns **out, int64_t *n)
{
    const int level = level_of(w);
    /* Smaller parts are taken up slowly, and left at once. */
    const bool changes =
        level > w->level || (w->n - w->chosen >= CHOOSE && (level < LEVELS || w->level < LEVELS));
    if (changes) {
        w->chosen = w->n;
        w->level = level;
        w->n_only = 0;
        if (level < LEVELS)
            list(w, level_blocks(w, level));
    }
    *out = w->only;
    *n = w->n_only;
    return changes;
}
