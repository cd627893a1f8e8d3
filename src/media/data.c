/* SPDX-License-Identifier: Apache-2.0 */
/* Decoded data: its end, and its identity. */
#include "media/media.h"

#include "base/mem.h"
#include "base/sha256.h"

#include <string.h>

_Static_assert(MEDIA_ID_BYTES == (int)SHA256_BYTES, "an identity is a whole hash");

void media_picture_release(struct media_picture *p)
{
    mem_free(p->rgb);
    *p = (struct media_picture){0};
}

void media_sound_release(struct media_sound *s)
{
    mem_free(s->samples);
    *s = (struct media_sound){0};
}

void media_data_release(struct media_data *d)
{
    media_picture_release(&d->picture);
    media_sound_release(&d->sound);
    *d = (struct media_data){0};
}

static void add_u32(struct sha256 *h, uint32_t v)
{
    const uint8_t le[4] = {(uint8_t)v, (uint8_t)(v >> 8), (uint8_t)(v >> 16), (uint8_t)(v >> 24)};
    sha256_add(h, le, sizeof le);
}

void media_picture_identity(const struct media_picture *p, int budget,
                            const uint8_t tower[MEDIA_ID_BYTES], uint8_t out[MEDIA_ID_BYTES])
{
    struct sha256 h;
    sha256_init(&h);
    sha256_add(&h, "ingle-img-1", 11);
    add_u32(&h, (uint32_t)budget);
    add_u32(&h, (uint32_t)p->width);
    add_u32(&h, (uint32_t)p->height);
    sha256_add(&h, p->rgb, (size_t)p->width * (size_t)p->height * 3);
    sha256_add(&h, tower, MEDIA_ID_BYTES);
    sha256_end(&h, out);
}

void media_sound_identity(const struct media_sound *s, const uint8_t tower[MEDIA_ID_BYTES],
                          uint8_t out[MEDIA_ID_BYTES])
{
    struct sha256 h;
    sha256_init(&h);
    sha256_add(&h, "ingle-snd-1", 11);
    for (size_t i = 0; i < s->n; i++) {
        uint32_t bits;
        memcpy(&bits, s->samples + i, sizeof bits);
        add_u32(&h, bits);
    }
    sha256_add(&h, tower, MEDIA_ID_BYTES);
    sha256_end(&h, out);
}
