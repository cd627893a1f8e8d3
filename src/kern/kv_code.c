/* SPDX-License-Identifier: Apache-2.0 */
#include "kern/kv_code.h"

#include "base/bug.h"
#include "kern/attend_part.h"
#include "kern/row.h"
#include "quant/quant.h"
#include <math.h>
#include <string.h>

#define F16_NAN 0x7e00
#define F16_END 65520.0 /* rounds to infinity, as all above it */
#define NO_NORM 1e-10   /* a group of this length or less counts as zeros */
#define NO_VALUE 1e-14
#define N4R_SPREAD 529.0 /* levels of a unit group of 128 */

const int8_t kern_n4r_level[16] = {-127, -96, -75, -58, -44, -30, -18, -6,
                                   6,    18,  30,  44,  58,  75,  96,  127};
const float kern_tq3_level[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f,
                                 0.021460f,  0.065717f,  0.117832f,  0.190685f};

static const double tq3_level[8] = {-0.190685, -0.117832, -0.065717, -0.021460,
                                    0.021460,  0.065717,  0.117832,  0.190685};
static const double tq3_point[7] = {-0.154259, -0.091775, -0.043589, 0,
                                    0.043589,  0.091775,  0.154259};
/* Bit j of byte k: the sign of element 8 k + j is minus. */
static const uint8_t sign_1[16] = {0x59, 0x03, 0x6a, 0xe4, 0x49, 0x59, 0xf8, 0x42,
                                   0xbb, 0x3b, 0xc6, 0xa4, 0xa9, 0x50, 0xf2, 0x49};
static const uint8_t sign_2[16] = {0x90, 0xee, 0xac, 0x16, 0xdc, 0x8f, 0x62, 0x3f,
                                   0x7a, 0x35, 0xa5, 0xb7, 0x62, 0x65, 0xa5, 0xbe};

static bool is_minus(const uint8_t *sign, int64_t i) { return sign[i / 8] >> i % 8 & 1; }

static void apply_signs(const uint8_t *sign, float *x)
{
    for (int64_t i = 0; i < KERN_KV_GROUP; i++)
        x[i] = is_minus(sign, i) ? -x[i] : x[i];
}

static void turn_group(float *x, const uint8_t *first, const uint8_t *then)
{
    apply_signs(first, x);
    kern_row_hadamard(x, KERN_KV_GROUP);
    apply_signs(then, x);
}

/* H of each part. */
static void turn_parts(float *x, int64_t width)
{
    for (int64_t i = 0; i < width; i += width / KERN_KV_PARTS)
        kern_row_hadamard(x + i, width / KERN_KV_PARTS);
}

static void turn_rot(float *x, int64_t width)
{
    float y[KERN_KV_WIDE];
    for (int64_t i = 0; i < width; i++)
        y[i] = x[kern_kv_rot_dim(width, i)];
    turn_parts(y, width);
    memcpy(x, y, (size_t)width * sizeof *x);
}

static void turn_rot_back(float *x, int64_t width)
{
    float y[KERN_KV_WIDE];
    turn_parts(x, width);
    for (int64_t i = 0; i < width; i++)
        y[kern_kv_rot_dim(width, i)] = x[i];
    memcpy(x, y, (size_t)width * sizeof *x);
}

void kern_kv_turn(enum kern_kv_codec c, float *x, int64_t width)
{
    if (kern_kv_is_rot(c))
        turn_rot(x, width);
    if (c == KERN_KV_Q8R || c == KERN_KV_N4R)
        kern_row_hadamard(x, width);
    for (int64_t i = 0; c == KERN_KV_TQ3_0 && i < width; i += KERN_KV_GROUP)
        turn_group(x + i, sign_1, sign_2);
}

void kern_kv_turn_back(enum kern_kv_codec c, float *x, int64_t width)
{
    if (kern_kv_is_rot(c))
        turn_rot_back(x, width);
    if (c == KERN_KV_Q8R || c == KERN_KV_N4R)
        kern_row_hadamard(x, width);
    for (int64_t i = 0; c == KERN_KV_TQ3_0 && i < width; i += KERN_KV_GROUP)
        turn_group(x + i, sign_2, sign_1);
}

/* ---- one head ---- */

/* To nearest, half to even, |x| <= 127. */
static int8_t rounded(float x)
{
    const float big = 12582912.0f; /* 1.5 * 2^23: what is after the point falls off */
    return (int8_t)(int)((x + big) - big);
}

void kern_kv_round_q8r(const float *y, int64_t width, uint16_t *scale, int8_t *code)
{
    float top = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < width; i++) {
        const float a = fabsf(y[i]);
        finite &= a < INFINITY;
        top = a > top ? a : top;
    }
    *scale = finite ? quant_f32_to_f16(top / 127.0f) : F16_NAN;
    const float by = quant_f16_to_f32(*scale);
    const bool some = by > 0.0f && by < INFINITY;
    if (!(by < INFINITY))
        *scale = F16_NAN;
    for (int64_t i = 0; i < width; i++) {
        const float v = some ? y[i] / by : 0.0f;
        code[i] = rounded(v > 127.0f ? 127.0f : v < -127.0f ? -127.0f : v);
    }
}

static void zero(int8_t *code, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        code[i] = 0;
}

/* Of a group's length and that of its levels. */
static uint16_t norm_of(double length, double levels, int8_t *code, int64_t n)
{
    const double v = levels > NO_NORM ? length / levels : length;
    if (v < F16_END)
        return quant_f32_to_f16((float)v);
    zero(code, n);
    return F16_NAN;
}

static double length_of(const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += y[i] * y[i];
    return sqrt(sum);
}

static uint16_t encode_n4r(const float *x, int64_t n, int8_t *code)
{
    double y[KERN_KV_GROUP], sum = 0;
    for (int64_t i = 0; i < n; i++)
        y[i] = (double)x[i];
    const double length = length_of(y, n);
    zero(code, n);
    if (!isfinite(length))
        return F16_NAN;
    const double by =
        length > NO_NORM ? N4R_SPREAD * sqrt((double)n / KERN_KV_GROUP) / length : 0.0;
    for (int64_t i = 0; i < n; i++) {
        int index = 0;
        for (int k = 0; k < 15; k++)
            index += y[i] * by >= 0.5 * (kern_n4r_level[k] + kern_n4r_level[k + 1]);
        code[i] = (int8_t)index;
        sum += (double)kern_n4r_level[index] * kern_n4r_level[index];
    }
    return norm_of(length, sqrt(sum), code, n);
}

/* In double: what is near a point of decision must not depend on how the turn rounds. */
static uint16_t encode_tq3(const float *x, int8_t *code)
{
    double y[KERN_KV_GROUP], sum = 0;
    for (int64_t i = 0; i < KERN_KV_GROUP; i++)
        y[i] = (double)x[i];
    const double length = length_of(y, KERN_KV_GROUP);
    memset(code, 0, KERN_KV_GROUP);
    if (!isfinite(length))
        return F16_NAN;
    for (int64_t i = 0; i < KERN_KV_GROUP; i++)
        y[i] = length > NO_NORM ? (is_minus(sign_1, i) ? -y[i] : y[i]) / length : 0.0;
    for (int64_t h = 1; h < KERN_KV_GROUP; h *= 2)
        for (int64_t i = 0; i < KERN_KV_GROUP; i += 2 * h)
            for (int64_t j = i; j < i + h; j++) {
                const double a = y[j], b = y[j + h];
                y[j] = a + b;
                y[j + h] = a - b;
            }
    for (int64_t i = 0; i < KERN_KV_GROUP; i++) {
        double v = y[i] * 0.08838834764831845;
        v = fabs(v) < NO_VALUE ? 0.0 : is_minus(sign_2, i) ? -v : v;
        int index = 0;
        for (int k = 0; k < 7; k++)
            index += v >= tq3_point[k];
        code[i] = (int8_t)index;
        sum += tq3_level[index] * tq3_level[index];
    }
    return norm_of(length, sqrt(sum), code, KERN_KV_GROUP);
}

void kern_kv_encode(enum kern_kv_codec c, const float *x, int64_t width, uint16_t *norm,
                    int8_t *code)
{
    float y[KERN_KV_WIDE];
    for (int64_t at = 0; c == KERN_KV_TQ3_0 && at < width; at += KERN_KV_GROUP)
        *norm++ = encode_tq3(x + at, code + at);
    if (c == KERN_KV_TQ3_0)
        return;
    memcpy(y, x, (size_t)width * sizeof *y);
    kern_kv_turn(c, y, width);
    const int64_t group = kern_kv_group(c, width);
    for (int64_t at = 0; at < width; at += group, norm++)
        if (kern_kv_code(c) == KERN_KV_Q8R)
            kern_kv_round_q8r(y + at, group, norm, code + at);
        else
            *norm = encode_n4r(y + at, group, code + at);
}

void kern_kv_decode(enum kern_kv_codec c, const uint16_t *norm, const int8_t *code, int64_t width,
                    float *y)
{
    const int64_t group = kern_kv_group(c, width);
    const enum kern_kv_codec code_of = kern_kv_code(c);
    for (int64_t i = 0; i < width; i++) {
        const float by = quant_f16_to_f32(norm[i / group]);
        const int k = code[i];
        y[i] = by * (code_of == KERN_KV_Q8R   ? (float)k
                     : code_of == KERN_KV_N4R ? (float)kern_n4r_level[k & 15]
                                              : kern_tq3_level[k & 7]);
    }
}

/* ---- blocks of 128 positions ---- */

/* The byte of a q8r block, and of an n4r block with *high for the half of it. */
static int64_t byte_q8r(bool key, int64_t width, int64_t slot, int64_t k)
{
    return key ? ((slot / 16 * (width / 4) + k / 4) * 16 + slot % 16) * 4 + k % 4
               : (slot / 4 * width + k) * 4 + slot % 4;
}

/* In 32 bits, whose divisions take a fraction of the time. */
static int64_t byte_n4r(bool key, int64_t width, int64_t slot, int64_t k, bool *high)
{
    const uint32_t wide = (uint32_t)width, s = (uint32_t)slot, d = (uint32_t)k;
    const uint32_t group = (uint32_t)kern_kv_group(KERN_KV_N4R, width), half = group / 2;
    const uint32_t i = key ? d % group : s % 32, cut = key ? half : 16, j = i < cut ? i : i - cut;
    *high = i >= cut;
    if (key)
        return (((s / 16 * (wide / group) + d / group) * (half / 4) + j / 4) * 16 + s % 16) * 4 +
               j % 4;
    return ((s / 32 * 4 + j / 4) * wide + d) * 4 + j % 4;
}

struct tq3_place {
    uint8_t *two, *one; /* bytes */
    int two_at, one_at; /* bits in them */
};

static struct tq3_place place_tq3(bool key, int64_t width, void *block, int64_t slot, int64_t k)
{
    const int64_t i = key ? attend_key_at(width, slot, k) : slot * width + k;
    uint8_t *two = block, *one = two + width * KERN_PAGE / 4;
    return (struct tq3_place){two + i / 4, one + i / 8, (int)(i % 4) * 2, (int)(i % 8)};
}

/* Keys with +rot are kept as heads that have no other parts. */
static bool one_part(enum kern_kv_codec *c, int64_t *width)
{
    if (!kern_kv_is_rot(*c))
        return false;
    *c = kern_kv_code(*c);
    *width /= KERN_KV_PARTS;
    BUG_IF(*width < ATTEND_LANES);
    return true;
}

void kern_kv_codes_read(enum kern_kv_codec c, bool key, int64_t width, const void *block,
                        int64_t slot, uint16_t *norm, int8_t *code)
{
    const uint8_t *b = block;
    if (key)
        one_part(&c, &width);
    const uint16_t *norms = (const uint16_t *)(const void *)(b + kern_kv_code_bytes(c, width));
    for (int64_t g = 0; g < kern_kv_groups(c, width); g++)
        norm[g] = norms[g * KERN_PAGE + slot];
    c = kern_kv_code(c);
    for (int64_t k = 0; k < width; k++) {
        if (c == KERN_KV_Q8R) {
            const uint8_t u = b[byte_q8r(key, width, slot, k)];
            code[k] = (int8_t)(key ? u ^ 0x80 : u);
        } else if (c == KERN_KV_N4R) {
            bool high;
            const uint8_t u = b[byte_n4r(key, width, slot, k, &high)];
            code[k] = (int8_t)(high ? u >> 4 : u & 15);
        } else {
            const struct tq3_place p = place_tq3(key, width, (void *)(uintptr_t)block, slot, k);
            code[k] = (int8_t)((*p.two >> p.two_at & 3) | (*p.one >> p.one_at & 1) << 2);
        }
    }
}

static void put(enum kern_kv_codec c, bool key, int64_t width, uint8_t *b, int64_t slot,
                const int8_t *code)
{
    for (int64_t k = 0; k < width; k++) {
        if (c == KERN_KV_Q8R) {
            b[byte_q8r(key, width, slot, k)] =
                (uint8_t)(key ? (uint8_t)code[k] ^ 0x80 : (uint8_t)code[k]);
        } else if (c == KERN_KV_N4R) {
            bool high;
            uint8_t *u = b + byte_n4r(key, width, slot, k, &high);
            *u = (uint8_t)(high ? (*u & 15) | code[k] << 4 : (*u & 0xf0) | code[k]);
        } else {
            const struct tq3_place p = place_tq3(key, width, b, slot, k);
            *p.two = (uint8_t)((*p.two & ~(3 << p.two_at)) | (code[k] & 3) << p.two_at);
            *p.one = (uint8_t)((*p.one & ~(1 << p.one_at)) | (code[k] >> 2) << p.one_at);
        }
    }
}

void kern_kv_codes_write(enum kern_kv_codec c, bool key, int64_t width, void *block, int64_t slot,
                         const float *rows, int64_t n, int64_t stride)
{
    uint8_t *b = block;
    const int64_t whole = width;
    const bool part = key && one_part(&c, &width);
    uint16_t *norms = (uint16_t *)(void *)(b + kern_kv_code_bytes(c, width));
    for (int64_t r = 0; r < n; r++, slot++, rows += stride) {
        uint16_t norm[KERN_KV_WIDE / KERN_KV_GROUP];
        int8_t code[KERN_KV_WIDE];
        float x[KERN_KV_WIDE / KERN_KV_PARTS];
        for (int64_t k = 0; part && k < width; k++)
            x[k] = rows[kern_kv_rot_dim(whole, k)];
        kern_kv_encode(c, part ? x : rows, width, norm, code);
        for (int64_t g = 0; g < kern_kv_groups(c, width); g++)
            norms[g * KERN_PAGE + slot] = norm[g];
        put(kern_kv_code(c), key, width, b, slot, code);
    }
}
