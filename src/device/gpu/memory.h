/*
 * memory - inside the folder: memory that the host and the card share (memory.c).
 */
#ifndef INGLE_DEVICE_GPU_MEMORY_H
#define INGLE_DEVICE_GPU_MEMORY_H

#include "device/gpu/card.h"

/* ---- memory (memory.c) ---- */

/* A call of the driver has failed: the card is lost. False if code says that. */
bool device_gpu_ok(struct device *d, int code, const char *function);
struct gpu_region *device_gpu_region_of(struct device_gpu *g, const void *at);
struct gpu_piece *device_gpu_piece_of(const struct gpu_region *r, const void *at);
/* The same address on the card; NULL: there is none. */
void *device_gpu_address(struct device_gpu *g, const void *at);
/* Makes the bytes right on a side; those of no region are the host's. */
bool device_gpu_bring(struct device *d, const void *at, size_t n_bytes, enum device_side side);
/* They are newer on that side now. */
void device_gpu_mark(struct device *d, const void *at, size_t n_bytes, enum device_side side);
/* A copy on the card of what the host has, good for the operations that follow; NULL: no. */
void *device_gpu_stage(struct device *d, const void *host, size_t n_bytes);
/* Memory of the host for a list, until it is requested again; NULL: there is none. */
void *device_gpu_room(struct device_gpu *g, size_t n_bytes);
/* As staged, or where it is on the card if it is of a region. */
const void *device_gpu_list(struct device *d, const void *host, size_t n_bytes);
bool device_gpu_put(struct device *d, void *card, const void *host, size_t n_bytes);
bool device_gpu_get(struct device *d, void *host, const void *card, size_t n_bytes);
/* For all that was asked of the stream; and for an event of upload.c.  They poll: a kernel that
 * does not end within patience_ns makes the card lost. */
bool device_gpu_wait(struct device *d);
bool device_gpu_event_wait(struct device *d, struct gpu_event *e);
/* The stream has come to its end, or never will: what has failed is not reported. */
void device_gpu_rest(struct device_gpu *g);
void *device_gpu_take(struct device *d, size_t n_bytes);
void device_gpu_give(struct device *d, void *card, size_t n_bytes);
struct gpu_own *device_gpu_own_of(struct device_gpu *g, const void *at);
bool device_gpu_own_is_host(struct device_gpu *g, const void *at);

extern const struct device_own_ops device_gpu_own_ops;
/* Where the processor stands in for the card's own memory; NULL: no memory. */
uint8_t *device_gpu_stand(struct device *d, const void *own);
bool device_gpu_memory_open(struct device *d);
void device_gpu_memory_close(struct device *d);
void device_gpu_read(struct device *d, const void *at, size_t n_bytes);
void device_gpu_wrote(struct device *d, const void *at, size_t n_bytes);
void *device_gpu_host_take(struct device *d, size_t n_bytes);
void device_gpu_host_give(struct device *d, void *at, size_t n_bytes);
MUST_CHECK ingle_status device_gpu_arena(struct device *d, size_t n_bytes, struct err *err);
void device_gpu_took(struct device *d, size_t at, size_t n_bytes);
void device_gpu_released(struct device *d, size_t mark);
void device_gpu_resumed(struct device *d);

#endif
