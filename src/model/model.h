/*
 * model - a file's tensors as loaded weights.
 *
 * The reader sees one kind of file: names are those of GGUF, whatever the container (a
 * family translates others).  Loading has two phases: a family binds names to weights,
 * which checks every shape and adds up the plan; then model_load() takes the memory and
 * packs, in parallel, with progress.
 */
#ifndef INGLE_MODEL_MODEL_H
#define INGLE_MODEL_MODEL_H

#include "base/err.h"
#include "base/json.h"
#include "base/report.h"
#include "device/card.h"
#include "device/device.h"
#include "io/io.h"
#include <stdbool.h>
#include <stdint.h>

struct model;

/* Gives the GGUF name of a tensor of another container in out; false: not known. */
typedef bool model_rename_fn(const char *name, char *out, size_t n_out);

/* file, device and sink are borrowed until model_free().  rename may be NULL. */
MUST_CHECK ingle_status model_create(struct model **out, struct io_file *file, struct device *d,
                                     model_rename_fn *rename, const struct report_sink *sink,
                                     struct err *err);
void model_free(struct model *m);
struct device *model_device(const struct model *m);
const struct io_file *model_file(const struct model *m);
const struct report_sink *model_sink(const struct model *m);

/* The tensor of this (GGUF) name, or NULL. */
const struct io_tensor *model_find(const struct model *m, const char *name);

/* Reads what the configuration of a checkpoint (config.json, and files beside it) says of
 * quantisation: an error names a method that is not read, and what would work.  Before any tensor
 * is bound. */
MUST_CHECK ingle_status model_read_scheme(struct model *m, struct json_object *config,
                                          struct err *err);

/* The tensor of this name counts as a matrix: its axes but the last are one. */
MUST_CHECK ingle_status model_fold(struct model *m, const char *name, struct err *err);
/* Activations of all products stay f32, whatever type the weights have (encoders).  Before any
 * matrix is bound. */
void model_floats_only(struct model *m);

/* Whether there is a matrix of this (GGUF) name, as one tensor or as several. */
bool model_has_matrix(const struct model *m, const char *name);
/* Rows of a matrix that is one tensor of two axes, at most `most`; 0: it is none. */
int64_t model_matrix_rows(const struct model *m, const char *name, int64_t most);

/* Binds tensor `name` as a stack of n_stack matrices W[out][in]; the model owns *out.  A missing
 * tensor or another shape is an error that names both.  Codes of a checkpoint with their scales
 * (stored.c has the names) become a code of the device that holds the same values; where there is
 * none, F32. */
MUST_CHECK ingle_status model_matrix(struct model *m, const char *name, int64_t out_rows,
                                     int64_t in, int64_t n_stack,
                                     const struct device_matrix **out, struct err *err);
/* The (GGUF) name of the tensor of a bound matrix, of a stack of tensors that of the first; NULL:
 * it is none of m's. */
const char *model_matrix_name(const struct model *m, const struct device_matrix *w);
/* Binds the n weights of a norm (F32, F16 or BF16 in the file).  Loaded at once.  All of them 0:
 * INGLE_FORMAT. */
MUST_CHECK ingle_status model_vector(struct model *m, const char *name, int64_t n,
                                     const struct device_vector **out, struct err *err);
/* The same, to host memory f32 [n]. */
MUST_CHECK ingle_status model_floats(struct model *m, const char *name, int64_t n, float *out,
                                     struct err *err);

/* The same for a matrix, f32 [rows][width]. */
MUST_CHECK ingle_status model_floats_2d(struct model *m, const char *name, int64_t width,
                                        int64_t rows, float *out, struct err *err);
/* And for n matrices, f32 [n][rows][width]. */
MUST_CHECK ingle_status model_floats_3d(struct model *m, const char *name, int64_t width,
                                        int64_t rows, int64_t n, float *out, struct err *err);
/* Integers (I32 or I64 in the file) within min and max, int32 [rows][width]. */
MUST_CHECK ingle_status model_ints(struct model *m, const char *name, int64_t width,
                                   int64_t rows, int32_t min, int32_t max, int32_t *out,
                                   struct err *err);

/* A table that stays in the file and is read by row (per-layer embeddings). */
struct model_table;
MUST_CHECK ingle_status model_table(struct model *m, const char *name, int64_t n_rows,
                                    int64_t width, const struct model_table **out,
                                    struct err *err);
/* Row i decoded into dst f32 [width]; stored: scratch of model_table_row_bytes().  Any
 * thread. */
size_t model_table_row_bytes(const struct model_table *t);
MUST_CHECK ingle_status model_table_row(const struct model_table *t, int64_t i, void *stored,
                                        float *dst, struct err *err);

/* Both are there, of one type and shape, with the same bytes, which are read (so far as they
 * agree).  Types that have companions with scales are never the same. */
MUST_CHECK ingle_status model_same(const struct model *m, const char *a, const char *b, bool *out,
                                   struct err *err);

/* Unbound tensors whose (GGUF) name begins with prefix are a part that is left out on purpose:
 * model_report_skipped() says `what` (borrowed until model_free()). */
void model_skip(struct model *m, const char *prefix, const char *what);

/* Tensors that nobody bound are named in reports: vision and audio towers as a note, others but
 * skipped parts as a warning.  One that belongs to a matrix that is bound (a bias, a scale, an
 * order of columns) is an error, and so is a scale that belongs to none. */
MUST_CHECK ingle_status model_check_unused(struct model *m, struct err *err);
/* A note for each skipped part with what of it `other`, a model of the same file, does not use,
 * either; NULL: there is none. */
MUST_CHECK ingle_status model_report_skipped(const struct model *m, const struct model *other,
                                             struct err *err);

uint64_t model_bytes(const struct model *m); /* memory of the bound weights, packed */
/* After binding, before the plan: matrices of layers outside [from, to), and without `rest` those
 * of no layer but `also` (or NULL), are not loaded and take no memory; their bytes are read for
 * model_sum() alone. */
void model_keep_layers(struct model *m, int64_t from, int64_t to, bool rest,
                       const struct device_matrix *also);

/* ---- rows for tools, without a device ---- */

/* Tensors by (GGUF) name, ascending; *bound: it was read, or belongs to something that was. */
size_t model_n_names(const struct model *m);
const char *model_name_at(const struct model *m, size_t i, const struct io_tensor **t, bool *bound);

/* A tensor, or a stack of matrices that are tensors of their own ("X.0.weight", ...), with the
 * scales that belong to its codes: rows in a type that holds their values. */
struct model_stack;
struct model_stack_info {
    uint32_t type;       /* of rows */
    uint64_t ne[3];      /* contiguous first; [2] matrices */
    const float *factor; /* [ne[2]]: what values are to be multiplied by; NULL: 1 */
    bool coded;          /* codes and scales of a checkpoint */
};
/* name: of the tensor, or "X.weight" of the stack.  The model outlives it. */
MUST_CHECK ingle_status model_stack_open(struct model_stack **out, struct model *m,
                                         const char *name, struct err *err);
void model_stack_close(struct model_stack *s);
void model_stack_info(const struct model_stack *s, struct model_stack_info *out);
/* Rows [row, row + n) of all matrices' rows after each other, of one matrix, as rows of
 * info.type. work: model_stack_work() bytes.  Any thread.  *rounded is set where a value could not
 * be held exactly. */
size_t model_stack_work(const struct model_stack *s, int64_t n);
MUST_CHECK ingle_status model_stack_rows(const struct model_stack *s, int64_t row, int64_t n,
                                         void *work, void *to, bool *rounded, struct err *err);

/* ---- experts ---- */

enum { MODEL_PARTS = 3, MODEL_EXTENT = 4096 };

/* The experts of one layer.  The matrices of an expert are together, in an *extent*: in memory, in
 * a file of packed weights, and in the place that a reader gives. */
struct model_experts {
    int64_t layer;   /* for messages */
    int64_t n;
    uint64_t bytes;  /* of an extent, a multiple of MODEL_EXTENT */
    int n_parts;
    struct device_matrix *part[MODEL_PARTS];
    uint64_t part_at[MODEL_PARTS]; /* in an extent */
    bool divided; /* in memory there are no extents: device_matrix_divide() */
    /* of who has those that are not all in memory, and moves them; NULL: all are */
    void *keeper;
    void *workers;   /* of who has some computed elsewhere; NULL: nobody */
};
/* Bound stacks that are one layer's experts (NULL: no such part), in the order in which they are
 * used.  *out is the model's; NULL where there is only one expert: it stays with the other
 * weights. */
MUST_CHECK ingle_status model_experts(struct model *m, int64_t layer,
                                      const struct device_matrix *const part[MODEL_PARTS],
                                      struct model_experts **out, struct err *err);
/* Bytes of the matrices of a layer ("blk.N.", -1: of those of none), of its experts or of all
 * others. */
uint64_t model_layer_bytes(const struct model *m, int64_t layer, bool experts);
/* The next layer after this one (-1: the first one) that has matrices; -1: there is none. */
int64_t model_layer_after(const struct model *m, int64_t layer);
/* Before they are loaded: where they are to be, vectors with what is not experts; but: except this
 * one, or NULL. */
void model_place(struct model *m, int64_t layer, bool experts, const struct device_matrix *but,
                 enum device_side side);
/* Bytes of those that are on the card. */
uint64_t model_card_bytes(const struct model *m);
size_t model_n_experts(const struct model *m); /* layers that have them */
struct model_experts *model_experts_at(const struct model *m, size_t i);
uint64_t model_expert_bytes(const struct model *m); /* of all extents */

/* Experts that model_load_with() left out.  In a file of packed weights: INGLE_OK. */
struct model_extents {
    int fd;             /* the model's, for reading at places; direct I/O may be set on it */
    const char *path;   /* of the file, for messages */
    uint64_t at;        /* of expert 0 of layer i; the others follow */
    const uint64_t *sum; /* [n]: XXH3-64 of each */
};
/* INGLE_NOTFOUND: they are in the model's own file, to be read by model_expert_read(). */
MUST_CHECK ingle_status model_extents(const struct model *m, size_t i, struct model_extents *out,
                                      struct err *err);
/* An extent has a wrong checksum: the file stays while it is in use, and the next start does not
 * use it. */
void model_extents_spoil(const struct model *m);
/* Expert `index` of layer i of model_experts_at() as an extent.  work: model_expert_work() bytes.
 * Any thread.  INGLE_IO: it cannot be read, or the model's file has changed since the weights were
 * loaded. */
size_t model_expert_work(const struct model *m);
MUST_CHECK ingle_status model_expert_read(const struct model *m, size_t i, int64_t index, void *to,
                                          void *work, struct err *err);

struct model_load_options {
    /* files of packed weights, mapped instead of reading and packing; NULL: none */
    const char *pack_dir;
    bool pack_write;       /* one that is missing is written */
    /* what all files there may take; 0: what leaves a tenth of the disk free */
    uint64_t pack_bytes;
    uint64_t identity;     /* of the model, part of a file's key */
    bool lock;             /* keep the weights in memory; what forbids it is reported */
    bool no_experts;       /* experts are not loaded: they stay in a file */
    /* with it: nothing else is loaded, either.  Weights that are no experts must not be used */
    bool only_experts;
};

struct model_loaded {
    bool mapped, locked;
    bool wrote;           /* a file of packed weights */
    /* of the matrices, in one piece; without experts that stay in a file, and what a card has */
    uint64_t image_bytes;
    uint64_t huge_bytes;  /* of it on huge pages; of a map, what was read so far */
    double local_share;   /* of it on the nodes whose threads read it; below 0: not known */
    double seconds;
};

/* o: NULL for neither files nor locks. */
MUST_CHECK ingle_status model_load_with(struct model *m, const struct model_load_options *o,
                                        struct err *err);
MUST_CHECK ingle_status model_load(struct model *m, struct err *err);
/* Whether model_load_with() would map a file of packed weights now. */
bool model_maps(const struct model *m, const struct model_load_options *o);
void model_loaded(const struct model *m, struct model_loaded *out);

struct model_pack_entry {
    const char *name;  /* of the file */
    const char *model; /* path of the model, cut; "" if damaged */
    uint64_t bytes;
    int64_t age_s;     /* since its last use */
    bool in_use;       /* by a process, now */
    bool foreign;      /* of another version of ingle, or another user's */
    bool temporary;    /* being written (in_use), or what a killed process left */
    const char *damage; /* or NULL */
};
typedef void model_pack_fn(void *arg, const struct model_pack_entry *e);
/* What is in a directory of packed weights; verify: all bytes are read and compared. */
MUST_CHECK ingle_status model_pack_list(const char *dir, bool verify, model_pack_fn *fn, void *arg,
                                        struct err *err);
/* Deletes all of it but what is being written.  A file in use vanishes when its user ends. */
MUST_CHECK ingle_status model_pack_clear(const char *dir, int64_t *n_files, uint64_t *n_bytes,
                                         struct err *err);

/* Hash of tensor names, types and shapes: which files of packed weights can be this model's, with
 * the stamps of its files. */
uint64_t model_identity(const struct model *m);
/* Hash of all bytes of the bound weights (of tables: samples, with size and time of their file):
 * who this model is, wherever its files are.  Known after model_load_with(); before that a file of
 * packed weights has it, or all is read. */
MUST_CHECK ingle_status model_sum(struct model *m, const struct model_load_options *o,
                                  uint64_t *out, struct err *err);
/* After model_load_with(): that hash if it is of all bytes and of nothing else, so that copies of
 * a file have the same; 0: it is not known without reading everything. */
uint64_t model_exact_sum(const struct model *m);
/* Hash of the experts as the model's file has them, the same for all copies of it: of all bytes, or
 * of samples where they are many. */
bool model_experts_mark_is_whole(const struct model *m);
MUST_CHECK ingle_status model_experts_mark(const struct model *m, uint64_t *out, struct err *err);

#endif
