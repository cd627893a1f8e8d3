/* SPDX-License-Identifier: Apache-2.0 */
/* WebP by libwebp: single pictures. */
#include "media/child/child.h"

#ifdef INGLE_WEBP
#include "base/mem.h"

#include <string.h>
#include <webp/decode.h>

static ingle_status failed(VP8StatusCode code, size_t n, struct err *err)
{
    static const char *const text[] = {
        [VP8_STATUS_OUT_OF_MEMORY] = "it needs more memory than the decoder has",
        [VP8_STATUS_INVALID_PARAM] = "its sizes contradict each other",
        [VP8_STATUS_BITSTREAM_ERROR] = "its data are broken",
        [VP8_STATUS_UNSUPPORTED_FEATURE] = "it has an unsupported feature",
        [VP8_STATUS_SUSPENDED] = "its data are incomplete",
        [VP8_STATUS_USER_ABORT] = "it was stopped"};
    const size_t i = (size_t)code;
    if (code == VP8_STATUS_NOT_ENOUGH_DATA)
        return err_set(err, INGLE_ARG,
                       "WebP: the file is cut short: the picture goes on after %zu bytes", n);
    return err_set(err, INGLE_ARG, "WebP: %s",
                   i < sizeof text / sizeof *text && text[i] ? text[i] : "it cannot be read");
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)p[3] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[1] << 8 | p[0];
}

/* Chunks after the RIFF header: name, size, data, filled up to an even size. */
static int orientation_of(const uint8_t *at, size_t n)
{
    for (size_t i = 12; i <= n && n - i >= 8;) {
        const size_t size = u32_at(at + i + 4), left = n - i - 8;
        if (size > left)
            return 1;
        if (memcmp(at + i, "EXIF", 4) == 0)
            return media_child_orientation(at + i + 8, size);
        i += 8 + size + (size & 1);
    }
    return 1;
}

static ingle_status decode(WebPDecoderConfig *c, const uint8_t *at, size_t n,
                           struct media_picture *p, struct err *err)
{
    const int n_channels = c->input.has_alpha ? 4 : 3;
    *p = (struct media_picture){c->input.width, c->input.height, NULL};
    const ingle_status s =
        media_child_pixels(&p->rgb, p->width, p->height, n_channels, "WebP", err);
    if (s != INGLE_OK)
        return s;
    c->output.colorspace = n_channels == 4 ? MODE_RGBA : MODE_RGB;
    c->output.is_external_memory = 1;
    c->output.u.RGBA.rgba = p->rgb;
    c->output.u.RGBA.stride = p->width * n_channels;
    c->output.u.RGBA.size = (size_t)p->width * (size_t)p->height * (size_t)n_channels;
    const VP8StatusCode code = WebPDecode(at, n, c);
    if (code != VP8_STATUS_OK)
        return failed(code, n, err);
    if (n_channels == 4)
        media_child_on_white(p->rgb, (size_t)p->width * (size_t)p->height);
    return INGLE_OK;
}

ingle_status media_child_webp(const uint8_t *at, size_t n, struct media_picture *out,
                              int *orientation, struct err *err)
{
    WebPDecoderConfig c;
    struct media_picture p = {0};
    if (!WebPInitDecoderConfig(&c))
        return err_set(err, INGLE_ARG, "WebP: the library has another version than at build time");
    const VP8StatusCode code = WebPGetFeatures(at, n, &c.input);
    if (code != VP8_STATUS_OK)
        return failed(code, n, err);
    ingle_status s = media_check_pixels(c.input.width, c.input.height, "WebP", err);
    if (s != INGLE_OK)
        return s;
    if (c.input.has_animation)
        return err_set(err, INGLE_ARG, "WebP: it is an animation; only single pictures are read");
    s = decode(&c, at, n, &p, err);
    WebPFreeDecBuffer(&c.output);
    if (s == INGLE_OK) {
        *orientation = orientation_of(at, n);
        *out = p;
    } else
        media_picture_release(&p);
    return s;
}
#else
ingle_status media_child_webp(const uint8_t *at, size_t n, struct media_picture *out,
                              int *orientation, struct err *err)
{
    (void)at, (void)n, (void)out, (void)orientation;
    return err_set(err, INGLE_ARG, "WebP: this build reads none");
}
#endif
