/* fold - the law's sums of a block of 128 threads, each of which has one of the 128 partial sums
 * of a row (kern/math.h). */
#ifndef INGLE_DEVICE_GPU_KERNELS_FOLD_H
#define INGLE_DEVICE_GPU_KERNELS_FOLD_H

#include "device/gpu/kernels/gpu.h"

enum { FOLD_THREADS = 128 };

/* s[j] += s[j + 64], + 32, ... + 1: what s[0] is then, for all threads.  part: [128], shared; to be
 * used again after the next gpu_sync(). */
GPU_DEV float fold_sum(float *part, float s)
{
    const int t = gpu_tid();
    part[t] = s;
    gpu_sync();
    if (t < 32) {
        const float low = part[t] + part[t + 64], high = part[t + 32] + part[t + 96];
        s = low + high;
        /* lane 0 is right in the end: the lanes below h are after each step */
        for (int h = 16; h; h /= 2)
            s = s + gpu_shfl(s, (t + h) & 31);
        if (t == 0)
            part[0] = s;
    }
    gpu_sync();
    return part[0];
}

#endif
