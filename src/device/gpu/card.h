/*
 * card - inside the folder: the device on a card.
 *
 * struct device is the CPU's device, whose table of operations is device_gpu_ops while a card is
 * open (device.gpu).  An operation runs on one side; the other operations' memory is brought there
 * before, and what it writes is marked as newer there.  An operation that the card lacks runs on
 * the host: the processor stands in.
 *
 * Memory that both sides have is a region: a range of the host's addresses and its copy on the
 * card.  Its pieces (allocations of the arena; of other regions there is one) know which side is
 * newer.
 */
#ifndef INGLE_DEVICE_GPU_CARD_H
#define INGLE_DEVICE_GPU_CARD_H

#include "device/gpu/api.h"
#include "device/gpu/kernels/kernels.h"
#include "device/ops.h"
#include <pthread.h>
#include <stdatomic.h>

enum gpu_newer {
    GPU_NEW,  /* nobody has said anything: what there is, is the host's */
    GPU_HOST,
    GPU_CARD,
    GPU_BOTH
};
struct gpu_piece { size_t at, n_bytes; enum gpu_newer newer; };
struct gpu_region {
    uint8_t *host, *card; /* card NULL: there is no room; everything stays on the host */
    size_t n_bytes;
    bool pinned;
    struct gpu_piece *piece; /* ascending, one after another */
    size_t n_pieces, cap;
};

/* Memory of the card alone; or, where it had no room for pages, the host's in its place. */
struct gpu_own {
    uint8_t *card;
    bool host;
    size_t n_bytes;
    uint8_t *stand; /* host: as large, where the processor stands in; NULL: not needed so far */
};

/* Lists that were staged since the buffer began anew: equal ones go up once a step. */
enum { GPU_STAGED = 16 };
struct gpu_staged { size_t at, n_bytes; };

/* Pinned buffers that weights go through, while they are loaded (upload.c). */
enum { GPU_BUFFERS = 2 };
struct gpu_upload {
    uint8_t *at[GPU_BUFFERS]; /* NULL: nobody loads, or there is no such memory */
    size_t n_bytes;           /* of each */
    struct gpu_event *event[GPU_BUFFERS];
    bool under_way[GPU_BUFFERS]; /* its event says when it may be filled again */
    int turn;
};

/* A side for an operation, for tests: 0 host, 1 card, -1 as it is. */
typedef int device_gpu_choice_fn(void *arg, enum device_op op);

/* Kernels of kernels.inc, by name: GPU_K_row_norm. */
enum gpu_kernel {
#define GPU_KERNEL(name, args, threads, blocks, shared, registers, module) GPU_K_##name,
#include "device/gpu/kernels/kernels.inc"
#undef GPU_KERNEL
    GPU_KERNELS
};
enum gpu_module_number {
#define GPU_MODULE(name, least) GPU_M_##name,
#include "device/gpu/kernels/modules.inc"
#undef GPU_MODULE
    GPU_MODULES
};

struct device_gpu {
    struct gpu_api api;
    struct device_card_info info;
    struct gpu_stream *stream;
    bool opened;
    atomic_bool lost, reported; /* reported: set by one thread, before lost */
    bool idle;                  /* there is nothing there */
    bool hung; /* a kernel does not end: nothing of the driver may be called any more */
    struct gpu_event *event; /* of waits for the stream */
    uint64_t patience_ns;    /* a wait that is longer means that it does not end */
    bool has_experts; /* device_own_bytes(): the store of experts has slots on the card */
    const char *lost_at;
    size_t lost_base; /* device.base then: a step that was suspended has lost its rows, too */
    uint64_t budget, used; /* bytes of the card that may be taken, and are */
    pthread_mutex_t lock;  /* guards the lists below, and budget's use */
    struct gpu_region arena;
    struct gpu_region **region; /* by host address */
    size_t n_regions, cap_regions;
    struct gpu_own *own; /* by address */
    size_t n_own, cap_own, n_own_host; /* n_own_host: in the host's memory */
    size_t dry_pieces; /* the most pieces of a dry run */
    size_t dry_now;
    /* Staging buffers, in turns: pinned, and their copies. */
    uint8_t *stage, *stage_card;
    size_t stage_at;
    struct gpu_staged staged[GPU_STAGED]; /* the last of what is there, in turns */
    int n_staged;
    struct gpu_upload up;
    enum device_side last; /* of the operation before */
    device_gpu_choice_fn *choice;
    void *choice_arg;
    bool stood_in[DEVICE_OPS]; /* reported */
    uint32_t stays; /* the same of codes of weights that the card cannot compute with */
    bool is_full, no_arena, no_pages; /* the same of its memory, for matrices and for scratch */
    struct gpu_module *module[GPU_MODULES];
    bool module_tried[GPU_MODULES];
    struct gpu_function *kernel[GPU_KERNELS];
    bool kernel_tried[GPU_KERNELS];
    char why[256]; /* the last kernel that is not used, and why */
    bool is_new;   /* not reported yet */
    uint64_t n_card[DEVICE_OPS], n_host[DEVICE_OPS]; /* operations that ran there */
    uint64_t n_launches;
    uint8_t *room; /* device_gpu_room() */
    uint8_t *self_host, *self_back, *self_card; /* of self.c, or NULL */
    size_t self_used; /* bytes of self_back that the last test fetched */
    size_t cap_room;
};

extern const struct device_ops device_gpu_ops;

#endif
