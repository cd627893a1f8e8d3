/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of the types that run from their stored form, as integers: values of at most 8
 * bits with sub-scales per 16. */
#include "kern/code.h"

#include "base/bug.h"
#include <string.h>

static uint32_t load32(const void *at)
{
    uint32_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

static int nibble(const uint8_t *at, int i) { return at[i / 2] >> 4 * (i % 2) & 15; }

/* n coordinates of a point, byte j from the lowest, negative where bit j of sign is set. */
static void put_point(int8_t *q, uint64_t point, uint32_t sign, int n)
{
    for (int j = 0; j < n; j++) {
        const int v = (int)(point >> 8 * j & 255);
        q[j] = (int8_t)(sign >> j & 1 ? -v : v);
    }
}

static void read_iq2_xxs(const struct quant_iq2_xxs *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(s->d);
    for (int h = 0; h < 8; h++) {
        const uint32_t idx = load32(s->q + 4 * h), w = load32(s->q + 4 * h + 2);
        b->sub[2 * h] = b->sub[2 * h + 1] = (int16_t)(2 * (w >> 28) + 1);
        for (int l = 0; l < 4; l++)
            put_point(b->q + 32 * h + 8 * l, quant_book_iq2_xxs[idx >> 8 * l & 255],
                      quant_sign_byte(w >> 7 * l & 127), 8);
    }
}

static void read_iq2_xs(const struct quant_iq2_xs *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(s->d);
    for (int g = 0; g < 16; g++)
        b->sub[g] = (int16_t)(2 * nibble(s->sc, g) + 1);
    for (int k = 0; k < 32; k++)
        put_point(b->q + 8 * k, quant_book_iq2_xs[s->q[k] & 511], quant_sign_byte(s->q[k] >> 9),
                  8);
}

static void read_iq2_s(const struct quant_iq2_s *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(s->d);
    for (int g = 0; g < 16; g++)
        b->sub[g] = (int16_t)(2 * nibble(s->sc, g) + 1);
    for (int k = 0; k < 32; k++) {
        const int i = s->idx[k] | (s->qh[k / 4] >> 2 * (k % 4) & 3) << 8;
        put_point(b->q + 8 * k, quant_book_iq2_s[i], s->sign[k], 8);
    }
}

static void read_iq3_xxs(const struct quant_iq3_xxs *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(s->d);
    for (int h = 0; h < 8; h++) {
        const uint32_t w = load32(s->w + 4 * h);
        b->sub[2 * h] = b->sub[2 * h + 1] = (int16_t)(2 * (w >> 28) + 1);
        for (int l = 0; l < 8; l++)
            put_point(b->q + 32 * h + 4 * l, quant_book_iq3_xxs[s->idx[8 * h + l]],
                      quant_sign_byte(w >> 7 * (l / 2) & 127) >> 4 * (l % 2), 4);
    }
}

static void read_iq3_s(const struct quant_iq3_s *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(s->d);
    for (int g = 0; g < 16; g++)
        b->sub[g] = (int16_t)(2 * nibble(s->sc, g / 2) + 1);
    for (int k = 0; k < 64; k++) {
        const int i = s->idx[k] | (s->qh[k / 8] >> k % 8 & 1) << 8;
        put_point(b->q + 4 * k, quant_book_iq3_s[i], (uint32_t)s->sign[k / 2] >> 4 * (k % 2), 4);
    }
}

/* 8 (T + delta), delta = -1/8 or 1/8. */
static void put_ternary(int8_t *q, uint64_t point, int delta)
{
    for (int j = 0; j < 8; j++)
        q[j] = (int8_t)(8 * (int8_t)(point >> 8 * j & 255) + delta);
}

static void read_iq1_s(const struct quant_iq1_s *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(s->d);
    for (int g = 0; g < 16; g++)
        b->sub[g] = (int16_t)(2 * (s->h[g / 2] >> 12 & 7) + 1);
    for (int k = 0; k < 32; k++) {
        const int h = s->h[k / 4];
        put_ternary(b->q + 8 * k, quant_book_iq1[s->idx[k] | (h >> 3 * (k % 4) & 7) << 8],
                    h >> 15 ? -1 : 1);
    }
}

static void read_iq1_m(const struct quant_iq1_m *s, struct kern_block *b)
{
    b->d = quant_f16_to_f32(quant_iq1_m_scale(s->sc));
    for (int g = 0; g < 16; g++)
        b->sub[g] = (int16_t)(2 * (s->sc[g / 4] >> 3 * (g % 4) & 7) + 1);
    for (int k = 0; k < 32; k++) {
        const int h = nibble(s->qh, k);
        put_ternary(b->q + 8 * k, quant_book_iq1[s->idx[k] | (h & 7) << 8], h & 8 ? -1 : 1);
    }
}

static int8_t trit(uint8_t q, uint32_t pow3)
{
    return (int8_t)((int)((q * pow3 & 255) * 3 >> 8) - 1);
}

static void read_tq1_0(const struct quant_tq1_0 *s, struct kern_block *b)
{
    static const uint32_t pow3[5] = {1, 3, 9, 27, 81};
    int8_t *q = b->q;
    b->d = quant_f16_to_f32(s->d);
    for (int g = 0; g < 16; g++)
        b->sub[g] = 1;
    for (int n = 0; n < 5; n++)
        for (int j = 0; j < 32; j++)
            *q++ = trit(s->q[j], pow3[n]);
    for (int n = 0; n < 5; n++)
        for (int j = 32; j < 48; j++)
            *q++ = trit(s->q[j], pow3[n]);
    for (int n = 0; n < 4; n++)
        for (int j = 0; j < 4; j++)
            *q++ = trit(s->qh[j], pow3[n]);
}

void kern_stored_read(uint32_t code, const uint8_t *stored, struct kern_block *b)
{
    memset(b->min, 0, sizeof b->min);
    b->m = 0;
    switch (code) {
#define READ(id, fn)                        \
    case KERN_CODE_##id: {                  \
        struct quant_##fn s;                \
        memcpy(&s, stored, sizeof s);       \
        read_##fn(&s, b);                   \
        return;                             \
    }
        READ(IQ2_XXS, iq2_xxs)
        READ(IQ2_XS, iq2_xs)
        READ(IQ2_S, iq2_s)
        READ(IQ3_XXS, iq3_xxs)
        READ(IQ3_S, iq3_s)
        READ(IQ1_S, iq1_s)
        READ(IQ1_M, iq1_m)
        READ(TQ1_0, tq1_0)
#undef READ
    default:
        BUG("no stored code");
    }
}
