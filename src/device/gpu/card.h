/*
 * card - inside the folder: the device on a card.
 *
 * struct device is the CPU's device, whose table of operations is device_gpu_ops while a card is
 * open (device.gpu).  An operation runs on one side; the other operations' memory is brought there
 * before, and what it writes is marked as newer there.  An operation that the card lacks runs on
 * the host: the processor stands in.
 *
 * Memory that both sides have is a region: a range of the host's addresses and its twin on the
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
    atomic_bool lost, told; /* told: by one thread, before it is lost */
    bool idle; /* nothing lies there */
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
    /* What goes up, in turns: pinned, and its twin. */
    uint8_t *stage, *stage_card;
    size_t stage_at;
    struct gpu_staged staged[GPU_STAGED]; /* the last of what lies there, in turns */
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
    bool is_new;   /* nobody was told that */
    uint64_t n_card[DEVICE_OPS], n_host[DEVICE_OPS]; /* operations that ran there */
    uint64_t n_launches;
    uint8_t *room; /* device_gpu_room() */
    uint8_t *self_host, *self_back, *self_card; /* of self.c, or NULL */
    size_t self_used; /* bytes of self_back that the last test fetched */
    size_t cap_room;
};

extern const struct device_ops device_gpu_ops;

/* ---- memory (memory.c) ---- */

/* A call of the driver has failed: the card is lost. False if code says that. */
bool device_gpu_ok(struct device *d, int code, const char *function);
struct gpu_region *device_gpu_region_of(struct device_gpu *g, const void *at);
struct gpu_piece *device_gpu_piece_of(const struct gpu_region *r, const void *at);
/* The same address on the card; NULL: there is none. */
void *device_gpu_twin(struct device_gpu *g, const void *at);
/* Makes the bytes right on a side; those of no region are the host's. */
bool device_gpu_bring(struct device *d, const void *at, size_t n_bytes, enum device_side side);
/* They are newer on that side now. */
void device_gpu_mark(struct device *d, const void *at, size_t n_bytes, enum device_side side);
/* A copy on the card of what the host has, good for the operations that follow; NULL: no. */
void *device_gpu_stage(struct device *d, const void *host, size_t n_bytes);
/* Memory of the host for a list, until it is asked for again; NULL: there is none. */
void *device_gpu_room(struct device_gpu *g, size_t n_bytes);
/* As staged, or where it lies on the card if it is of a region. */
const void *device_gpu_list(struct device *d, const void *host, size_t n_bytes);
bool device_gpu_put(struct device *d, void *card, const void *host, size_t n_bytes);
bool device_gpu_get(struct device *d, void *host, const void *card, size_t n_bytes);
/* For all that was asked of the stream; and for an event of upload.c.  They poll: a kernel that
 * does not end within patience_ns makes the card lost. */
bool device_gpu_wait(struct device *d);
bool device_gpu_event_wait(struct device *d, struct gpu_event *e);
/* The stream has come to its end, or never will: what has failed is not told. */
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

/* ---- what operations read and write (uses.c) ---- */

enum { GPU_READS = 1, GPU_WRITES = 2, GPU_LIST = 4 /* integers or numbers of the host */ };
struct gpu_use {
    const void *at;
    size_t n_bytes;
    int how;
    bool whole; /* rows without columns between them that are not theirs */
};
typedef void gpu_use_fn(void *arg, const struct gpu_use *use);
void device_gpu_uses(enum device_op op, const void *args, gpu_use_fn *fn, void *arg);

/* Where matrix `index` of m lies on the card; NULL: it does not. */
const uint8_t *device_gpu_weights(const struct device_matrix *m, int64_t index);

/* The matrices of an operation, of which some may have no contents in the host's memory, get them
 * there.  False: they cannot, and the device has failed. */
bool device_gpu_home(struct device *d, enum device_op op, const void *args);
/* The whole stack to m->card (upload.c). */
bool device_gpu_put_stack(struct device_matrix *m);

/* ---- the processor (stand.c) ---- */

/* Runs it on the processor; what of pages and matrices lies on the card is copied for it. */
void device_gpu_on_host(struct device *d, enum device_op op, const void *args, void *scratch);
/* An operation on a side that it is known to have. */
void device_gpu_on_side(struct device *d, enum device_op op, const void *args, void *scratch,
                        enum device_side side);
/* Products and experts of which some lie on the card: each side has its own. */
void device_gpu_divide(struct device *d, enum device_op op, const void *args, void *scratch);

void device_gpu_set_choice(struct device *d, device_gpu_choice_fn *fn, void *arg);

/* ---- kernels (kernels.c, launch.c) ---- */

struct gpu_kernel_about {
    const char *name, *module;
    int number, threads; /* number: of its module */
    size_t shared;
};
extern const struct gpu_kernel_about device_gpu_kernels[GPU_KERNELS];
/* Whether the card has it; loads its module the first time: not within a step. */
bool device_gpu_has(struct device *d, enum gpu_kernel k);
/* Why the kernel that was asked for last is not used, if nobody was told that; or `otherwise`. */
const char *device_gpu_why(struct device *d, const char *otherwise);
/* As device_gpu_has(), of a kernel that a slower one of the card replaces: that is reported. */
bool device_gpu_has_faster(struct device *d, enum gpu_kernel k);
/* The comparison's memory, when the stream is no more. */
void device_gpu_self_close(struct device *d);
/* Runs it once beside the processor (self.c); false: its bits differ. */
bool device_gpu_self(struct device *d, enum gpu_kernel k, const char *name, const char *module);
/* shared: bytes, at most those of the list; 0: those.  False: the card is lost.  An empty grid is
 * nothing to do. */
bool device_gpu_launch(struct device *d, enum gpu_kernel k, struct gpu_grid grid, const void *args,
                       size_t n_args, size_t shared);
/* Loads the first kernel; INGLE_UNSUP: the driver refuses the code, or it computes wrongly. */
MUST_CHECK ingle_status device_gpu_kernels_open(struct device *d, struct err *err);
void device_gpu_kernels_close(struct device *d);

/* ---- operations on the card (run_*.c) ---- */

/* False: the card has no kernel for this; nothing has been done. */
typedef bool gpu_run_fn(struct device *d, const void *args, void *scratch);
extern gpu_run_fn *const device_gpu_run[DEVICE_OPS];
/* Bytes of scratch that it wants on the card. */
size_t device_gpu_scratch(const struct device *d, enum device_op op, const void *args);

#endif
