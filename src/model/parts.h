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

/* How stored rows become rows of the type that the device loads. */
enum conversion {
    AS_STORED,
    FROM_FP4, /* two e2m1 codes a byte, neighbours; one e8m0 scale per 32: becomes MXFP4 */
    FROM_FP8, /* e4m3 codes; one e8m0 scale per tile of 128 x 128 */
};

struct source {
    const struct io_tensor *t, *scale; /* scale: FROM_FP4, FROM_FP8 */
};

struct bound_matrix {
    struct source *part;  /* one, or one for each matrix of the stack; owned */
    int64_t n_parts;
    enum conversion from;
    struct device_matrix *m;
};

struct model_table {
    const struct model *model;
    const struct io_tensor *t;
    int64_t n_rows, width;
    size_t row_bytes;
};

struct packed_file;

struct model {
    struct io_file *file;
    struct device *d;
    const struct report_sink *sink;
    struct entry *entry; /* sorted by name */
    size_t n_entries;
    struct bound_matrix *matrix;
    size_t n_matrices, cap_matrices;
    struct device_vector **vector;
    size_t n_vectors, cap_vectors;
    struct model_table **table;
    size_t n_tables, cap_tables;
    uint64_t n_bytes;
    struct { char prefix[32]; const char *what; } skip[MAX_SKIPS];
    int n_skips;
    /* The matrices, in one piece of memory. */
    uint8_t *image;
    struct model_loaded loaded;
    struct packed_file *file_of_image; /* that is mapped, or NULL */
};

/* The type that a device loads for tensors of this one, and how; false: none. */
bool model_loads_as(uint32_t stored, bool has_scale, uint32_t *type, enum conversion *from);

/* Ends what model_load() began. */
void model_unload(struct model *m);

#endif
