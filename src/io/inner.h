/*
 * inner - what the readers of this room share: an arena for copies, a reader of bytes that
 * cannot run over its end, the container itself.
 */
#ifndef INGLE_IO_INNER_H
#define INGLE_IO_INNER_H

#include "io/io.h"

/* Memory that is given back all at once, with a budget.  Zeroed by io_arena_init(). */
struct io_arena {
    struct io_chunk *chunk;
    size_t n_used, cap;      /* of the newest chunk */
    size_t n_left, n_budget; /* bytes that may still be taken */
};

void io_arena_init(struct io_arena *a, size_t n_budget);
void io_arena_release(struct io_arena *a);
/* n bytes, 8-aligned; NULL on errors.  INGLE_LIMIT when the budget is spent. */
MUST_CHECK ingle_status io_arena_take(struct io_arena *a, size_t n, void **out, struct err *err);
/* A copy of n bytes with a 0 after it. */
MUST_CHECK ingle_status io_arena_copy(struct io_arena *a, const char *s, size_t n, const char **out,
                                      struct err *err);

/* Reads a file (or bytes in memory) from front to back through a buffer of its own, so
 * that nothing checked can change afterwards. */
struct io_reader {
    const char *name;
    int fd; /* -1: in memory */
    const unsigned char *memory;
    uint64_t n_bytes, pos; /* pos <= n_bytes */
    unsigned char *buf;
    uint64_t buf_at;
    size_t buf_n;
};

MUST_CHECK ingle_status io_reader_init(struct io_reader *r, const char *name, int fd,
                                       const void *memory, uint64_t n_bytes, struct err *err);
void io_reader_release(struct io_reader *r);
static inline uint64_t io_reader_left(const struct io_reader *r)
{
    return r->n_bytes - r->pos;
}
/* Exactly n bytes of what ("key length"), or an error. */
MUST_CHECK ingle_status io_reader_take(struct io_reader *r, void *dst, size_t n, const char *what,
                                       struct err *err);

/* meta.c: a value whose parts already are in the arena is appended; io_meta_seal() sorts
 * and refuses duplicates. */
struct io_arena *io_meta_arena(struct io_meta *m);
MUST_CHECK ingle_status io_meta_append(struct io_meta *m, const struct io_value *v,
                                       struct err *err);
MUST_CHECK ingle_status io_meta_seal(struct io_meta *m, struct err *err);

struct io_string {
    const char *s;
    size_t n;
};

/* GGUF value types. */
enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_N_TYPES
};

/* Bytes of one value in a file (the least for strings), 0 for arrays and unknown types. */
size_t io_gguf_size(uint32_t type);
enum io_value_kind io_gguf_kind(uint32_t type);

struct io_part { /* one file of a container */
    char *path;  /* owned */
    int fd;      /* -1: in memory */
    uint64_t n_bytes;
    const void *map; /* NULL: not mapped */
    uint64_t links, owner; /* when it was opened: names that it has; user and group */
    uint32_t mode;
};

struct io_file {
    enum io_kind kind;
    char *path;
    const struct report_sink *sink; /* borrowed */
    struct io_part *part;
    size_t n_parts, cap_part;
    struct io_meta *meta;
    struct io_arena arena; /* tensor names */
    struct io_tensor *tensor;
    size_t n_tensors, cap_tensor;
    uint32_t *slot; /* hash of names: tensor + 1, 0 is empty */
    size_t n_slots; /* a power of two, or 0 */
    uint64_t seed;
    /* owned: of a file that is only planned, whose bytes come from ... */
    char *head;
    struct io_planned planned; /* ... this; read is NULL otherwise */
};

/* Opens and maps one more file of f. */
/* shards.c: "PREFIX-00001-of-00003.safetensors". */
struct io_shards {
    char prefix[200];
    unsigned count;
};
/* The only set of a directory, complete.  INGLE_NOTFOUND: there is none; errors name what is
 * missing or too much. */
MUST_CHECK ingle_status io_shards_find(const char *dir, struct io_shards *out, struct err *err);

/* INGLE_FORMAT, INGLE_UNSUP: the part is no file of weights, by its beginning; says what it is. */
MUST_CHECK ingle_status io_part_other(const struct io_file *f, const struct io_part *p,
                                      struct err *err);
/* io.c: who may do what with it, and how many names it has. */
void io_part_stat(struct io_part *p);
bool io_is_lfs_pointer(const char *text, size_t n);
#endif
