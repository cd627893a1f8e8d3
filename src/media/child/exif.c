/* SPDX-License-Identifier: Apache-2.0 */
/* The orientation of a picture: one tag of the first directory of an EXIF block.  No offset but
 * that of the directory is followed, so nothing can loop. */
#include "media/child/child.h"

#include "base/mem.h"

#include <string.h>

struct block {
    const uint8_t *at;
    size_t n;
    bool big; /* the byte order */
};

static bool u16_at(const struct block *b, size_t offset, unsigned *out)
{
    if (b->n < 2 || offset > b->n - 2)
        return false;
    const uint8_t *p = b->at + offset;
    *out = b->big ? (unsigned)p[0] << 8 | p[1] : (unsigned)p[1] << 8 | p[0];
    return true;
}

static bool u32_at(const struct block *b, size_t offset, uint32_t *out)
{
    unsigned first, second;
    if (!u16_at(b, offset, &first) || !u16_at(b, offset + 2, &second))
        return false;
    *out = b->big ? (uint32_t)first << 16 | second : (uint32_t)second << 16 | first;
    return true;
}

/* A directory's entry: tag, type, count, value, of 2, 2, 4 and 4 bytes. */
static int value_of(const struct block *b, size_t entry)
{
    enum { SHORT = 3, LONG = 4 };
    unsigned type, value = 0;
    uint32_t count, wide = 0;
    if (!u16_at(b, entry + 2, &type) || !u32_at(b, entry + 4, &count) || count != 1)
        return 1;
    if (type == SHORT && u16_at(b, entry + 8, &value))
        wide = value;
    else if (type != LONG || !u32_at(b, entry + 8, &wide))
        return 1;
    return wide >= 1 && wide <= 8 ? (int)wide : 1;
}

int media_child_orientation(const uint8_t *at, size_t n)
{
    enum { TAG = 0x0112, ENTRY = 12 };
    if (n >= 6 && memcmp(at, "Exif\0\0", 6) == 0) {
        at += 6;
        n -= 6;
    }
    if (n < 8 || (memcmp(at, "II*\0", 4) != 0 && memcmp(at, "MM\0*", 4) != 0))
        return 1;
    const struct block b = {at, n, at[0] == 'M'};
    uint32_t directory;
    unsigned n_entries, tag;
    if (!u32_at(&b, 4, &directory) || !u16_at(&b, directory, &n_entries))
        return 1;
    for (size_t i = 0; i < n_entries; i++) {
        const size_t entry = (size_t)directory + 2 + i * ENTRY;
        if (!u16_at(&b, entry, &tag))
            return 1;
        if (tag == TAG)
            return value_of(&b, entry);
    }
    return 1;
}

/* Where the pixel (x, y) of the upright picture is in the stored one of w x h pixels. */
static size_t source(int orientation, size_t x, size_t y, size_t w, size_t h)
{
    switch (orientation) {
    case 2:
        return y * w + (w - 1 - x);
    case 3:
        return (h - 1 - y) * w + (w - 1 - x);
    case 4:
        return (h - 1 - y) * w + x;
    case 5:
        return x * w + y;
    case 6:
        return (h - 1 - x) * w + y;
    case 7:
        return (h - 1 - x) * w + (w - 1 - y);
    default: /* 8 */
        return x * w + (w - 1 - y);
    }
}

ingle_status media_child_turn(struct media_picture *p, int orientation, struct err *err)
{
    if (orientation <= 1 || orientation > 8)
        return INGLE_OK;
    const bool turned = orientation >= 5;
    struct media_picture t = {turned ? p->height : p->width, turned ? p->width : p->height, NULL};
    const ingle_status s = media_child_pixels(&t.rgb, t.width, t.height, 3, "EXIF", err);
    if (s != INGLE_OK)
        return s;
    uint8_t *out = t.rgb;
    for (size_t y = 0; y < (size_t)t.height; y++)
        for (size_t x = 0; x < (size_t)t.width; x++, out += 3)
            memcpy(out, p->rgb + 3 * source(orientation, x, y, (size_t)p->width, (size_t)p->height),
                   3);
    media_picture_release(p);
    *p = t;
    return INGLE_OK;
}
