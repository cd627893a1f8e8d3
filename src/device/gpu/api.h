/*
 * api - the functions of a card's driver that the device calls.
 *
 * One table, which a driver (api_cuda.c), another one or an emulated card (tests/gpu/api_emu.c)
 * fills.  Types are ours.  Every function returns 0 or a code of the driver, which text() names and
 * kind() sorts.  Addresses on the card are pointers that the host never follows.
 *
 * Copies and launches of a stream happen in their order.  The host's side of a copy is not touched
 * until the stream has been waited for.
 */
#ifndef INGLE_DEVICE_GPU_API_H
#define INGLE_DEVICE_GPU_API_H

#include "base/err.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_stream;
struct gpu_event;
struct gpu_module;
struct gpu_function;

enum gpu_fault {
    GPU_FAULT_NONE,
    GPU_FAULT_MEMORY,  /* there is too little of it */
    GPU_FAULT_LOST,    /* nothing works with this card any more */
    GPU_FAULT_REFUSED, /* code that this driver or card does not accept */
    GPU_FAULT_OTHER
};

struct gpu_about {
    char name[64];
    int driver; /* version: 1000 * major + 10 * minor */
    int major, minor; /* compute capability */
    int n_multi;      /* multiprocessors */
    size_t shared;    /* bytes of shared memory that a block may have */
    uint64_t bytes, free_bytes;
    bool integrated;  /* its memory is the host's */
};

/* Code for a card: PTX text with a zero at its end, or machine code. */
struct gpu_image {
    const char *module; /* its name */
    const void *at;
    size_t n_bytes;
    void *own; /* memory that image.h frees; or NULL */
    bool machine;
};

struct gpu_launch {
    int blocks[3], threads;
    size_t shared;
    const void *args; /* one struct, by value */
    size_t n_args;
};

struct gpu_api {
    const char *name;
    bool has_kernels; /* module_load() knows them by name: images have no bytes */
    void *self;
    void (*unload)(void *self); /* of the table: the driver is closed */

    int (*count)(void *self, int *n);
    int (*about)(void *self, int card, struct gpu_about *out);
    /* From here on of the card that is open. */
    int (*open)(void *self, int card);
    void (*close)(void *self);
    int (*free_bytes)(void *self, uint64_t *out);

    int (*take)(void *self, void **out, size_t n_bytes);
    int (*give)(void *self, void *card, size_t n_bytes);
    int (*host_take)(void *self, void **out, size_t n_bytes); /* pinned */
    int (*host_give)(void *self, void *host, size_t n_bytes);

    int (*stream_make)(void *self, struct gpu_stream **out, bool urgent);
    int (*stream_free)(void *self, struct gpu_stream *s);
    int (*stream_wait)(void *self, struct gpu_stream *s); /* the host waits */
    int (*stream_after)(void *self, struct gpu_stream *s, struct gpu_event *e);
    int (*event_make)(void *self, struct gpu_event **out);
    int (*event_free)(void *self, struct gpu_event *e);
    int (*event_record)(void *self, struct gpu_event *e, struct gpu_stream *s);
    /* Whether what is before it has happened: nobody waits. */
    int (*event_ready)(void *self, struct gpu_event *e, bool *ready);

    int (*put)(void *self, struct gpu_stream *s, void *card, const void *host, size_t n_bytes);
    int (*get)(void *self, struct gpu_stream *s, void *host, const void *card, size_t n_bytes);
    int (*copy)(void *self, struct gpu_stream *s, void *to, const void *from, size_t n_bytes);
    int (*fill)(void *self, struct gpu_stream *s, void *card, int value, size_t n_bytes);

    /* log: what the driver says of an image that it refuses. */
    int (*module_load)(void *self, const struct gpu_image *image, struct gpu_module **out,
                       char *log, size_t n_log);
    int (*module_free)(void *self, struct gpu_module *m);
    int (*function)(void *self, struct gpu_module *m, const char *name, size_t shared,
                    struct gpu_function **out);
    int (*launch)(void *self, struct gpu_stream *s, struct gpu_function *f,
                  const struct gpu_launch *l);

    const char *(*text)(void *self, int code);
    enum gpu_fault (*kind)(void *self, int code);
};

/* The driver of this machine, or of the program's tests. */
MUST_CHECK ingle_status device_gpu_driver(struct gpu_api *out, struct err *err);
/* NVIDIA's, by dlopen of libcuda.so.1. */
MUST_CHECK ingle_status device_gpu_cuda(struct gpu_api *out, struct err *err);

#endif
