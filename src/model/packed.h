/*
 * packed - inside the room: the file of packed weights, and the directory of such files.
 *
 * A file holds the weights of one model as they are in memory, so that the next start maps them
 * instead of reading and packing: header, table (matrices, experts, sources, sums of blocks, sums
 * of extents), then, from a page border on (a huge page's, of a large one), the image: every matrix
 * at its place in one piece of memory.  Experts come after all other matrices, layer by layer,
 * each as an extent (model_experts()): one read brings one expert, and a layer is one run.
 *
 * A file belongs to its sources (sizes, times, inodes), to the tensors (model_identity()), to the
 * format of the file and to the layout of packed weights (KERN_LAYOUT).  All of that makes its key,
 * and the key its name.  Nothing in it depends on the instruction set.
 *
 * Header and table are under checksums that every start checks.  The image is under sums of blocks
 * that model_packed_verify() checks: reading all of it at a start is what the file is there to
 * avoid.
 */
#ifndef INGLE_MODEL_PACKED_H
#define INGLE_MODEL_PACKED_H

#include "model/parts.h"
#include <assert.h>

enum {
    PACKED_FORMAT = 4,
    PACKED_BLOCK = 16 << 20, /* of what is before the experts, under one sum */
    PACKED_ALIGN = 4096,     /* of a matrix in the image */
    PACKED_HUGE = 2 << 20,   /* of an image of so many such pages, in the file and in memory */
    PACKED_HUGE_LEAST = 16,
    PACKED_NAME_BYTES = 48,
    PACKED_MAX_MATRICES = 1 << 20,
    PACKED_MAX_SOURCES = 1 << 16,
    PACKED_MAX_EXTENTS = 1 << 24,
};

struct packed_sum { uint64_t lo, hi; }; /* XXH3-128 */

struct packed_header {
    char magic[16];
    uint32_t format, layout, endian, n_matrices, n_sources, n_blocks, n_groups, n_extents;
    uint64_t file_bytes, image_at, image_bytes;
    uint64_t dense_bytes; /* of the image, before the experts */
    struct packed_sum key, table_sum;
    uint64_t model_sum;    /* model_sum() of the weights */
    char model[192];       /* its path, for people; cut */
    struct packed_sum sum; /* of the header, with zeros here */
};
static_assert(sizeof(struct packed_header) == 328, "a file format: do not pad");
static_assert(offsetof(struct packed_header, key) == 80, "a file format: do not reorder");

struct packed_matrix {
    uint64_t at, bytes; /* in the image; bytes of the whole stack */
    uint64_t step;      /* from one of the stack to the next; 0: no extents */
    int64_t out, in, n_stack;
    uint32_t type, from; /* of the device; enum conversion */
    uint64_t name;       /* hash of the first tensor's name */
};
static_assert(sizeof(struct packed_matrix) == 64, "a file format: do not pad");

/* The extents of one layer. */
struct packed_group {
    uint64_t at, bytes; /* in the image; of one */
    int64_t n;
    uint64_t first; /* of its sums */
};
static_assert(sizeof(struct packed_group) == 32, "a file format: do not pad");

/* What a model wants of a file. */
struct packed_want {
    struct packed_header head; /* all but the sums */
    struct packed_matrix *matrix;
    struct packed_group *group;
    struct io_stamp *source;
};
/* head.n_sources is 0 where a file cannot be: the model's bytes are in no file, or it has
 * changed since it was opened. */
MUST_CHECK ingle_status model_packed_want_init(struct packed_want *w, const struct model *m,
                                         uint64_t identity, struct err *err);
void model_packed_want_release(struct packed_want *w);

/* An open file whose header and table are good. */
struct packed_file {
    int fd; /* holds a shared lock: who wants to know whether the file is in use, asks for it */
    struct packed_header head;
    struct packed_matrix *matrix; /* in `table`, which is owned */
    const struct packed_group *group;
    const struct io_stamp *source;
    const struct packed_sum *block;
    const uint64_t *extent; /* XXH3-64 of each */
    void *table;
    char *path; /* of one that is mapped; owned */
};
/* INGLE_NOTFOUND; INGLE_UNSUP: another format or layout; INGLE_FORMAT: damaged; INGLE_ARG: another
 * user's, or others may write to it. */
MUST_CHECK ingle_status model_packed_open(struct packed_file *f, int dir, const char *name,
                                          struct err *err);
void model_packed_close(struct packed_file *f);
/* flock() without waiting for long: who asks whether a file is in use holds a lock for a moment.
 * False, with errno. */
bool model_packed_lock(int fd, int how);
/* Header and table of n bytes: what model_packed_open() checks.  *table_bytes: after the
 * header. */
MUST_CHECK ingle_status model_packed_check_head(const struct packed_header *h, uint64_t file_bytes,
                                          const char *name, uint64_t *table_bytes, struct err *err);
MUST_CHECK ingle_status model_packed_check_table(const struct packed_header *h, const void *table,
                                           const char *name, struct err *err);
/* Of the place of an image.  A page cache of large folios (ext4 since Linux 6.16, xfs) maps huge
 * pages where a file and its map agree on their borders. */
static inline uint64_t model_packed_align(uint64_t image_bytes)
{
    return image_bytes < (uint64_t)PACKED_HUGE * PACKED_HUGE_LEAST ? PACKED_ALIGN : PACKED_HUGE;
}
struct packed_sum model_packed_sum_of(const void *at, size_t n);
struct packed_sum model_packed_head_sum(const struct packed_header *h);
/* Reads the whole image and compares its sums. */
MUST_CHECK ingle_status model_packed_verify(const struct packed_file *f, const char *name,
                                            struct err *err);

void model_packed_name(char out[PACKED_NAME_BYTES], struct packed_sum key);
bool model_packed_is_name(const char *name);

/* Leaves a mark beside a mapped file: it is damaged, though its header and table are good.
 * model_packed_map() deletes what has one.  False: it could not. */
bool model_packed_mark(const struct packed_file *f);

/* The first n bytes of the image of a model that is in a file of the directory, mapped; *file stays
 * open while they are.  INGLE_NOTFOUND: there is none that fits; bad ones are reported and
 * deleted. */
MUST_CHECK ingle_status model_packed_map(const char *dir, const struct packed_want *w,
                                         const struct report_sink *sink, uint64_t n,
                                         struct packed_file *file, const void **image,
                                         struct err *err);

#endif
