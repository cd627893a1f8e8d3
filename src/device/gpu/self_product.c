/* SPDX-License-Identifier: Apache-2.0 */
/* self_product - kernels of product.h beside the processor's: a matrix of two bands of which the
 * last panel is not whole, in slices of which the last is short. */
#include "device/gpu/self.h"
#include "kern/kern.h"
#include "quant/quant.h"
#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { OUT = 70, IN = 1280, ROWS = 5, STRIDE = 72 };

/* product_CODE_3, many_CODE or embed_CODE: the code in *code, and the last word, of many "m". */
static bool parse(const char *name, char code[16], char last[4])
{
    const bool product = strncmp(name, "product_", 8) == 0, many = strncmp(name, "many_", 5) == 0;
    const char *from = name + (product ? 8 : many ? 5 : 6);
    const char *end = product ? strrchr(from, '_') : NULL;
    const size_t n = end ? (size_t)(end - from) : strlen(from);
    if (n >= 16 || (end && strlen(end + 1) >= 4))
        return false;
    memcpy(code, from, n);
    code[n] = 0;
    snprintf(last, 4, "%s", end ? end + 1 : many ? "m" : "");
    return true;
}

/* The same except for capital letters. */
static bool same_name(const char *a, const char *b)
{
    while (*a && tolower((unsigned char)*a) == tolower((unsigned char)*b))
        a++, b++;
    return *a == *b;
}

/* A matrix whose code has that name. */
static bool matrix_of(const char *code, struct kern_matrix *w)
{
    if (!strcmp(code, "w8"))
        return kern_matrix_init_floats(w, QUANT_Q8_0, OUT, IN, NULL) == INGLE_OK;
    for (uint32_t type = 0; type < 256; type++) {
        const struct quant_info *q = quant_info(type);
        const char *name = type == QUANT_FP8_B32   ? "f8"
                           : type == QUANT_FP8_S32 ? "f8s"
                           : q && q->name          ? q->name
                                                   : "";
        if (same_name(name, code))
            return kern_matrix_init(w, type, OUT, IN, NULL) == INGLE_OK;
    }
    return false;
}

/* Any bytes are blocks of any type; the top exponent bit of what may be a half or a float is
 * cleared, so that few sums are no numbers. */
static uint8_t *packed(struct gpu_self *s, struct kern_matrix *w)
{
    uint64_t n_bytes = 0;
    if (!quant_bytes(w->type, IN, OUT, &n_bytes)) {
        s->full = true;
        return s->card;
    }
    const size_t before = s->used;
    uint8_t *stored = s->host + ((uint8_t *)device_gpu_self_in(s, NULL, n_bytes) - s->card);
    uint8_t *card = device_gpu_self_in(s, NULL, kern_matrix_bytes(w));
    uint32_t seed = w->code;
    w->at = s->host + (card - s->card);
    if (s->full)
        return card;
    for (size_t i = 0; i < n_bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        stored[i] = (uint8_t)(seed >> 24 & 0xbf);
    }
    kern_pack(w, 0, w->n_panels, stored);
    memset(s->host + before, 0, n_bytes);
    return card;
}

/* rows: of a turn; 0: the kernel of many rows. */
static bool product(struct gpu_self *s, enum gpu_kernel k, struct kern_matrix *w, int rows)
{
    static const int32_t list[ROWS] = {4, 0, 2, 2, 1};
    float want[ROWS * STRIDE] = {0}, *host, *x = device_gpu_self_floats(s, ROWS * IN, false, &host);
    uint8_t *weights = packed(s, w);
    const int32_t *row = device_gpu_self_in(s, list, sizeof list);
    float *y = device_gpu_self_in(s, NULL, sizeof want);
    struct kern_act act;
    int64_t row_bytes = IN * (int64_t)sizeof *x;
    const uint8_t *ready = (const uint8_t *)x;
    if (w->act != KERN_ACT_F32) {
        const size_t n = kern_act_bytes(w->act, ROWS, IN);
        ready = device_gpu_self_in(s, NULL, n);
        kern_act_init(&act, w->act, ROWS, IN, host, IN, s->host + (ready - s->card));
        row_bytes = (int64_t)act.row_bytes;
    } else {
        kern_act_init(&act, w->act, ROWS, IN, host, IN, NULL);
    }
    if (s->full)
        return true;
    if (w->act != KERN_ACT_F32)
        s->d->kern.matmul.act[w->act](&act, 0, ROWS);
    const struct kern_matmul m = {w, &act, list, ROWS, want, STRIDE};
    s->d->kern.matmul.run[w->code](&m, 0, w->n_panels);
    struct product_args a = {.w = weights,
                             .panel_bytes = (int64_t)w->panel_bytes,
                             .stretch_bytes = (int64_t)w->stretch_bytes,
                             .x = ready,
                             .x_row_bytes = row_bytes,
                             .row = row,
                             .y = y,
                             .y_stride = STRIDE,
                             .out = OUT,
                             .in = IN,
                             .n_panels = (int32_t)w->n_panels,
                             .n = ROWS,
                             .n_stack = 1,
                             .n_bands = 2};
    a.book = product_book(w->type);
    if (rows)
        a.parts = product_parts(IN, kern_matrix_slice(w), rows, a.book);
    return device_gpu_self_send(s) &&
           device_gpu_launch(s->d, k, rows ? product_grid(&a, rows) : many_grid(&a), &a, sizeof a,
                             rows ? (size_t)product_shared(&a, rows) : 0) &&
           device_gpu_self_fetch(s) && device_gpu_self_same(s, y, want, ROWS * STRIDE);
}

static bool embed(struct gpu_self *s, enum gpu_kernel k, struct kern_matrix *w)
{
    static const int32_t list[3] = {OUT - 1, 3, 17};
    const uint8_t *weights = packed(s, w);
    const int32_t *tokens = device_gpu_self_in(s, list, sizeof list);
    float *y = device_gpu_self_in(s, NULL, 3 * IN * sizeof *y);
    float *want = (float *)(void *)(s->host + ((uint8_t *)device_gpu_self_in(
                                                   s, NULL, 3 * IN * sizeof *y) -
                                               s->card));
    if (s->full)
        return true;
    for (int i = 0; i < 3; i++) {
        kern_unpack_row(w, list[i], want + i * IN);
        s->d->kern.math.scale(want + i * IN, want + i * IN, 1.5f, IN);
    }
    const struct embed_args a = {.w = weights,
                                 .panel_bytes = (int64_t)w->panel_bytes,
                                 .stretch_bytes = (int64_t)w->stretch_bytes,
                                 .tokens = tokens,
                                 .y = y,
                                 .y_stride = IN,
                                 .scale = 1.5f,
                                 .in = IN,
                                 .n_panels = (int32_t)w->n_panels,
                                 .n = 3};
    return device_gpu_self_send(s) &&
           device_gpu_launch(s->d, k, embed_grid(&a), &a, sizeof a, 0) &&
           device_gpu_self_fetch(s) && device_gpu_self_same(s, y, want, 3 * IN);
}

bool device_gpu_self_product(struct gpu_self *s, enum gpu_kernel k)
{
    struct kern_matrix w;
    char code[16], last[4];
    if (!parse(s->name, code, last) || !matrix_of(code, &w))
        return true;
    if (!last[0])
        return embed(s, k, &w);
    if (last[0] == 'm')
        return product(s, k, &w, 0);
    const int rows = last[0] - '0';
    return last[1] || rows < 1 || rows > 3 || product(s, k, &w, rows);
}
