/* plain_device - a processor's device with plain kernels, whose operations kernels of a card are
 * compared with. */
#ifndef INGLE_TESTS_GPU_PLAIN_DEVICE_H
#define INGLE_TESTS_GPU_PLAIN_DEVICE_H

#include "gpu/numbers.h"

#include "device/device.h"

static struct device *plain_device;

static inline int plain_device_open(void **state)
{
    (void)state;
    const struct device_options o = {.n_threads = 1, .cpu = 0};
    return device_create(&plain_device, &o, NULL) != INGLE_OK ||
           device_arena_reserve(plain_device, 64 << 20, NULL) != INGLE_OK;
}

static inline int plain_device_close(void **state)
{
    (void)state;
    device_free(plain_device);
    return 0;
}

/* f32 [n][stride] of the heap as rows. */
static inline struct rows plain_rows(float *at, int64_t n, int64_t width, int64_t stride)
{
    return (struct rows){at, n, width, stride};
}

static inline struct device_vector *plain_vector(const float *x, int64_t n)
{
    struct device_vector *v;
    assert_int_equal(device_vector_create(&v, plain_device, x, n, NULL), INGLE_OK);
    return v;
}

static inline void plain_same_ints(const char *what, const int32_t *got, const int32_t *want,
                                   int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i])
            fail_msg("%s: number %lld is %d, %d is right", what, (long long)i, got[i], want[i]);
}

#endif
