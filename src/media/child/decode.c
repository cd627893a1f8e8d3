/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a format. */
#include "media/child/child.h"

#include <string.h>

static ingle_status refuse(const uint8_t *at, size_t n, struct err *err)
{
    const char *foreign = media_foreign_name(at, n);
    if (foreign)
        return err_set(err, INGLE_ARG,
                       "the format of the bytes is %s; JPEG, PNG, WebP, GIF and WAV are read",
                       foreign);
    char hex[8 * 3 + 1] = "";
    for (size_t i = 0; i < n && i < 8; i++) {
        static const char digit[] = "0123456789abcdef";
        memcpy(hex + i * 3, (char[]){' ', digit[at[i] >> 4], digit[at[i] & 15], 0}, 4);
    }
    return err_set(err, INGLE_ARG,
                   "the format of the bytes is unknown (they begin with%s); JPEG, PNG, WebP, GIF "
                   "and WAV are read",
                   hex);
}

static ingle_status check_bytes(enum media_kind kind, size_t n, struct err *err)
{
    const size_t most =
        kind == MEDIA_WAV ? (size_t)MEDIA_MAX_SOUND_BYTES : (size_t)MEDIA_MAX_PICTURE_BYTES;
    if (n > most)
        return err_set(err, INGLE_ARG, "%s: the file has %zu bytes; the limit is %zu",
                       media_kind_name(kind), n, most);
    return INGLE_OK;
}

static ingle_status picture(enum media_kind kind, const uint8_t *at, size_t n,
                            struct media_picture *p, struct err *err)
{
    int orientation = 1;
    const ingle_status s = kind == MEDIA_JPEG   ? media_child_jpeg(at, n, p, &orientation, err)
                           : kind == MEDIA_PNG  ? media_child_png(at, n, p, &orientation, err)
                           : kind == MEDIA_WEBP ? media_child_webp(at, n, p, &orientation, err)
                                                : media_child_gif(at, n, p, err);
    return s == INGLE_OK ? media_child_turn(p, orientation, err) : s;
}

ingle_status media_child_decode(const uint8_t *at, size_t n, struct media_data *out,
                                struct err *err)
{
    struct media_data d = {.kind = media_sniff(at, n)};
    if (!n)
        return err_set(err, INGLE_ARG, "the file is empty");
    if (d.kind == MEDIA_UNKNOWN)
        return refuse(at, n, err);
    ingle_status s = check_bytes(d.kind, n, err);
    if (s == INGLE_OK && !media_can_decode(d.kind))
        s = err_set(err, INGLE_UNSUP, "%s: this build reads no such files: it has no %s",
                    media_kind_name(d.kind), media_library(d.kind));
    if (s == INGLE_OK)
        s = media_is_picture(d.kind) ? picture(d.kind, at, n, &d.picture, err)
                                     : media_child_wav(at, n, &d.sound, err);
    if (s == INGLE_OK && d.kind == MEDIA_WAV)
        s = media_check_samples(d.sound.samples, d.sound.n, "WAV", err);
    if (s == INGLE_OK)
        *out = d;
    else
        media_data_release(&d);
    return s;
}
