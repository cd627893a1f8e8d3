/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a stored block of points stand in a panel. */
#include "kern/code.h"

#include "base/bug.h"
#include <string.h>

/* n bytes of a stored block for each of its `units` stretches of k, `skip` apart; each stretch
 * has a place in the chunk, with the same bytes of 16 rows. */
struct part {
    uint16_t from;
    uint8_t step, n, skip, units;
    uint16_t to, to_step;
};
enum { MOST_PARTS = 6 };

#define D_PART(id) {0, 0, 2, 1, 1, KERN_CHUNK_##id - 64, 32}
#define LINE(id, i, from, step, skip) {from, step, 4, skip, 8, 64 * (i), KERN_GROUP_##id}
#define AT(id, field) offsetof(struct quant_##id, field)

static const struct part parts[][MOST_PARTS] = {
    [0] =
        {/* IQ2_XXS */
         LINE(IQ2_XXS, 0, AT(iq2_xxs, q), 8, 1), LINE(IQ2_XXS, 1, AT(iq2_xxs, q) + 4, 8, 1),
         D_PART(IQ2_XXS)},
    [KERN_CODE_IQ2_XS - KERN_CODE_IQ2_XXS] = {LINE(IQ2_XS, 0, AT(iq2_xs, q), 8, 2),
                                              LINE(IQ2_XS, 1, AT(iq2_xs, q) + 1, 8, 2),
                                              {AT(iq2_xs, sc), 1, 1, 1, 8, KERN_TAIL_IQ2_XS, 16},
                                              D_PART(IQ2_XS)},
    [KERN_CODE_IQ2_S - KERN_CODE_IQ2_XXS] = {LINE(IQ2_S, 0, AT(iq2_s, idx), 4, 1),
                                             LINE(IQ2_S, 1, AT(iq2_s, sign), 4, 1),
                                             {AT(iq2_s, qh), 1, 1, 1, 8, KERN_TAIL_IQ2_S, 16},
                                             {AT(iq2_s, sc), 1, 1, 1, 8, KERN_TAIL_IQ2_S + 256, 16},
                                             D_PART(IQ2_S)},
    [KERN_CODE_IQ3_XXS - KERN_CODE_IQ2_XXS] = {LINE(IQ3_XXS, 0, AT(iq3_xxs, idx), 8, 1),
                                               LINE(IQ3_XXS, 1, AT(iq3_xxs, idx) + 4, 8, 1),
                                               LINE(IQ3_XXS, 2, AT(iq3_xxs, w), 4, 1),
                                               D_PART(IQ3_XXS)},
    [KERN_CODE_IQ3_S - KERN_CODE_IQ2_XXS] = {LINE(IQ3_S, 0, AT(iq3_s, idx), 8, 1),
                                             LINE(IQ3_S, 1, AT(iq3_s, idx) + 4, 8, 1),
                                             LINE(IQ3_S, 2, AT(iq3_s, sign), 4, 1),
                                             {AT(iq3_s, qh), 1, 1, 1, 8, KERN_TAIL_IQ3_S, 16},
                                             {AT(iq3_s, sc), 1, 1, 1, 4, KERN_TAIL_IQ3_S + 256, 16},
                                             D_PART(IQ3_S)},
};
static_assert(sizeof(struct quant_iq2_s) <= KERN_POINT_BYTES, "the largest block of points");

/* The parts of w's code, and the chunk of block i of panel p. */
static const struct part *parts_of(const struct kern_matrix *w, int64_t p, int64_t i,
                                   uint8_t **chunk)
{
    BUG_IF(w->code < KERN_CODE_IQ2_XXS ||
           w->code - KERN_CODE_IQ2_XXS >= sizeof parts / sizeof *parts);
    *chunk =
        kern_code_panel(w, p, 256 * i) + (size_t)(i / 2) * kern_code_find(w->code)->chunk_bytes;
    return parts[w->code - KERN_CODE_IQ2_XXS];
}

/* Where row r of stretch u of the part stands, in the even or odd block of a chunk. */
static uint8_t *place(const struct part *s, uint8_t *chunk, int64_t i, int u, int r)
{
    return chunk + s->to + (size_t)s->to_step * (size_t)(i % 2 * s->units + u) +
           (size_t)s->n * (size_t)r;
}

void kern_points_put(const struct kern_matrix *w, int64_t p, int64_t i, int r,
                     const uint8_t *stored)
{
    uint8_t *chunk;
    const struct part *s = parts_of(w, p, i, &chunk);
    for (const struct part *end = s + MOST_PARTS; s < end && s->n; s++)
        for (int u = 0; u < s->units; u++) {
            const uint8_t *from = stored + s->from + u * s->step;
            uint8_t *to = place(s, chunk, i, u, r);
            if (s->n == 4 && s->skip == 1)
                memcpy(to, from, 4);
            else
                for (int j = 0; j < s->n; j++)
                    to[j] = from[j * s->skip];
        }
}

void kern_points_get(const struct kern_matrix *w, int64_t p, int64_t i, int r, uint8_t *stored)
{
    uint8_t *chunk;
    const struct part *s = parts_of(w, p, i, &chunk);
    for (const struct part *end = s + MOST_PARTS; s < end && s->n; s++)
        for (int u = 0; u < s->units; u++) {
            const uint8_t *from = place(s, chunk, i, u, r);
            for (int j = 0; j < s->n; j++)
                stored[s->from + u * s->step + j * s->skip] = from[j];
        }
}
