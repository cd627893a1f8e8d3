/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes and counts. */
#include "media/media.h"

#include "base/num.h"

#include <math.h>

static const int budgets[] = {70, 140, 280, 560, MEDIA_MAX_BUDGET};
enum { N_BUDGETS = sizeof budgets / sizeof *budgets };

bool media_is_budget(int64_t budget)
{
    for (int i = 0; i < N_BUDGETS; i++)
        if (budgets[i] == budget)
            return true;
    return false;
}

int media_auto_budget(int w, int h, int block)
{
    const int64_t pixels = (int64_t)w * h, of_block = (int64_t)block * block;
    for (int i = 0; i < N_BUDGETS; i++)
        if (of_block * budgets[i] >= pixels)
            return budgets[i];
    return MEDIA_MAX_BUDGET;
}

int media_fit(int w, int h, int budget, int block, int *tw, int *th)
{
    const double side = block;
    const double f = sqrt(side * side * budget / ((double)h * (double)w));
    int64_t across = (int64_t)floor(f * w / side), down = (int64_t)floor(f * h / side);
    if (down == 0) {
        down = 1;
        across = num_min(w / h, budget);
    } else if (across == 0) {
        across = 1;
        down = num_min(h / w, budget);
    }
    *tw = (int)across * block;
    *th = (int)down * block;
    return (int)(across * down);
}

int media_mel_frames(size_t n_samples)
{
    return n_samples < 161 ? 0 : (int)((n_samples - 161) / 160 + 1);
}

int media_sound_tokens(size_t n_samples, bool has_encoder)
{
    if (!has_encoder)
        return (int)((n_samples + 639) / 640);
    const int halved = (media_mel_frames(n_samples) + 1) / 2;
    return (halved + 1) / 2;
}

ingle_status media_check_pixels(int64_t width, int64_t height, const char *name, struct err *err)
{
    if (width < 1 || height < 1)
        return err_set(err, INGLE_ARG,
                       "%s: a picture of %lld x %lld pixels; both must be 1 or more", name,
                       (long long)width, (long long)height);
    if (width > MEDIA_MAX_SIDE || height > MEDIA_MAX_SIDE)
        return err_set(err, INGLE_ARG, "%s: a picture of %lld x %lld pixels; a side has at most %d",
                       name, (long long)width, (long long)height, MEDIA_MAX_SIDE);
    if (width * height > MEDIA_MAX_PIXELS)
        return err_set(err, INGLE_ARG,
                       "%s: a picture of %lld x %lld pixels; the limit is %d megapixels", name,
                       (long long)width, (long long)height, MEDIA_MAX_PIXELS / 1000000);
    return INGLE_OK;
}

ingle_status media_check_samples(const float *samples, size_t n, const char *name, struct err *err)
{
    enum { LARGEST = 32768 };
    if (!n)
        return err_set(err, INGLE_ARG, "%s: the sound is empty: it has no samples", name);
    if (n < MEDIA_MIN_SAMPLES)
        return err_set(err, INGLE_ARG, "%s: the sound has %zu samples (16 kHz); the least is %d",
                       name, n, MEDIA_MIN_SAMPLES);
    if (n > MEDIA_MAX_SAMPLES)
        return err_set(err, INGLE_ARG, "%s: the sound has %.2f seconds; the limit is %d", name,
                       (double)n / MEDIA_RATE, MEDIA_MAX_SECONDS);
    for (size_t i = 0; i < n; i++)
        if (!(samples[i] >= -LARGEST && samples[i] <= LARGEST))
            return err_set(err, INGLE_ARG, "%s: sample %zu of the sound is %g; the limit is %d",
                           name, i, (double)samples[i], LARGEST);
    return INGLE_OK;
}
