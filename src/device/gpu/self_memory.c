/* SPDX-License-Identifier: Apache-2.0 */
/* self_memory - what the comparisons of self.c send to the card, and what comes back. */
#include "device/gpu/memory.h"
#include "device/gpu/self.h"

#include <math.h>
#include <string.h>

enum { ALIGN = 256 };

void *device_gpu_self_in(struct gpu_self *s, const void *host, size_t n_bytes)
{
    const size_t at = s->used, n = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (n > GPU_SELF_BYTES - at) {
        s->full = true;
        return s->card;
    }
    if (host)
        memcpy(s->host + at, host, n_bytes);
    else
        memset(s->host + at, 0, n_bytes);
    s->used += n;
    return s->card + at;
}

float *device_gpu_self_floats(struct gpu_self *s, int64_t n, bool odd, float **host)
{
    static const float special[] = {0.0f, -0.0f, 1e-42f, 3e38f, -87.5f, 90.0f, 0x1p-90f};
    float *card = device_gpu_self_in(s, NULL, (size_t)n * sizeof *card);
    float *x = (float *)(void *)(s->host + ((uint8_t *)card - s->card));
    uint32_t seed = (uint32_t)s->used;
    for (int64_t i = 0; !s->full && i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        const float u = (float)(int32_t)(seed >> 8) * (1.0f / 8388608.0f) - 1.0f;
        x[i] = i % 7 == 3 ? 20.0f * u : i % 7 == 5 ? 0.01f * u : u;
        if (odd && i % 53 == 17)
            x[i] = special[i / 53 % 7];
    }
    if (odd && n > 90 && !s->full) {
        x[n - 1] = NAN;
        x[n - 2] = -INFINITY;
    }
    *host = x;
    return card;
}

bool device_gpu_self_send(struct gpu_self *s)
{
    return !s->full && device_gpu_put(s->d, s->card, s->host, s->used);
}

bool device_gpu_self_fetch(struct gpu_self *s)
{
    s->d->gpu->self_used = s->used;
    return device_gpu_get(s->d, s->back, s->card, s->used) && device_gpu_wait(s->d);
}

static const uint8_t *back_of(const struct gpu_self *s, const void *card)
{
    return s->back + ((const uint8_t *)card - s->card);
}

bool device_gpu_self_same(const struct gpu_self *s, const void *card, const float *want, int64_t n)
{
    const float *got = (const float *)(const void *)back_of(s, card);
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0 &&
            (got[i] == got[i] || want[i] == want[i]))
            return false;
    return true;
}

bool device_gpu_self_same_bytes(const struct gpu_self *s, const void *card, const void *want,
                                size_t n_bytes)
{
    return memcmp(back_of(s, card), want, n_bytes) == 0;
}
