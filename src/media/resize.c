/* SPDX-License-Identifier: Apache-2.0 */
/* Pillow's bicubic: a = -0.5, a support of 2 that grows with the scale when a picture shrinks, one
 * direction after the other, each rounded to bytes.  Weights are fixed-point numbers of 22 bits, so
 * the result is the same everywhere. */
#include "media/media.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

enum { BITS = 22 };

/* The filter of one direction.  owns */
struct filter {
    int width;         /* numbers of a row of `weight` */
    int32_t *weight;   /* [n_out][width] */
    int *first, *n_in; /* [n_out] the inputs of each output */
};

static void filter_release(struct filter *f)
{
    mem_free(f->weight);
    mem_free(f->first);
    mem_free(f->n_in);
    *f = (struct filter){0};
}

static double cubic(double x)
{
    const double a = -0.5;
    x = fabs(x);
    if (x < 1)
        return ((a + 2) * x - (a + 3)) * x * x + 1;
    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

static int32_t fixed(double v)
{
    return (int32_t)(v * (1 << BITS) + (v < 0 ? -0.5 : 0.5));
}

/* value: f64 [f->width], scratch */
static void fill(struct filter *f, double *value, int n_in, int n_out)
{
    const double scale = (double)n_in / n_out, wide = scale < 1 ? 1 : scale;
    const double support = 2 * wide, narrow = 1 / wide;
    for (int o = 0; o < n_out; o++) {
        const double centre = (o + 0.5) * scale;
        const int lo = (int)num_max((int64_t)(centre - support + 0.5), 0);
        const int n = (int)num_min((int64_t)(centre + support + 0.5), n_in) - lo;
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += value[i] = cubic((i + lo - centre + 0.5) * narrow);
        for (int i = 0; i < n; i++)
            f->weight[(size_t)o * (size_t)f->width + (size_t)i] =
                fixed(sum != 0 ? value[i] / sum : value[i]);
        f->first[o] = lo;
        f->n_in[o] = n;
    }
}

static ingle_status filter_init(struct filter *f, int n_in, int n_out, struct err *err)
{
    const double scale = (double)n_in / n_out;
    *f = (struct filter){.width = (int)ceil(2 * (scale < 1 ? 1 : scale)) * 2 + 1};
    f->weight = mem_calloc((size_t)n_out, (size_t)f->width * sizeof *f->weight);
    f->first = mem_calloc((size_t)n_out, sizeof *f->first);
    f->n_in = mem_calloc((size_t)n_out, sizeof *f->n_in);
    double *value = mem_calloc((size_t)f->width, sizeof *value);
    const bool ok = f->weight && f->first && f->n_in && value;
    if (ok)
        fill(f, value, n_in, n_out);
    else
        filter_release(f);
    mem_free(value);
    return ok ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory to resize a picture");
}

static uint8_t to_byte(int32_t v)
{
    v >>= BITS;
    return (uint8_t)(v < 0 ? 0 : v > 255 ? 255 : v);
}

/* in: u8 [h][w][3]; out: u8 [h][n_out][3].  The weights of an output add up to 1 and their
 * magnitudes to less than 2, so sums stay below 2^31. */
static void across(const struct filter *f, const uint8_t *in, uint8_t *out, int w, int h, int n_out)
{
    for (int y = 0; y < h; y++, in += (size_t)w * 3)
        for (int o = 0; o < n_out; o++, out += 3) {
            const int32_t *weight = f->weight + (size_t)o * (size_t)f->width;
            const uint8_t *p = in + (size_t)f->first[o] * 3;
            int32_t r = 1 << (BITS - 1), g = r, b = r;
            for (int i = 0; i < f->n_in[o]; i++, p += 3) {
                r += p[0] * weight[i];
                g += p[1] * weight[i];
                b += p[2] * weight[i];
            }
            out[0] = to_byte(r);
            out[1] = to_byte(g);
            out[2] = to_byte(b);
        }
}

/* in: u8 [h][w][3]; out: u8 [n_out][w][3]; sum: i32 [w * 3] */
static void down(const struct filter *f, const uint8_t *in, uint8_t *out, int w, int n_out,
                 int32_t *sum)
{
    const size_t row = (size_t)w * 3;
    for (int o = 0; o < n_out; o++, out += row) {
        const int32_t *weight = f->weight + (size_t)o * (size_t)f->width;
        for (size_t x = 0; x < row; x++)
            sum[x] = 1 << (BITS - 1);
        for (int i = 0; i < f->n_in[o]; i++) {
            const uint8_t *p = in + (size_t)(f->first[o] + i) * row;
            for (size_t x = 0; x < row; x++)
                sum[x] += p[x] * weight[i];
        }
        for (size_t x = 0; x < row; x++)
            out[x] = to_byte(sum[x]);
    }
}

static ingle_status no_memory(struct err *err)
{
    return err_set(err, INGLE_NOMEM, "no memory to resize a picture");
}

static void replace(struct media_picture *p, bool *own, struct media_picture by)
{
    if (*own)
        mem_free(p->rgb);
    *p = by;
    *own = true;
}

/* The pixels of p are replaced; *own: they were its own, and are afterwards. */
static ingle_status change_width(struct media_picture *p, bool *own, int tw, struct err *err)
{
    struct filter f;
    if (tw == p->width)
        return INGLE_OK;
    const ingle_status s = filter_init(&f, p->width, tw, err);
    if (s != INGLE_OK)
        return s;
    uint8_t *out = mem_calloc((size_t)p->height, (size_t)tw * 3);
    if (out)
        across(&f, p->rgb, out, p->width, p->height, tw);
    filter_release(&f);
    if (!out)
        return no_memory(err);
    replace(p, own, (struct media_picture){tw, p->height, out});
    return INGLE_OK;
}

static ingle_status change_height(struct media_picture *p, bool *own, int th, struct err *err)
{
    struct filter f;
    if (th == p->height)
        return INGLE_OK;
    const ingle_status s = filter_init(&f, p->height, th, err);
    if (s != INGLE_OK)
        return s;
    uint8_t *out = mem_calloc((size_t)th, (size_t)p->width * 3);
    int32_t *sum = mem_calloc((size_t)p->width * 3, sizeof *sum);
    const bool ok = out && sum;
    if (ok)
        down(&f, p->rgb, out, p->width, th, sum);
    filter_release(&f);
    mem_free(sum);
    if (!ok) {
        mem_free(out);
        return no_memory(err);
    }
    replace(p, own, (struct media_picture){p->width, th, out});
    return INGLE_OK;
}

/* Pillow 13 begins with the height where that takes off more than twice as many lines as columns:
 * tall pictures, such as those of a telephone's screen.  The order shows in the last bits. */
static bool is_down_first(const struct media_picture *p, int tw, int th)
{
    return th < p->height && (int64_t)p->height - th > 2 * ((int64_t)p->width - tw);
}

ingle_status media_resize(const struct media_picture *in, int tw, int th, struct media_picture *out,
                          struct err *err)
{
    ingle_status s = media_check_pixels(in->width, in->height, "resize", err);
    if (s != INGLE_OK)
        return s;
    if (tw < 1 || th < 1 || tw > MEDIA_MAX_BUDGET * MEDIA_BLOCK ||
        th > MEDIA_MAX_BUDGET * MEDIA_BLOCK)
        return err_set(err, INGLE_ARG, "a picture cannot get %d x %d pixels", tw, th);
    struct media_picture p = *in;
    bool own = false;
    if (is_down_first(in, tw, th))
        s = change_height(&p, &own, th, err);
    if (s == INGLE_OK)
        s = change_width(&p, &own, tw, err);
    if (s == INGLE_OK)
        s = change_height(&p, &own, th, err);
    if (s == INGLE_OK && !own) { /* the size was right */
        const size_t n = (size_t)tw * (size_t)th * 3;
        uint8_t *rgb = mem_alloc(n);
        if (!rgb)
            return no_memory(err);
        memcpy(rgb, in->rgb, n);
        replace(&p, &own, (struct media_picture){tw, th, rgb});
    }
    if (s == INGLE_OK)
        *out = p;
    else if (own)
        media_picture_release(&p);
    return s;
}

ingle_status media_prepare(const struct media_picture *in, int budget, int block,
                           struct media_picture *out, int *n_tok, struct err *err)
{
    int tw, th;
    ingle_status s = media_check_pixels(in->width, in->height, "picture", err);
    if (s != INGLE_OK)
        return s;
    const int n = media_fit(in->width, in->height, budget, block, &tw, &th);
    s = media_resize(in, tw, th, out, err);
    if (s == INGLE_OK && n_tok)
        *n_tok = n;
    return s;
}
