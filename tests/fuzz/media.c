/* SPDX-License-Identifier: Apache-2.0 */
/* One decoder of the child, here without a child: MEDIA_FUZZ names it.  What it returns has the
 * sizes that it tells of, and an error has a text. */
#include "base/mem.h"
#include "media/child/child.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum fuzz { jpeg, png, webp, gif, wav, exif };

static uint64_t sum(const void *at, size_t n)
{
    uint64_t s = 0;
    for (size_t i = 0; i < n; i++)
        s += ((const uint8_t *)at)[i];
    return s;
}

static ingle_status decode(const uint8_t *data, size_t n, struct media_data *d, struct err *err)
{
    int orientation = 1;
    ingle_status s = MEDIA_FUZZ == jpeg  ? media_child_jpeg(data, n, &d->picture, &orientation, err)
                     : MEDIA_FUZZ == png ? media_child_png(data, n, &d->picture, &orientation, err)
                     : MEDIA_FUZZ == webp
                         ? media_child_webp(data, n, &d->picture, &orientation, err)
                     : MEDIA_FUZZ == gif ? media_child_gif(data, n, &d->picture, err)
                                         : media_child_wav(data, n, &d->sound, err);
    if (s == INGLE_OK && MEDIA_FUZZ != wav)
        s = media_child_turn(&d->picture, orientation, err);
    return s;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct media_data d = {0};
    struct err err = {0};
    volatile uint64_t read = 0;
    if (MEDIA_FUZZ == exif) {
        const int o = media_child_orientation(data, n);
        if (o < 1 || o > 8)
            abort();
        return 0;
    }
    const ingle_status s = decode(data, n, &d, &err);
    if (s != INGLE_OK && (s != INGLE_ARG || !err.msg[0] || strlen(err.msg) >= sizeof err.msg))
        abort();
    if (s == INGLE_OK && d.picture.rgb)
        read = sum(d.picture.rgb, (size_t)d.picture.width * (size_t)d.picture.height * 3);
    if (s == INGLE_OK && d.sound.samples) {
        read = sum(d.sound.samples, d.sound.n * sizeof *d.sound.samples);
        if (d.sound.n >= MEDIA_MIN_SAMPLES &&
            media_check_samples(d.sound.samples, d.sound.n, "sound", &err) != INGLE_OK)
            abort();
    }
    (void)read;
    media_data_release(&d);
    return 0;
}
