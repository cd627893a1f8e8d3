/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_cuda - a libcuda.so.1 on the emulator, for tests of device/gpu/api_cuda.c: the program
 * itself runs on it. Copies happen at once.
 *
 * FAKE_CUDA, words with commas between them: version=11040, count=0, major=7, minor=0, bytes=0,
 * shared=N (bytes of a block), integrated, nonsense (what it says of a card and its memory cannot
 * be), zeros (addresses and handles are 0), idle (launches do nothing), refuse (code), lose=N (from
 * the N-th copy or launch on), fail=FUNCTION (each of its calls), code=N (what both say).  Built
 * with FAKE_LACKS it has no cuLaunchKernel.
 */
#define _GNU_SOURCE
#include "gpu/emu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CUDA __attribute__((visibility("default"))) int

enum { OK, MEMORY = 2, INVALID_PTX = 218, NOT_FOUND = 500, ILLEGAL_ADDRESS = 700 };
typedef uint64_t address;

static unsigned long long word(const char *name, unsigned long long otherwise)
{
    char text[256], *rest = text;
    const char *all = getenv("FAKE_CUDA");
    const size_t n = strlen(name);
    if (!all)
        return otherwise;
    snprintf(text, sizeof text, "%s", all);
    for (char *w; (w = strsep(&rest, ","));)
        if (!strncmp(w, name, n) && (!w[n] || w[n] == '='))
            return w[n] ? strtoull(w + n + 1, NULL, 0) : 1;
    return otherwise;
}

/* fail=FUNCTION */
static int fails(const char *function)
{
    const char *all = getenv("FAKE_CUDA"), *at = all ? strstr(all, "fail=") : NULL;
    const size_t n = strlen(function);
    if (!at || strncmp(at + 5, function, n) || (at[5 + n] && at[5 + n] != ','))
        return OK;
    return (int)word("code", 999);
}
#define MAY_FAIL                              \
    do {                                      \
        const int failure = fails(__func__);  \
        if (failure)                          \
            return failure;                   \
    } while (0)

static int lost(void)
{
    static unsigned long long n;
    const unsigned long long at = word("lose", 0);
    return at && ++n >= at ? (int)word("code", ILLEGAL_ADDRESS) : OK;
}

CUDA cuInit(unsigned flags)
{
    MAY_FAIL;
    return flags ? 1 : OK;
}
CUDA cuDriverGetVersion(int *v)
{
    MAY_FAIL;
    *v = (int)word("version", 12080);
    return OK;
}
CUDA cuDeviceGetCount(int *n)
{
    MAY_FAIL;
    *n = (int)word("count", 1);
    return OK;
}
CUDA cuDeviceGet(int *d, int i)
{
    MAY_FAIL;
    *d = 7 + i;
    return OK;
}
CUDA cuDeviceGetName(char *name, int n, int d)
{
    MAY_FAIL;
    memset(name, 'x', (size_t)n); /* without an end where it is too long */
    if (!word("nonsense", 0))
        snprintf(name, (size_t)n, "fake card %d", d - 7);
    return OK;
}
CUDA cuDeviceGetAttribute(int *v, int which, int d)
{
    MAY_FAIL;
    (void)d;
    *v = which == 75   ? (int)word("major", 8)
         : which == 76 ? (int)word("minor", 0)
         : which == 97 ? (int)word("shared", 100 << 10)
         : which == 16 ? 1
         : which == 18 ? (int)word("integrated", 0)
                       : 0;
    return OK;
}
CUDA cuDeviceTotalMem_v2(size_t *n, int d)
{
    MAY_FAIL;
    (void)d;
    *n = (size_t)word("bytes", 1u << 30);
    return OK;
}
CUDA cuDevicePrimaryCtxRetain(void **c, int d)
{
    MAY_FAIL;
    static int context;
    (void)d;
    *c = &context;
    return OK;
}
CUDA cuDevicePrimaryCtxRelease_v2(int d)
{
    MAY_FAIL;
    return d < 7 ? 1 : OK;
}
CUDA cuCtxSetCurrent(void *c)
{
    MAY_FAIL;
    return c ? OK : 1;
}
CUDA cuMemGetInfo_v2(size_t *left, size_t *all)
{
    MAY_FAIL;
    *all = (size_t)word("bytes", 1u << 30);
    *left = word("nonsense", 0) ? *all + 1 : *all;
    return OK;
}
CUDA cuMemAlloc_v2(address *out, size_t n)
{
    MAY_FAIL;
    void *p = aligned_alloc(256, (n + 255) / 256 * 256);
    *out = word("zeros", 0) ? 0 : (address)(uintptr_t)p;
    return p ? OK : MEMORY;
}
CUDA cuMemFree_v2(address a)
{
    MAY_FAIL;
    free((void *)(uintptr_t)a);
    return OK;
}
CUDA cuMemHostAlloc(void **out, size_t n, unsigned flags)
{
    MAY_FAIL;
    (void)flags;
    *out = aligned_alloc(256, (n + 255) / 256 * 256);
    return *out ? OK : MEMORY;
}
CUDA cuMemFreeHost(void *p)
{
    MAY_FAIL;
    free(p);
    return OK;
}
static int move(void *to, const void *from, size_t n)
{
    const int code = lost();
    if (!code)
        memmove(to, from, n);
    return code;
}
CUDA cuMemcpyHtoDAsync_v2(address to, const void *from, size_t n, void *s)
{
    MAY_FAIL;
    (void)s;
    return move((void *)(uintptr_t)to, from, n);
}
CUDA cuMemcpyDtoHAsync_v2(void *to, address from, size_t n, void *s)
{
    MAY_FAIL;
    (void)s;
    return move(to, (const void *)(uintptr_t)from, n);
}
CUDA cuMemcpyDtoDAsync_v2(address to, address from, size_t n, void *s)
{
    MAY_FAIL;
    (void)s;
    return move((void *)(uintptr_t)to, (const void *)(uintptr_t)from, n);
}
CUDA cuMemsetD8Async(address to, unsigned char v, size_t n, void *s)
{
    MAY_FAIL;
    (void)s;
    memset((void *)(uintptr_t)to, v, n);
    return lost();
}
CUDA cuCtxGetStreamPriorityRange(int *least, int *most)
{
    MAY_FAIL;
    *least = 0;
    *most = -5;
    return OK;
}
CUDA cuStreamCreateWithPriority(void **s, unsigned flags, int priority)
{
    MAY_FAIL;
    static int stream;
    (void)flags;
    (void)priority;
    *s = word("zeros", 0) ? NULL : (void *)&stream;
    return OK;
}
CUDA cuStreamDestroy_v2(void *s)
{
    MAY_FAIL;
    return s ? OK : 1;
}
CUDA cuStreamSynchronize(void *s)
{
    MAY_FAIL;
    return s ? OK : 1;
}
CUDA cuStreamWaitEvent(void *s, void *e, unsigned flags)
{
    MAY_FAIL;
    return s && e && !flags ? OK : 1;
}
CUDA cuEventCreate(void **e, unsigned flags)
{
    MAY_FAIL;
    static int event;
    (void)flags;
    *e = &event;
    return OK;
}
CUDA cuEventDestroy_v2(void *e)
{
    MAY_FAIL;
    return e ? OK : 1;
}
CUDA cuEventRecord(void *e, void *s)
{
    MAY_FAIL;
    return e && s ? OK : 1;
}
CUDA cuEventQuery(void *e)
{
    MAY_FAIL;
    return e ? OK : 1;
}
/* PTX begins with its version, behind comments. */
CUDA cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *option, void **value)
{
    MAY_FAIL;
    static int module;
    *m = NULL;
    if (word("refuse", 0) || !strstr(image, ".version") || !strstr(image, ".target")) {
        if (n > 1 && option[0] == 5)
            snprintf(value[0], (size_t)(uintptr_t)value[1], "ptxas says no");
        return INVALID_PTX;
    }
    *m = &module;
    return OK;
}
CUDA cuModuleUnload(void *m)
{
    MAY_FAIL;
    return m ? OK : 1;
}
CUDA cuModuleGetFunction(void **f, void *m, const char *name)
{
    MAY_FAIL;
    (void)m;
    *f = (void *)(uintptr_t)emu_find(name);
    return *f ? OK : NOT_FOUND;
}
CUDA cuFuncSetAttribute(void *f, int which, int v)
{
    MAY_FAIL;
    return f && which == 8 && v > 0 ? OK : 1;
}
#ifndef FAKE_LACKS
CUDA cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                    unsigned bz, unsigned shared, void *s, void **args, void **extra)
{
    MAY_FAIL;
    const struct emu_kernel *k = f;
    const struct gpu_grid grid = {(int32_t)gx, (int32_t)gy, (int32_t)gz};
    const int code = lost();
    if (code || by != 1 || bz != 1 || !s || extra)
        return code ? code : 1;
    if (!word("idle", 0))
        emu_launch_with(k, grid, (int)bx, shared, args[0], k->n_args, EMU_MIXED);
    return OK;
}
#endif
CUDA cuGetErrorName(int code, const char **name)
{
    MAY_FAIL;
    *name = code == MEMORY            ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == INVALID_PTX     ? "CUDA_ERROR_INVALID_PTX"
            : code == NOT_FOUND       ? "CUDA_ERROR_NOT_FOUND"
            : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                      : NULL;
    return *name ? OK : 1;
}
