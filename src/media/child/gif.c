/* SPDX-License-Identifier: Apache-2.0 */
/* The first frame of a GIF. */
#include "media/child/child.h"

#include "base/mem.h"

#include <string.h>

struct reader {
    const uint8_t *at;
    size_t n, done;
    struct err *err;
};

struct frame {
    int width, height; /* of the canvas */
    int left, top, w, h;
    bool interlaced;
    int transparent; /* index, or -1 */
    uint8_t color[256 * 3];
    int n_colors; /* 0: indices are greys */
};

static ingle_status cut(const struct reader *r)
{
    return err_set(r->err, INGLE_ARG,
                   "GIF: the file is cut short: the picture goes on after %zu bytes", r->n);
}

static const uint8_t *take(struct reader *r, size_t n)
{
    if (n > r->n - r->done)
        return NULL;
    const uint8_t *p = r->at + r->done;
    r->done += n;
    return p;
}

static int u16_at(const uint8_t *p)
{
    return p[1] << 8 | p[0];
}

static ingle_status read_colors(struct reader *r, struct frame *f, unsigned flags)
{
    if (!(flags & 0x80))
        return INGLE_OK;
    const int n = 2 << (flags & 7);
    const uint8_t *p = take(r, (size_t)n * 3);
    if (!p)
        return cut(r);
    memset(f->color, 0, sizeof f->color);
    memcpy(f->color, p, (size_t)n * 3);
    f->n_colors = n;
    return INGLE_OK;
}

/* Blocks of up to 255 bytes, ended by an empty one. */
static bool skip_blocks(struct reader *r)
{
    for (;;) {
        const uint8_t *n = take(r, 1);
        if (!n || (*n && !take(r, *n)))
            return false;
        if (!*n)
            return true;
    }
}

static ingle_status read_extension(struct reader *r, struct frame *f)
{
    enum { CONTROL = 0xF9 };
    const uint8_t *kind = take(r, 1);
    if (kind && *kind == CONTROL && r->n - r->done >= 6 && r->at[r->done] == 4) {
        const uint8_t *p = r->at + r->done;
        f->transparent = p[1] & 1 ? p[4] : -1;
    }
    return kind && skip_blocks(r) ? INGLE_OK : cut(r);
}

/* Up to the data of the first picture. */
static ingle_status read_frame(struct reader *r, struct frame *f)
{
    enum { EXTENSION = 0x21, PICTURE = 0x2C, END = 0x3B };
    for (;;) {
        const uint8_t *p = take(r, 1);
        if (!p)
            return cut(r);
        if (*p == EXTENSION) {
            const ingle_status s = read_extension(r, f);
            if (s != INGLE_OK)
                return s;
        } else if (*p == PICTURE) {
            if (!(p = take(r, 9)))
                return cut(r);
            f->left = u16_at(p);
            f->top = u16_at(p + 2);
            f->w = u16_at(p + 4);
            f->h = u16_at(p + 6);
            f->interlaced = p[8] & 0x40;
            return read_colors(r, f, p[8]);
        } else if (*p == END)
            return err_set(r->err, INGLE_ARG, "GIF: it has no picture");
        else if (*p)
            return err_set(r->err, INGLE_ARG, "GIF: a block of the unknown kind %d at byte %zu", *p,
                           r->done - 1);
    }
}

/* ---- LZW ---- */

enum { MAX_CODES = 4096 };

struct lzw {
    struct reader *r;
    unsigned left;      /* bytes of the current block */
    uint32_t bits;      /* those that wait, lowest first */
    int n_bits, n_lead; /* n_lead: bits of an index */
    uint16_t before[MAX_CODES];
    uint8_t last[MAX_CODES], text[MAX_CODES];
};

/* -1: no more bytes; -2: the data end with an empty block */
static int next_code(struct lzw *z, int width)
{
    while (z->n_bits < width) {
        if (!z->left) {
            const uint8_t *n = take(z->r, 1);
            if (!n)
                return -1;
            if (!*n)
                return -2;
            z->left = *n;
        }
        const uint8_t *p = take(z->r, 1);
        if (!p)
            return -1;
        z->left--;
        z->bits |= (uint32_t)*p << z->n_bits;
        z->n_bits += 8;
    }
    const int code = (int)(z->bits & ((1U << width) - 1));
    z->bits >>= width;
    z->n_bits -= width;
    return code;
}

/* Writes the text of a code backwards; returns its length. */
static int unfold(struct lzw *z, int code, int n_plain)
{
    int n = 0;
    while (code >= n_plain && n < MAX_CODES - 1) {
        z->text[n++] = z->last[code];
        code = z->before[code];
    }
    z->text[n++] = (uint8_t)code;
    return n;
}

/* index: u8 [n] */
static ingle_status unpack(struct lzw *z, uint8_t *index, size_t n)
{
    const int clear = 1 << z->n_lead, end = clear + 1;
    int width = z->n_lead + 1, n_codes = end + 1, before = -1;
    size_t done = 0;
    uint8_t first = 0;
    while (done < n) {
        const int code = next_code(z, width);
        if (code == -1)
            return cut(z->r);
        if (code == -2 || code == end)
            return err_set(z->r->err, INGLE_ARG, "GIF: its data end after %zu of %zu pixels", done,
                           n);
        if (code == clear) {
            width = z->n_lead + 1;
            n_codes = end + 1;
            before = -1;
            continue;
        }
        if (code > n_codes || (before < 0 && code >= clear) || (code == n_codes && before < 0))
            return err_set(z->r->err, INGLE_ARG, "GIF: code %d at pixel %zu; there are %d", code,
                           done, n_codes);
        /* the code that is being defined: the text before, and its first index again */
        int len = unfold(z, code == n_codes ? before : code, clear);
        const uint8_t lead = z->text[len - 1];
        if (before >= 0 && n_codes < MAX_CODES) {
            z->before[n_codes] = (uint16_t)before;
            z->last[n_codes] = code == n_codes ? first : lead;
        }
        const bool again = code == n_codes;
        while (len > 0 && done < n)
            index[done++] = z->text[--len];
        if (again && done < n)
            index[done++] = first;
        first = again ? first : lead;
        if (before >= 0 && n_codes < MAX_CODES && ++n_codes == 1 << width && width < 12)
            width++;
        before = code;
    }
    return INGLE_OK;
}

static ingle_status read_indices(struct reader *r, const struct frame *f, uint8_t **out)
{
    const uint8_t *lead = take(r, 1);
    if (!lead)
        return cut(r);
    if (*lead < 1 || *lead > 8) /* 1 is not written, but is read everywhere */
        return err_set(r->err, INGLE_ARG, "GIF: indices of %d bits; 2 to 8 are allowed", *lead);
    uint8_t *index;
    ingle_status s = media_child_pixels(&index, f->w, f->h, 1, "GIF", r->err);
    if (s != INGLE_OK)
        return s;
    struct lzw *z = mem_zalloc(sizeof *z);
    if (z) {
        z->r = r;
        z->n_lead = *lead;
        s = unpack(z, index, (size_t)f->w * (size_t)f->h);
    } else
        s = err_set(r->err, INGLE_ARG, "GIF: no memory");
    mem_free(z);
    if (s == INGLE_OK)
        *out = index;
    else
        mem_free(index);
    return s;
}

/* The row of the picture in which the i-th row of the data stands: every eighth, those between,
 * and so on. */
static int row_of(const struct frame *f, int i)
{
    static const int from[] = {0, 4, 2, 1}, step[] = {8, 8, 4, 2};
    if (!f->interlaced)
        return i;
    for (int pass = 0; pass < 4; pass++) {
        const int n = f->h > from[pass] ? (f->h - from[pass] + step[pass] - 1) / step[pass] : 0;
        if (i < n)
            return from[pass] + i * step[pass];
        i -= n;
    }
    return 0;
}

static void color_of(const struct frame *f, int index, uint8_t rgb[3])
{
    if (index == f->transparent)
        memset(rgb, 255, 3);
    else if (f->n_colors)
        memcpy(rgb, f->color + 3 * (size_t)index, 3);
    else
        memset(rgb, index, 3);
}

/* What the frame does not cover has the transparent index, or index 0. */
static void paint(const struct frame *f, const uint8_t *index, struct media_picture *p)
{
    uint8_t rgb[3];
    color_of(f, f->transparent < 0 ? 0 : f->transparent, rgb);
    for (size_t i = 0; i < (size_t)p->width * (size_t)p->height; i++)
        memcpy(p->rgb + 3 * i, rgb, 3);
    for (int i = 0; i < f->h; i++) {
        uint8_t *out =
            p->rgb + 3 * ((size_t)(f->top + row_of(f, i)) * (size_t)p->width + (size_t)f->left);
        for (int x = 0; x < f->w; x++)
            color_of(f, index[(size_t)i * (size_t)f->w + (size_t)x], out + 3 * (size_t)x);
    }
}

ingle_status media_child_gif(const uint8_t *at, size_t n, struct media_picture *out,
                             struct err *err)
{
    struct reader r = {at, n, 6, err};
    struct frame f = {.transparent = -1};
    const uint8_t *head = n >= 13 ? take(&r, 7) : NULL;
    if (!head)
        return cut(&r);
    ingle_status s = read_colors(&r, &f, head[4]);
    if (s == INGLE_OK)
        s = read_frame(&r, &f);
    if (s != INGLE_OK)
        return s;
    f.width = u16_at(head) > f.left + f.w ? u16_at(head) : f.left + f.w;
    f.height = u16_at(head + 2) > f.top + f.h ? u16_at(head + 2) : f.top + f.h;
    struct media_picture p = {f.width, f.height, NULL};
    if ((s = media_check_pixels(f.width, f.height, "GIF", err)) != INGLE_OK)
        return s;
    uint8_t *index = NULL;
    s = read_indices(&r, &f, &index);
    if (s == INGLE_OK)
        s = media_child_pixels(&p.rgb, f.width, f.height, 3, "GIF", err);
    if (s == INGLE_OK) {
        paint(&f, index, &p);
        *out = p;
    }
    mem_free(index);
    return s;
}
