/* SPDX-License-Identifier: Apache-2.0 */
/* The codes: which type becomes which, what a panel takes, how it is read. */
#include "kern/code.h"

#include "base/bug.h"
#include "base/num.h"
#include <string.h>

const int8_t kern_code_pm1[2] = {-1, 1};

static const struct kern_code codes[KERN_CODE_N] = {
    [KERN_CODE_F32] = {.name = "f32", .act = KERN_ACT_F32, .chunk_bytes = 64},
    [KERN_CODE_F16] = {.name = "f16", .act = KERN_ACT_F32, .chunk_bytes = 32},
    [KERN_CODE_BF16] = {.name = "bf16", .act = KERN_ACT_F32, .chunk_bytes = 32},
    [KERN_CODE_F8] = {.name = "f8", .act = KERN_ACT_F32, .n_group = 4,
                      .chunk_bytes = KERN_F8_CHUNK},
    [KERN_CODE_F8S] = {.name = "f8s", .act = KERN_ACT_F32, .n_group = 4,
                       .chunk_bytes = KERN_F8S_CHUNK},
    [KERN_CODE_W8] = {.name = "w8", .act = KERN_ACT_F32, .n_group = 4,
                      .chunk_bytes = KERN_W8_CHUNK},
    KERN_CODE_LIST(KERN_CODE_ROW)
#define X(id, factor_, lines, n_after)                                                             \
    [KERN_CODE_##id] = {.name = #id,                                                               \
                        .act = KERN_ACT_Q256,                                                      \
                        .factor = factor_,                                                         \
                        .n_group = 16,                                                             \
                        .chunk_bytes = KERN_CHUNK_##id},
    KERN_POINT_LIST(X)
#undef X
#define X(id, factor_) \
    [KERN_CODE_##id] = {.name = #id, .act = KERN_ACT_Q256, .factor = factor_},
    KERN_STORED_LIST(X)
#undef X
};

const struct kern_code *kern_code_find(uint32_t code)
{
    return code < KERN_CODE_N ? &codes[code] : NULL;
}

/* FP8 without its companion scales becomes halves: every E4M3 value is one. */
static bool code_of(uint32_t type, uint32_t *code)
{
    switch (type) {
    case QUANT_F32: *code = KERN_CODE_F32; return true;
    case QUANT_F16: case QUANT_FP8_E4M3: *code = KERN_CODE_F16; return true;
    case QUANT_BF16: *code = KERN_CODE_BF16; return true;
    case QUANT_FP8_B32: *code = KERN_CODE_F8; return true;
    case QUANT_FP8_S32: *code = KERN_CODE_F8S; return true;
#define X(id, ...) case QUANT_##id: *code = KERN_CODE_##id; return true;
    KERN_CODE_LIST(X)
    KERN_POINT_LIST(X)
    KERN_STORED_LIST(X)
#undef X
    default: return false;
    }
}

static ingle_status init(struct kern_matrix *m, uint32_t type, uint32_t code, int64_t out,
                         int64_t in, struct err *err)
{
    const struct quant_info *info = quant_info(type);
    if (out < 1 || in < 1 || out > INT64_MAX - KERN_PANEL)
        return err_set(err, INGLE_LIMIT, "matrix of %lld x %lld is empty or too large",
                       (long long)out, (long long)in);
    if (in % info->n)
        return err_set(err, INGLE_FORMAT, "rows of %lld are no whole number of %s blocks of %u",
                       (long long)in, info->name, info->n);

    const struct kern_code *c = &codes[code];
    const int64_t n_panels = num_div_up(out, KERN_PANEL);
    const int64_t step = c->act == KERN_ACT_F32 && !c->n_group ? KERN_SLICE_FLOATS : KERN_SLICE;
    size_t panel, all, stretch_bytes = 0;
    bool ok;
    if (c->n_group) {
        ok = num_mul((size_t)num_div_up(in / 32, c->n_group), c->chunk_bytes, &panel);
        stretch_bytes = (size_t)(step / 32 / c->n_group) * c->chunk_bytes;
    } else if (c->chunk_bytes) {
        stretch_bytes = (size_t)step * c->chunk_bytes;
        ok = num_mul((size_t)in, c->chunk_bytes, &panel) && num_align(panel, 64, &panel);
    } else {
        uint64_t row;
        ok = quant_bytes(type, (uint64_t)in, 1, &row) && num_mul(row, KERN_PANEL, &panel) &&
             num_align(panel, 64, &panel);
    }
    if (!ok || !num_mul(panel, (size_t)n_panels, &all) || all > PTRDIFF_MAX ||
        !num_mul((size_t)in, KERN_PANEL * sizeof(float), &all) || all > PTRDIFF_MAX)
        return err_set(err, INGLE_LIMIT, "matrix of %lld x %lld does not fit in memory",
                       (long long)out, (long long)in);
    *m = (struct kern_matrix){.type = type, .code = code, .act = c->act, .out = out, .in = in,
                              .n_panels = n_panels, .panel_bytes = panel,
                              .stretch = stretch_bytes ? step : in,
                              .stretch_bytes = stretch_bytes ? stretch_bytes : panel};
    return INGLE_OK;
}

ingle_status kern_matrix_init(struct kern_matrix *m, uint32_t type, int64_t out, int64_t in,
                              struct err *err)
{
    const struct quant_info *info = quant_info(type);
    uint32_t code;
    if (!info || !code_of(type, &code))
        return err_set(err, INGLE_UNSUP, "no products with type %s (%u)",
                       info ? info->name : "unknown", type);
    return init(m, type, code, out, in, err);
}

ingle_status kern_matrix_init_floats(struct kern_matrix *m, uint32_t type, int64_t out, int64_t in,
                                     struct err *err)
{
    const struct quant_info *info = quant_info(type);
    uint32_t code = KERN_CODE_W8;
    if (!info || (type != QUANT_Q8_0 && (!code_of(type, &code) || codes[code].act != KERN_ACT_F32)))
        return err_set(err, INGLE_UNSUP, "no products of floats with type %s (%u)",
                       info ? info->name : "unknown", type);
    return init(m, type, code, out, in, err);
}

static uint16_t half_at(const uint8_t *at, int r)
{
    uint16_t h;
    memcpy(&h, at + 2 * r, sizeof h);
    return h;
}

static float f16_at(const uint8_t *at, int r) { return quant_f16_to_f32(half_at(at, r)); }

/* Codes of row r of a group: the planes, low bits first. */
static void read_codes(const struct kern_code *c, const uint8_t *group, int r, int8_t *q)
{
    for (int k = 0; k < 32; k++) {
        const int quad = k / 4, at = 4 * r + k % 4;
        const uint8_t *plane = group;
        int u = 0, shift = 0;
        if (c->bits == 8) {
            u = plane[64 * quad + at];
        } else {
            if (c->bits & 4) {
                u = plane[64 * (quad % 4) + at] >> 4 * (quad / 4) & 15;
                plane += 256;
                shift = 4;
            }
            if (c->bits & 2) {
                u |= (plane[64 * (quad / 4) + at] >> 2 * (quad % 4) & 3) << shift;
                plane += 128;
                shift += 2;
            }
            if (c->bits & 1)
                u |= (plane[at] >> quad & 1) << shift;
        }
        q[k] = (int8_t)(c->table ? c->table[u] : u - c->bias);
    }
}

static float half_e8m0(uint8_t e) { return quant_e8m0_to_f32(e) * 0.5f; }

/* Unsigned E4M3, halved; packing has replaced the code that stands for zero. */
static float half_ue4m3(uint8_t b)
{
    const uint32_t e = b >> 3 & 15, m = b & 7;
    if (!e)
        return (float)m * 0x1p-10f;
    const uint32_t bits = (e + 119) << 23 | m << 20;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void read32(const struct kern_code *c, const uint8_t *panel, int64_t g, int r,
                   struct kern_block *b)
{
    const uint8_t *chunk = panel + (size_t)(g / c->n_group) * c->chunk_bytes;
    const int at = (int)(g % c->n_group);
    const uint8_t *scale = chunk + KERN_SCALES_AT(c->bits, c->n_group) +
                           (at >> c->scale_shift) * KERN_SCALE_BYTES(c->scales);
    read_codes(c, chunk + KERN_GROUP_BYTES(c->bits) * at, r, b->q);
    b->m = 0;
    switch (c->scales) {
    case KERN_SCALES_DM:
        b->m = f16_at(scale + 32, r);
        b->d = f16_at(scale, r);
        break;
    case KERN_SCALES_E:
        b->d = half_e8m0(scale[r]);
        break;
    case KERN_SCALES_E2:
        b->d = half_ue4m3(scale[r]);
        b->m = half_ue4m3(scale[16 + r]);
        break;
    default:
        b->d = f16_at(scale, r);
    }
}

static void read256(const struct kern_code *c, const uint8_t *panel, int64_t i, int r,
                    struct kern_block *b)
{
    const uint8_t *chunk = panel + (size_t)i * c->chunk_bytes;
    const uint8_t *s = chunk + KERN_SCALES_AT(c->bits, 8);
    for (int g = 0; g < 8; g++)
        read_codes(c, chunk + KERN_GROUP_BYTES(c->bits) * g, r, b->q + 32 * g);
    size_t d = 0;
    bool min = false;
    for (int g = 0; g < 16; g++) {
        b->min[g] = 0;
        switch (c->scales) {
        case KERN_SCALES_SUB8:
            b->sub[g] = (int8_t)s[16 * (g / 2) + r];
            d = 128;
            break;
        case KERN_SCALES_SUB16:
            b->sub[g] = (int8_t)s[16 * g + r];
            d = 256;
            break;
        case KERN_SCALES_SUB8_MIN:
            b->sub[g] = s[16 * (g / 2) + r];
            b->min[g] = s[128 + 16 * (g / 2) + r];
            d = 256;
            min = true;
            break;
        case KERN_SCALES_SUB16_NIB:
            b->sub[g] = s[16 * g + r] & 15;
            b->min[g] = s[16 * g + r] >> 4;
            d = 256;
            min = true;
            break;
        default:
            b->sub[g] = 1;
        }
    }
    b->d = f16_at(s + d, r);
    b->m = min ? f16_at(s + d + 32, r) : 0;
}

void kern_code_read(const struct kern_matrix *w, int64_t p, int64_t i, int r,
                    struct kern_block *b)
{
    const struct kern_code *c = &codes[w->code];
    const uint8_t *panel = kern_code_panel(w, p, i * (c->act == KERN_ACT_Q32 ? 32 : 256));
    if (!c->bits && c->n_group) {
        uint8_t stored[KERN_POINT_BYTES];
        kern_points_get(w, p, i, r, stored);
        kern_stored_read(w->code, stored, b);
        b->d *= c->factor;
    } else if (!c->bits) {
        const size_t n_bytes = quant_info(w->type)->n_bytes, n = (size_t)(w->in / 256);
        kern_stored_read(w->code, panel + ((size_t)r * n + (size_t)i) * n_bytes, b);
        b->d *= c->factor;
    } else if (c->act == KERN_ACT_Q32) {
        read32(c, panel, i, r, b);
    } else {
        read256(c, panel, i, r, b);
    }
}

float kern_code_float(const struct kern_matrix *w, int64_t p, int64_t k, int r)
{
    const uint8_t *panel = kern_code_panel(w, p, k);
    float f;
    switch (w->code) {
    case KERN_CODE_F32:
        memcpy(&f, panel + 64 * k + 4 * r, sizeof f);
        return f;
    case KERN_CODE_F16:
        return f16_at(panel + 32 * k, r);
    case KERN_CODE_BF16:
        return quant_bf16_to_f32(half_at(panel + 32 * k, r));
    case KERN_CODE_F8S:
        panel += k / 128 * KERN_F8S_CHUNK;
        memcpy(&f, panel + KERN_F8_SCALES + k % 128 / 32 * 64 + 4 * r, sizeof f);
        return quant_fp8_e4m3_to_f32(panel[k % 128 * 16 + r]) * f;
    case KERN_CODE_W8:
        panel += k / 128 * KERN_W8_CHUNK;
        return (float)(int8_t)panel[k % 128 * 16 + r] *
               f16_at(panel + KERN_F8_SCALES + k % 128 / 32 * 32, r);
    default:
        panel += k / 128 * KERN_F8_CHUNK;
        return quant_fp8_e4m3_to_f32(panel[k % 128 * 16 + r]) *
               quant_e8m0_to_f32(panel[KERN_F8_SCALES + k % 128 / 32 * 16 + r]);
    }
}

/* n columns from k on, within a stretch. */
static void unpack_floats(const struct kern_matrix *w, int64_t p, int64_t k, int64_t n, int r,
                          float *to)
{
    const uint8_t *panel = kern_code_panel(w, p, k);
    switch (w->code) {
    case KERN_CODE_F32:
        for (int64_t i = 0; i < n; i++)
            memcpy(to + i, panel + 64 * (k + i) + 4 * r, sizeof *to);
        break;
    case KERN_CODE_F16:
        for (int64_t i = 0; i < n; i++)
            to[i] = f16_at(panel + 32 * (k + i), r);
        break;
    case KERN_CODE_BF16:
        for (int64_t i = 0; i < n; i++)
            to[i] = quant_bf16_to_f32(half_at(panel + 32 * (k + i), r));
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            to[i] = kern_code_float(w, p, k + i, r);
    }
}

static void unpack_block(const struct kern_code *c, const struct kern_block *b, float *dst)
{
    if (c->act == KERN_ACT_Q32) {
        for (int k = 0; k < 32; k++) {
            if (c->scales == KERN_SCALES_E2)
                dst[k] = (k < 16 ? b->d : b->m) * (float)b->q[k];
            else if (c->scales == KERN_SCALES_DM)
                dst[k] = b->d * (float)b->q[k] + b->m;
            else
                dst[k] = b->d * (float)b->q[k];
        }
        return;
    }
    const bool min = c->scales == KERN_SCALES_SUB8_MIN || c->scales == KERN_SCALES_SUB16_NIB;
    for (int k = 0; k < 256; k++) {
        const float v = b->d * (float)b->sub[k / 16] * (float)b->q[k];
        dst[k] = min ? v - b->m * (float)b->min[k / 16] : v;
    }
}

void kern_code_floats(const struct kern_matrix *w, int64_t p, int64_t k, int r, float *to)
{
    const struct kern_code *c = &codes[w->code];
    if (c->act == KERN_ACT_F32) {
        for (int i = 0; i < 32; i++)
            to[i] = kern_code_float(w, p, k + i, r);
        return;
    }
    const int64_t n = c->act == KERN_ACT_Q32 ? 32 : 256;
    struct kern_block b;
    float block[256];
    kern_code_read(w, p, k / n, r, &b);
    unpack_block(c, &b, block);
    memcpy(to, block + k % n, 32 * sizeof *to);
}

void kern_unpack_row(const struct kern_matrix *m, int64_t o, float *dst)
{
    const struct kern_code *c = &codes[m->code];
    const int64_t p = o / KERN_PANEL;
    const int r = (int)(o % KERN_PANEL);
    if (c->act == KERN_ACT_F32) {
        for (int64_t k = 0; k < m->in; k += m->stretch)
            unpack_floats(m, p, k, num_min(m->stretch, m->in - k), r, dst + k);
    } else if (!c->bits && c->n_group) {
        for (int64_t i = 0; i < m->in / 256; i++) {
            uint8_t stored[KERN_POINT_BYTES];
            kern_points_get(m, p, i, r, stored);
            quant_decode(m->type, stored, dst + 256 * i, 256);
        }
    } else if (!c->bits) {
        const size_t row = (size_t)(m->in / 256) * quant_info(m->type)->n_bytes;
        quant_decode(m->type, kern_code_panel(m, p, 0) + (size_t)r * row, dst, (size_t)m->in);
    } else {
        const int n = c->act == KERN_ACT_Q32 ? 32 : 256;
        for (int64_t i = 0; i < m->in / n; i++) {
            struct kern_block b;
            kern_code_read(m, p, i, r, &b);
            unpack_block(c, &b, dst + i * n);
        }
    }
}

size_t kern_act_offset(enum kern_act_kind kind, int64_t k)
{
    return kind == KERN_ACT_Q32    ? (size_t)(k / 32) * sizeof(struct kern_act32)
           : kind == KERN_ACT_Q256 ? (size_t)(k / 256) * sizeof(struct kern_act256)
                                   : (size_t)k * sizeof(uint16_t);
}

/* An odd number of cache lines, so that rows side by side do not share cache sets. */
static size_t act_row_bytes(enum kern_act_kind kind, int64_t k)
{
    const size_t n = (kern_act_offset(kind, k) + 63) / 64 * 64;
    return n / 64 % 2 ? n : n + 64;
}

size_t kern_act_bytes(enum kern_act_kind kind, int64_t n, int64_t k)
{
    return kind == KERN_ACT_F32 ? 0 : (size_t)n * act_row_bytes(kind, k);
}

void kern_act_init(struct kern_act *a, enum kern_act_kind kind, int64_t n, int64_t k,
                   const float *x, int64_t stride, void *mem)
{
    *a = (struct kern_act){.kind = kind, .n = n, .k = k, .x = x, .stride = stride};
    if (kind != KERN_ACT_F32) {
        a->q = mem;
        a->row_bytes = act_row_bytes(kind, k);
    }
}

size_t kern_act_tiles_bytes(enum kern_act_kind kind, int64_t n, int64_t k)
{
    if (kind == KERN_ACT_Q256)
        return (size_t)num_div_up(n, 32) * (size_t)num_div_up(k, 256) *
               sizeof(struct kern_tiles256);
    const int64_t n_strips = num_div_up(n, KERN_TILES_STRIP);
    return (size_t)n_strips * (size_t)((k / 32 + KERN_TILES_GROUPS - 1) / KERN_TILES_GROUPS) *
           KERN_TILES_BYTES;
}

size_t kern_act_tiles_at(enum kern_act_kind kind, int64_t row)
{
    return kern_act_tiles_bytes(kind, row, kind == KERN_ACT_Q256 ? 256 : 32);
}

int64_t kern_matmul_grain(const struct kern_matrix *w, int64_t n)
{
    /* Long reads for few rows: where one begins, nothing is fetched ahead (Zen 4, 512 KiB against
     * 128: 1.1 times the speed).  Fewer panels when a panel is much work, but 16 or 32, for which
     * activations are brought into the order of tiles once (16 rows, 4 panels: 0.8 times the speed;
     * 32 rows of 704 x 2816, 16 panels: 0.87). */
    const int64_t bytes = n <= 8 ? 512 << 10 : 64 << 10;
    const int64_t g = bytes / (int64_t)w->panel_bytes;
    return num_max(n > 16 ? 32 : n > 8 ? 16 : 4, g / 4 * 4);
}
