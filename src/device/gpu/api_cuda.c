/* SPDX-License-Identifier: Apache-2.0 */
/*
 * api_cuda - NVIDIA's driver: libcuda.so.1, opened with dlopen; its functions as we declare them.
 *
 * Its interface keeps its names and what they do; a name with _v2 is another function than that
 * without.  Each call makes the card's context that of the thread.
 */
#include "device/gpu/api.h"
#include "device/gpu/library.h"

#include "base/mem.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char library[] = "libcuda.so.1";

enum { LEAST_DRIVER = 11050 /* reads PTX 7.5 */, MOST_CARDS = 64 };

/* Codes of the driver. */
enum {
    CUDA_MEMORY = 2,
    CUDA_NO_BINARY = 209,
    CUDA_PTX = 218,
    CUDA_NO_JIT = 221,
    CUDA_PTX_VERSION = 222,
    CUDA_NOT_FOUND = 500,
    NOT_READY = 600,     /* an event is still to come */
    OUR_MISTAKE = 100000 /* the driver says something that cannot be */
};
/* Numbers of attributes and options. */
enum {
    DEVICE_MULTIPROCESSORS = 16,
    DEVICE_INTEGRATED = 18,
    DEVICE_MAJOR = 75,
    DEVICE_MINOR = 76,
    DEVICE_SHARED_OPTIN = 97,
    FUNCTION_SHARED = 8,
    STREAM_EXCLUSIVE = 1,
    EVENT_NO_TIMES = 2,
    JIT_LOG = 5,
    JIT_LOG_BYTES = 6,
    HOST_PORTABLE = 1
};

typedef uint64_t cuda_address;

/* name in the table, symbol, arguments */
#define CUDA_LIST(X)                                                                              \
    X(init, "cuInit", (unsigned))                                                                 \
    X(driver_version, "cuDriverGetVersion", (int *))                                              \
    X(count, "cuDeviceGetCount", (int *))                                                         \
    X(device, "cuDeviceGet", (int *, int))                                                        \
    X(device_name, "cuDeviceGetName", (char *, int, int))                                         \
    X(attribute, "cuDeviceGetAttribute", (int *, int, int))                                       \
    X(total_bytes, "cuDeviceTotalMem_v2", (size_t *, int))                                        \
    X(retain, "cuDevicePrimaryCtxRetain", (void **, int))                                         \
    X(release, "cuDevicePrimaryCtxRelease_v2", (int))                                             \
    X(set_current, "cuCtxSetCurrent", (void *))                                                   \
    X(memory, "cuMemGetInfo_v2", (size_t *, size_t *))                                            \
    X(take, "cuMemAlloc_v2", (cuda_address *, size_t))                                            \
    X(give, "cuMemFree_v2", (cuda_address))                                                       \
    X(host_take, "cuMemHostAlloc", (void **, size_t, unsigned))                                   \
    X(host_give, "cuMemFreeHost", (void *))                                                       \
    X(put, "cuMemcpyHtoDAsync_v2", (cuda_address, const void *, size_t, void *))                  \
    X(get, "cuMemcpyDtoHAsync_v2", (void *, cuda_address, size_t, void *))                        \
    X(copy, "cuMemcpyDtoDAsync_v2", (cuda_address, cuda_address, size_t, void *))                 \
    X(fill, "cuMemsetD8Async", (cuda_address, unsigned char, size_t, void *))                     \
    X(stream_range, "cuCtxGetStreamPriorityRange", (int *, int *))                                \
    X(stream_make, "cuStreamCreateWithPriority", (void **, unsigned, int))                        \
    X(stream_free, "cuStreamDestroy_v2", (void *))                                                \
    X(stream_wait, "cuStreamSynchronize", (void *))                                               \
    X(stream_after, "cuStreamWaitEvent", (void *, void *, unsigned))                              \
    X(event_make, "cuEventCreate", (void **, unsigned))                                           \
    X(event_free, "cuEventDestroy_v2", (void *))                                                  \
    X(event_record, "cuEventRecord", (void *, void *))                                            \
    X(event_ready, "cuEventQuery", (void *))                                                      \
    X(module_load, "cuModuleLoadDataEx", (void **, const void *, unsigned, int *, void **))       \
    X(module_free, "cuModuleUnload", (void *))                                                    \
    X(function, "cuModuleGetFunction", (void **, void *, const char *))                           \
    X(function_set, "cuFuncSetAttribute", (void *, int, int))                                     \
    X(launch, "cuLaunchKernel",                                                                   \
      (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *,      \
       void **, void **))                                                                         \
    X(error_name, "cuGetErrorName", (int, const char **))

struct cuda {
    void *library, *context;
    int card;
#define X(name, symbol, args) int (*name) args;
    CUDA_LIST(X)
#undef X
};

static int enter(const struct cuda *c) { return c->set_current(c->context); }

static void *from(cuda_address a) { return (void *)(uintptr_t)a; }
static cuda_address to(const void *p) { return (cuda_address)(uintptr_t)p; }

/* ---- cards ---- */

static int cuda_count(void *self, int *n)
{
    const struct cuda *c = self;
    *n = 0;
    const int code = c->count(n);
    return code ? code : *n < 0 || *n > MOST_CARDS ? OUR_MISTAKE : 0;
}

static int cuda_about(void *self, int card, struct gpu_about *out)
{
    const struct cuda *c = self;
    int device = 0, shared = 0, integrated = 0, code;
    size_t bytes = 0;
    *out = (struct gpu_about){0};
    if ((code = c->device(&device, card)) ||
        (code = c->device_name(out->name, (int)sizeof out->name, device)) ||
        (code = c->attribute(&out->major, DEVICE_MAJOR, device)) ||
        (code = c->attribute(&out->minor, DEVICE_MINOR, device)) ||
        (code = c->attribute(&out->n_multi, DEVICE_MULTIPROCESSORS, device)) ||
        (code = c->attribute(&shared, DEVICE_SHARED_OPTIN, device)) ||
        (code = c->attribute(&integrated, DEVICE_INTEGRATED, device)) ||
        (code = c->total_bytes(&bytes, device)) || (code = c->driver_version(&out->driver)))
        return code;
    out->name[sizeof out->name - 1] = 0;
    out->shared = shared > 0 ? (size_t)shared : 0;
    out->bytes = out->free_bytes = bytes;
    out->integrated = integrated != 0;
    return out->major < 1 || out->major > 99 || out->minor < 0 || out->minor > 9 || !bytes
               ? OUR_MISTAKE
               : 0;
}

static int cuda_open(void *self, int card)
{
    struct cuda *c = self;
    int code = c->device(&c->card, card);
    if (!code)
        code = c->retain(&c->context, c->card);
    if (!code && !c->context)
        code = OUR_MISTAKE;
    return code ? code : enter(c);
}

static void cuda_close(void *self)
{
    struct cuda *c = self;
    if (c->context)
        (void)c->release(c->card);
    c->context = NULL;
}

static int cuda_free_bytes(void *self, uint64_t *out)
{
    const struct cuda *c = self;
    size_t left = 0, all = 0;
    int code = enter(c);
    if (!code)
        code = c->memory(&left, &all);
    *out = left;
    return code ? code : left > all ? OUR_MISTAKE : 0;
}

/* ---- memory ---- */

static int cuda_take(void *self, void **out, size_t n_bytes)
{
    const struct cuda *c = self;
    cuda_address at = 0;
    int code = enter(c);
    if (!code)
        code = c->take(&at, n_bytes);
    *out = code ? NULL : from(at);
    return code || at ? code : OUR_MISTAKE;
}

static int cuda_give(void *self, void *card, size_t n_bytes)
{
    const struct cuda *c = self;
    const int code = enter(c);
    (void)n_bytes;
    return code ? code : c->give(to(card));
}

/* Zero, as the device's memory is. */
static int cuda_host_take(void *self, void **out, size_t n_bytes)
{
    const struct cuda *c = self;
    int code = enter(c);
    *out = NULL;
    if (!code)
        code = c->host_take(out, n_bytes, HOST_PORTABLE);
    if (!code && !*out)
        code = OUR_MISTAKE;
    if (!code)
        memset(*out, 0, n_bytes);
    return code;
}

static int cuda_host_give(void *self, void *host, size_t n_bytes)
{
    const struct cuda *c = self;
    const int code = enter(c);
    (void)n_bytes;
    return code ? code : c->host_give(host);
}

static int cuda_put(void *self, struct gpu_stream *s, void *card, const void *host, size_t n_bytes)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->put(to(card), host, n_bytes, s);
}

static int cuda_get(void *self, struct gpu_stream *s, void *host, const void *card, size_t n_bytes)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->get(host, to(card), n_bytes, s);
}

static int cuda_copy(void *self, struct gpu_stream *s, void *there, const void *here,
                     size_t n_bytes)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->copy(to(there), to(here), n_bytes, s);
}

static int cuda_fill(void *self, struct gpu_stream *s, void *card, int value, size_t n_bytes)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->fill(to(card), (unsigned char)value, n_bytes, s);
}

/* ---- streams ---- */

static int cuda_stream_make(void *self, struct gpu_stream **out, bool urgent)
{
    const struct cuda *c = self;
    int least = 0, most = 0, code = enter(c);
    void *s = NULL;
    if (!code)
        code = c->stream_range(&least, &most);
    if (!code)
        code = c->stream_make(&s, STREAM_EXCLUSIVE, urgent ? most : least);
    *out = s;
    return code || s ? code : OUR_MISTAKE;
}

static int cuda_stream_free(void *self, struct gpu_stream *s)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->stream_free(s);
}

static int cuda_stream_wait(void *self, struct gpu_stream *s)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->stream_wait(s);
}

static int cuda_stream_after(void *self, struct gpu_stream *s, struct gpu_event *e)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->stream_after(s, e, 0);
}

static int cuda_event_make(void *self, struct gpu_event **out)
{
    const struct cuda *c = self;
    int code = enter(c);
    void *e = NULL;
    if (!code)
        code = c->event_make(&e, EVENT_NO_TIMES);
    *out = e;
    return code || e ? code : OUR_MISTAKE;
}

static int cuda_event_free(void *self, struct gpu_event *e)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->event_free(e);
}

static int cuda_event_record(void *self, struct gpu_event *e, struct gpu_stream *s)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->event_record(e, s);
}

static int cuda_event_ready(void *self, struct gpu_event *e, bool *ready)
{
    const struct cuda *c = self;
    int code = enter(c);
    if (!code)
        code = c->event_ready(e);
    *ready = !code;
    return code == NOT_READY ? 0 : code;
}

/* ---- code ---- */

static int cuda_module_load(void *self, const struct gpu_image *image, struct gpu_module **out,
                            char *log, size_t n_log)
{
    const struct cuda *c = self;
    int option[2] = {JIT_LOG, JIT_LOG_BYTES}, code = enter(c);
    void *value[2] = {log, (void *)(uintptr_t)n_log}, *m = NULL;
    if (!code)
        code = c->module_load(&m, image->at, 2, option, value);
    if (n_log)
        log[n_log - 1] = 0;
    *out = m;
    return code || m ? code : OUR_MISTAKE;
}

static int cuda_module_free(void *self, struct gpu_module *m)
{
    const struct cuda *c = self;
    const int code = enter(c);
    return code ? code : c->module_free(m);
}

static int cuda_function(void *self, struct gpu_module *m, const char *name, size_t shared,
                         struct gpu_function **out)
{
    const struct cuda *c = self;
    int code = enter(c);
    void *f = NULL;
    if (!code)
        code = c->function(&f, m, name);
    if (!code && !f)
        code = OUR_MISTAKE;
    if (!code && shared > 48 << 10)
        code = c->function_set(f, FUNCTION_SHARED, (int)shared);
    *out = f;
    return code;
}

static int cuda_launch(void *self, struct gpu_stream *s, struct gpu_function *f,
                       const struct gpu_launch *l)
{
    const struct cuda *c = self;
    const int code = enter(c);
    void *args[1] = {(void *)(uintptr_t)l->args};
    return code ? code
                : c->launch(f, (unsigned)l->blocks[0], (unsigned)l->blocks[1],
                            (unsigned)l->blocks[2], (unsigned)l->threads, 1, 1,
                            (unsigned)l->shared, s, args, NULL);
}

/* ---- the table ---- */

static const char *cuda_text(void *self, int code)
{
    const struct cuda *c = self;
    const char *name = NULL;
    if (code == OUR_MISTAKE)
        return "the driver says what cannot be";
    return c->error_name(code, &name) || !name ? "an error without a name" : name;
}

static enum gpu_fault cuda_kind(void *self, int code)
{
    (void)self;
    switch (code) {
    case 0:
        return GPU_FAULT_NONE;
    case CUDA_MEMORY:
        return GPU_FAULT_MEMORY;
    case CUDA_NO_BINARY:
    case CUDA_PTX:
    case CUDA_NO_JIT:
    case CUDA_PTX_VERSION:
    case CUDA_NOT_FOUND:
        return GPU_FAULT_REFUSED;
    default: /* most others stay, whatever is called next */
        return code == OUR_MISTAKE ? GPU_FAULT_OTHER : GPU_FAULT_LOST;
    }
}

static void cuda_unload(void *self)
{
    struct cuda *c = self;
    if (c->library)
        (void)dlclose(c->library);
    mem_free(c);
}

static ingle_status find_all(struct cuda *c, struct err *err)
{
    static const struct { const char *symbol; size_t at; } want[] = {
#define X(name, symbol, args) {symbol, offsetof(struct cuda, name)},
        CUDA_LIST(X)
#undef X
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        void *at = dlsym(c->library, want[i].symbol);
        if (!at)
            return err_set(err, INGLE_UNSUP, "libcuda.so.1 has no function '%s': it is too old",
                           want[i].symbol);
        memcpy((char *)c + want[i].at, &at, sizeof at);
    }
    return INGLE_OK;
}

static ingle_status start(const struct cuda *c, struct err *err)
{
    int version = 0, code = c->driver_version(&version);
    if (!code && version < LEAST_DRIVER)
        return err_set(err, INGLE_UNSUP, "the driver is one of CUDA %d.%d, least is %d.%d",
                       version / 1000, version % 1000 / 10, LEAST_DRIVER / 1000,
                       LEAST_DRIVER % 1000 / 10);
    if (!code)
        code = c->init(0);
    if (code)
        return err_set(err, INGLE_UNSUP, "libcuda.so.1 does not start: %s",
                       cuda_text((void *)(uintptr_t)c, code));
    return INGLE_OK;
}

ingle_status device_gpu_cuda(struct gpu_api *out, struct err *err)
{
    struct cuda *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_set(err, INGLE_NOMEM, "no memory for a driver");
    void *self = dlopen(NULL, RTLD_LAZY);
    ingle_status s = device_gpu_library_check(self, library, err);
    if (self)
        dlclose(self);
    if (!s)
        c->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    const char *why = s || c->library ? NULL : dlerror();
    if (!s && !c->library)
        s = err_set(err, INGLE_UNSUP, "there is no NVIDIA driver (%s)", why ? why : "?");
    if (!s)
        s = find_all(c, err);
    if (!s)
        s = start(c, err);
    if (s) {
        cuda_unload(c);
        return s;
    }
    *out = (struct gpu_api){.name = "cuda",
                            .self = c,
                            .unload = cuda_unload,
                            .count = cuda_count,
                            .about = cuda_about,
                            .open = cuda_open,
                            .close = cuda_close,
                            .free_bytes = cuda_free_bytes,
                            .take = cuda_take,
                            .give = cuda_give,
                            .host_take = cuda_host_take,
                            .host_give = cuda_host_give,
                            .stream_make = cuda_stream_make,
                            .stream_free = cuda_stream_free,
                            .stream_wait = cuda_stream_wait,
                            .stream_after = cuda_stream_after,
                            .event_make = cuda_event_make,
                            .event_free = cuda_event_free,
                            .event_record = cuda_event_record,
                            .event_ready = cuda_event_ready,
                            .put = cuda_put,
                            .get = cuda_get,
                            .copy = cuda_copy,
                            .fill = cuda_fill,
                            .module_load = cuda_module_load,
                            .module_free = cuda_module_free,
                            .function = cuda_function,
                            .launch = cuda_launch,
                            .text = cuda_text,
                            .kind = cuda_kind};
    return INGLE_OK;
}
