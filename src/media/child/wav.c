/* SPDX-License-Identifier: Apache-2.0 */
/* WAV: PCM of 8 to 32 bits, and floats. */
#include "media/child/child.h"

#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

enum { PCM = 1, FLOATS = 3, EXTENSIBLE = 0xFFFE, MAX_CHANNELS = 64, MAX_RATE = 384000 };

struct format {
    unsigned code, n_channels, bits, frame_bytes;
    uint32_t rate;
};

static unsigned u16_at(const uint8_t *p)
{
    return (unsigned)p[1] << 8 | p[0];
}

static uint32_t u32_at(const uint8_t *p)
{
    return (uint32_t)u16_at(p + 2) << 16 | u16_at(p);
}

static ingle_status read_format(const uint8_t *p, size_t n, struct format *f, struct err *err)
{
    if (n < 16)
        return err_set(err, INGLE_ARG, "WAV: its chunk 'fmt ' has %zu bytes; 16 is the least", n);
    *f = (struct format){u16_at(p), u16_at(p + 2), u16_at(p + 14), u16_at(p + 12), u32_at(p + 4)};
    if (f->code == EXTENSIBLE) {
        if (n < 26)
            return err_set(err, INGLE_ARG, "WAV: its chunk 'fmt ' has %zu bytes; its kind needs 40",
                           n);
        f->code = u16_at(p + 24);
    }
    const unsigned bits = f->bits;
    if (f->code == PCM ? bits != 8 && bits != 16 && bits != 24 && bits != 32
                       : f->code != FLOATS || (bits != 32 && bits != 64))
        return err_set(err, INGLE_ARG,
                       "WAV: format %u of %u bits; PCM of 8, 16, 24 and 32 bits and floats of 32 "
                       "and 64 are read",
                       f->code, bits);
    if (!f->n_channels || f->n_channels > MAX_CHANNELS)
        return err_set(err, INGLE_ARG, "WAV: %u channels; 1 to %d are read", f->n_channels,
                       MAX_CHANNELS);
    if (f->rate < 1000 || f->rate > MAX_RATE)
        return err_set(err, INGLE_ARG, "WAV: %lu samples a second; 1000 to %d are read",
                       (unsigned long)f->rate, MAX_RATE);
    if (f->frame_bytes != f->n_channels * (bits / 8))
        return err_set(err, INGLE_ARG, "WAV: a block of %u bytes; %u channels of %u bits have %u",
                       f->frame_bytes, f->n_channels, bits, f->n_channels * (bits / 8));
    return INGLE_OK;
}

/* Finds the samples. */
static ingle_status read_chunks(const uint8_t *at, size_t n, struct format *f, const uint8_t **data,
                                size_t *n_data, struct err *err)
{
    bool has_format = false;
    if (n < 12)
        return err_set(err, INGLE_ARG, "WAV: the file is cut short: it has %zu bytes", n);
    if (u32_at(at + 4) > n - 8)
        return err_set(err, INGLE_ARG,
                       "WAV: its header tells of %lu bytes, but %zu follow: the file is cut short",
                       (unsigned long)u32_at(at + 4), n - 8);
    for (size_t i = 12; n - i >= 8;) {
        const size_t size = u32_at(at + i + 4), left = n - i - 8;
        const uint8_t *chunk = at + i + 8;
        if (size > left)
            return err_set(err, INGLE_ARG, "WAV: a chunk of %zu bytes at byte %zu, but %zu follow",
                           size, i, left);
        if (memcmp(at + i, "fmt ", 4) == 0) {
            const ingle_status s = read_format(chunk, size, f, err);
            if (s != INGLE_OK)
                return s;
            has_format = true;
        } else if (memcmp(at + i, "data", 4) == 0 && has_format) {
            *data = chunk;
            *n_data = size;
            return INGLE_OK;
        }
        const size_t whole = 8 + size + (size & 1);
        i = whole > n - i ? n : i + whole;
    }
    return err_set(err, INGLE_ARG, "WAV: it has no chunk '%s'", has_format ? "data" : "fmt ");
}

static double sample_at(const struct format *f, const uint8_t *p)
{
    if (f->code == PCM) {
        if (f->bits == 8)
            return (p[0] - 128) / 128.0;
        uint32_t v = 0; /* the sample's bits, as the highest of 32 */
        for (unsigned i = 0; i < f->bits / 8; i++)
            v |= (uint32_t)p[i] << (32 - f->bits + 8 * i);
        int32_t whole;
        memcpy(&whole, &v, sizeof whole);
        return whole / 2147483648.0;
    }
    if (f->bits == 32) {
        const uint32_t v = u32_at(p);
        float x;
        memcpy(&x, &v, sizeof x);
        return (double)x;
    }
    const uint64_t v = (uint64_t)u32_at(p + 4) << 32 | u32_at(p);
    double x;
    memcpy(&x, &v, sizeof x);
    return x;
}

/* The mean of the channels. */
static void mix(const struct format *f, const uint8_t *data, float *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (unsigned c = 0; c < f->n_channels; c++, data += f->bits / 8)
            sum += sample_at(f, data);
        out[i] = (float)(sum / f->n_channels);
    }
}

static ingle_status to_rate(float *mono, size_t n, const struct format *f, struct media_sound *out,
                            struct err *err)
{
    struct media_sound s = {n, mono};
    if (f->rate != MEDIA_RATE) {
        s.n = media_child_resampled(n, f->rate);
        s.samples = mem_calloc(s.n, sizeof *s.samples);
        const ingle_status r = s.samples
                                   ? media_child_resample(mono, n, f->rate, s.samples, err)
                                   : err_set(err, INGLE_ARG, "WAV: no memory for %zu samples", s.n);
        mem_free(mono);
        if (r != INGLE_OK) {
            media_sound_release(&s);
            return r;
        }
    }
    *out = s;
    return INGLE_OK;
}

ingle_status media_child_wav(const uint8_t *at, size_t n, struct media_sound *out, struct err *err)
{
    struct format f = {0};
    const uint8_t *data = NULL;
    size_t n_data = 0;
    ingle_status s = read_chunks(at, n, &f, &data, &n_data, err);
    if (s != INGLE_OK)
        return s;
    const size_t n_frames = n_data / f.frame_bytes;
    if (n_frames > (size_t)f.rate * MEDIA_MAX_SECONDS)
        return err_set(err, INGLE_ARG, "WAV: the sound has %.2f seconds; the limit is %d",
                       (double)n_frames / f.rate, MEDIA_MAX_SECONDS);
    if (!n_frames)
        return err_set(err, INGLE_ARG, "WAV: the sound is empty: it has no samples");
    float *mono = mem_calloc(n_frames, sizeof *mono);
    if (!mono)
        return err_set(err, INGLE_ARG, "WAV: no memory for %zu samples", n_frames);
    mix(&f, data, mono, n_frames);
    /* before they are resampled: an infinite sample would spread */
    for (size_t i = 0; i < n_frames; i++)
        if (!(fabsf(mono[i]) <= 32768)) {
            s = err_set(err, INGLE_ARG, "WAV: sample %zu is %g; the limit is 32768", i,
                        (double)mono[i]);
            mem_free(mono);
            return s;
        }
    return to_rate(mono, n_frames, &f, out, err);
}
