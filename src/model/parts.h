/* parts - inside the room: what a model is made of. */
#ifndef INGLE_MODEL_PARTS_H
#define INGLE_MODEL_PARTS_H

#include "model/model.h"

enum { NAME_MAX_BYTES = 128, MAX_SKIPS = 8 };

/* A tensor under its GGUF name. */
struct entry {
    char name[NAME_MAX_BYTES];
    const struct io_tensor *t;
    bool bound;
};

/* How stored rows become rows of the type that the device loads.  Part of a packed file's key. */
enum conversion {
    AS_STORED,
    FROM_FP4,   /* two e2m1 codes a byte, neighbours; a power of two per 32: becomes MXFP4 */
    FROM_FP8,   /* e4m3 codes and powers of two: becomes FP8_B32 */
    FROM_FP8_S, /* e4m3 codes and other scales: becomes FP8_S32 */
    FROM_NVFP4, /* two e2m1 codes a byte, an e4m3 scale per 16: becomes NVFP4 */
    FROM_INT,   /* whole numbers: become Q4_0, Q5_0 or Q8_0 */
    TO_FLOATS,  /* any of these where no code fits: becomes F32 */
};

enum codes { CODES_NONE, CODES_FP8, CODES_E2M1, CODES_INT };

/* How the tensors of a matrix stand in the file. */
struct layout {
    enum conversion from;
    enum codes codes;
    uint32_t type;          /* that the device loads */
    int bits;               /* CODES_INT: 4 or 8 ... */
    bool packed;            /* ... in words of 32 bits, biased by half their range; else int8 */
    int shift;              /* FROM_INT: scales are loaded as 2^shift times themselves */
    int64_t in, row_bytes;  /* row_bytes: of the codes */
};

struct source {
    const struct io_tensor *t;
    const struct io_tensor *scale, *zero; /* or NULL */
    int64_t tile_rows, tile_columns;      /* that one scale covers */
    int64_t scale_columns;
    /* of one matrix of the stack; 0: tiles run over all of them */
    int64_t scale_rows;
};

struct bound_matrix {
    struct source *part;  /* one, or one for each matrix of the stack; owned */
    int64_t n_parts;
    struct layout layout;
    struct device_matrix *m;
    int64_t layer;        /* "blk.N."; -1: of none */
    bool away;            /* not loaded: model_keep_layers() */
    int64_t group;        /* 1 + index of the experts that it belongs to; 0: none */
    struct seen *seen;    /* [n_seen]: its chunks, from their reading to model_sum_all(); owned */
    int64_t n_seen;
    uint64_t seen_row_bytes;
};

struct model_table {
    const struct model *model;
    const struct io_tensor *t;
    int64_t n_rows, width;
    size_t row_bytes;
};

/* Rows of one chunk, as they stand in the file (sum.c). */
struct seen {
    uint64_t hash;
    /* rows; zero ones in front, at the end, and the most that follow each other */
    int64_t n, lead, trail, longest, longest_at;
};

struct packed_file;
struct scheme;

struct model {
    struct io_file *file;
    struct device *d;
    const struct report_sink *sink;
    struct entry *entry; /* sorted by name */
    size_t n_entries;
    struct bound_matrix *matrix;
    size_t n_matrices, cap_matrices;
    struct device_vector **vector;
    int64_t *vector_layer; /* [n_vectors]: as of matrices; owned */
    size_t n_vectors, cap_vectors, cap_vector_layers;
    struct model_table **table;
    size_t n_tables, cap_tables;
    struct io_tensor **folded; /* owned: stand for tensors of the file */
    size_t n_folded, cap_folded;
    bool floats_only;
    struct model_experts **group; /* owned, and so are they */
    size_t n_groups, cap_groups;
    bool keeps; /* some of the layers alone */
    const char *nothing; /* a norm whose weights are all zero, or NULL */
    uint64_t n_bytes;
    struct { char prefix[32]; const char *what; } skip[MAX_SKIPS];
    int n_skips;
    struct scheme *scheme; /* owned; NULL: the checkpoint says nothing of quantisation */
    size_t n_widened;      /* matrices that no code fits: F32 in memory */
    const char *widened;   /* the first */
    uint64_t wide_bytes;   /* of them, in memory */
    /* sum.c: of all bytes so far, in the order of binding; matrices that are zero. */
    uint64_t sum, sum_bytes, zero_bytes;
    bool summed; /* all of it */
    bool sampled; /* not all bytes, or of the file's time, too */
    size_t n_zero;
    const char *zero;
    /* The matrices, in one piece of memory; without experts that stay in a file. */
    uint8_t *image;
    uint64_t image_bytes; /* mapped, or of memory */
    struct model_loaded loaded;
    uint64_t sent_bytes; /* of it: on a card, given back */
    bool came_home;      /* some of that was read again, and it was said */
    struct packed_file *file_of_image; /* that is mapped, or NULL */
    /* of each file, as it was before its weights were read; owned, or NULL: experts are not read
     * later */
    struct io_stamp *stamp;
};

/* ---- names (model.c) ---- */

struct entry *model_entry(const struct model *m, const char *name);
/* The tensor of this name, with exactly this shape (missing trailing dimensions are 1). */
MUST_CHECK ingle_status model_want(const struct model *m, const char *name, const uint64_t ne[3],
                                   struct entry **out, struct err *err);

#endif
