/*
 * io - containers: bytes on disk to named tensor views.
 *
 * A GGUF file (single, split, or bytes in memory) and a safetensors checkpoint (a file, or
 * a directory with an index and config.json) look the same to the reader: a list of named
 * tensors and a list of typed metadata.  Nothing is trusted: every size, count and offset
 * is checked before memory is touched, and errors name file, field, value and limit.
 */
#ifndef INGLE_IO_IO_H
#define INGLE_IO_IO_H

#include "base/err.h"
#include "base/output.h"
#include "base/report.h"
#include "quant/quant.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IO_MAX_DIMS = 8 };

struct io_tensor {
    const char *name;
    uint32_t type;             /* enum quant_type */
    uint32_t n_dims;
    uint64_t ne[IO_MAX_DIMS];  /* ne[0] is the contiguous one (GGUF order); unused ones are 1 */
    uint32_t file;             /* which file of the container */
    uint64_t offset;           /* absolute, in that file */
    uint64_t n_bytes;
};

enum io_value_kind { IO_U64, IO_I64, IO_F64, IO_BOOL, IO_STR, IO_ARRAY };

/* One metadata value.  Arrays are homogeneous; strings may contain NUL. */
struct io_value {
    const char *key;
    enum io_value_kind kind;
    enum io_value_kind elem;   /* of an array; never IO_ARRAY */
    uint32_t gguf_type;        /* the type in the file (element type for arrays), for display */
    size_t n;                  /* elements of an array, else 1; bytes of a string */
    union {
        uint64_t u;
        int64_t i;
        double f;
        bool b;
        const char *s;
        const void *array;     /* io_array_* read it */
    } v;
};

struct io_meta;  /* a list of values, sorted by key; also built by hand for config.json */

struct io_meta *io_meta_create(void);
void io_meta_free(struct io_meta *m);
/* The file that messages of the getters name; copied. */
MUST_CHECK ingle_status io_meta_set_name(struct io_meta *m, const char *name);
size_t io_meta_count(const struct io_meta *m);
const struct io_value *io_meta_at(const struct io_meta *m, size_t i); /* in file order */
const struct io_value *io_meta_find(const struct io_meta *m, const char *key); /* NULL: absent */
/* Copies of the arguments are stored; a key that exists is replaced. */
MUST_CHECK ingle_status io_meta_set_u64(struct io_meta *m, const char *key, uint64_t v);
MUST_CHECK ingle_status io_meta_set_f64(struct io_meta *m, const char *key, double v);
MUST_CHECK ingle_status io_meta_set_bool(struct io_meta *m, const char *key, bool v);
MUST_CHECK ingle_status io_meta_set_str(struct io_meta *m, const char *key, const char *s,
                                        size_t n);
MUST_CHECK ingle_status io_meta_set_u64s(struct io_meta *m, const char *key, const uint64_t *v,
                                         size_t n);
MUST_CHECK ingle_status io_meta_set_f64s(struct io_meta *m, const char *key, const double *v,
                                         size_t n);
MUST_CHECK ingle_status io_meta_set_bools(struct io_meta *m, const char *key, const bool *v,
                                          size_t n);

/* Typed getters.  Any integer width or sign is accepted if the value fits the range; a
 * wrong type or range is an error that names file, key, value and limits.  When the key is
 * absent: INGLE_NOTFOUND, *out untouched (an error text is set, too). */
MUST_CHECK ingle_status io_get_u64(const struct io_meta *m, const char *key, uint64_t min,
                                   uint64_t max, uint64_t *out, struct err *err);
MUST_CHECK ingle_status io_get_f64(const struct io_meta *m, const char *key, double min, double max,
                                   double *out, struct err *err);
MUST_CHECK ingle_status io_get_bool(const struct io_meta *m, const char *key, bool *out,
                                    struct err *err);
MUST_CHECK ingle_status io_get_str(const struct io_meta *m, const char *key, const char **s,
                                   size_t *n, struct err *err);
/* A scalar is spread over all n_expected elements; an array must have at least n_expected. */
MUST_CHECK ingle_status io_get_u64s(const struct io_meta *m, const char *key, size_t n_expected,
                                    uint64_t min, uint64_t max, uint64_t *out, struct err *err);
MUST_CHECK ingle_status io_get_f64s(const struct io_meta *m, const char *key, size_t n_expected,
                                    double min, double max, double *out, struct err *err);
MUST_CHECK ingle_status io_get_bools(const struct io_meta *m, const char *key, size_t n_expected,
                                     bool *out, struct err *err);

/* Elements of an array value; i < n, and elem is of the asked kind (else 0 / NULL). */
uint64_t io_array_u64(const struct io_value *a, size_t i);
int64_t io_array_i64(const struct io_value *a, size_t i);
double io_array_f64(const struct io_value *a, size_t i);
bool io_array_bool(const struct io_value *a, size_t i);
const char *io_array_str(const struct io_value *a, size_t i, size_t *n);

enum io_kind { IO_GGUF, IO_SAFETENSORS };

struct io_file;

/* path: a GGUF file (the first shard of a split one), a .safetensors file, or a directory with
 * model.safetensors, model.safetensors.index.json, or all shards of one set without an index. */
MUST_CHECK ingle_status io_open(struct io_file **out, const char *path,
                                const struct report_sink *sink, struct err *err);
/* By its name: a download that is not finished (".part", ".incomplete", ...). */
bool io_is_unfinished_name(const char *path);
/* A GGUF that is in memory (borrowed until io_close); name is for messages. */
MUST_CHECK ingle_status io_open_memory(struct io_file **out, const char *name, const void *at,
                                       size_t n, const struct report_sink *sink, struct err *err);
void io_close(struct io_file *f);

enum io_kind io_kind(const struct io_file *f);
const char *io_path(const struct io_file *f);
uint64_t io_size(const struct io_file *f);          /* bytes of all files together */
/* GGUF keys; safetensors: __metadata__ */
const struct io_meta *io_metadata(const struct io_file *f);
size_t io_n_tensors(const struct io_file *f);
const struct io_tensor *io_tensor_at(const struct io_file *f, size_t i);
const struct io_tensor *io_tensor_find(const struct io_file *f, const char *name);

/* The files that it consists of (none: it is in memory), and what distinguishes one version
 * of a file from another, as it is now; false: that is not known. */
size_t io_n_files(const struct io_file *f);
struct io_stamp {
    uint64_t n_bytes, inode;
    int64_t mtime_s, mtime_ns; /* which programs set as they like */
    int64_t ctime_s, ctime_ns; /* which nobody can set */
};
bool io_stamp(const struct io_file *f, size_t i, struct io_stamp *out);
/* Whether its bytes are those of `was`, for all that the system says: a time of change that another
 * name, owner or mode explains does not count. */
bool io_is_as(const struct io_file *f, size_t i, const struct io_stamp *was);

/* Bytes [offset, offset + n) of a tensor into dst.  Any thread. */
MUST_CHECK ingle_status io_read(const struct io_file *f, const struct io_tensor *t, uint64_t offset,
                                void *dst, size_t n, struct err *err);
/* The same bytes are read soon: a hint, by which the disk works while others are packed.  Bytes
 * beyond the tensor are left out. */
void io_will_read(const struct io_file *f, const struct io_tensor *t, uint64_t offset, uint64_t n);
/* The tensor's bytes in a read-only map (any alignment), or NULL if the file is not mapped.
 * A file that somebody cuts short while it is mapped ends the process; io_read() returns an
 * error then. */
const void *io_mapped(const struct io_file *f, const struct io_tensor *t);

/* Side files of a checkpoint directory ("config.json", "tokenizer.json",
 * "generation_config.json"): the text, or INGLE_NOTFOUND.  The caller frees it. */
MUST_CHECK ingle_status io_side_file(const struct io_file *f, const char *name, size_t limit,
                                     char **out, size_t *n, struct err *err);

/* A writer for safetensors: names, types and shapes first (slowest axis first), then the
 * data in the same order.  Used by the parity kit. */
struct io_writer;
MUST_CHECK ingle_status io_writer_create(struct io_writer **out, const char *path,
                                         enum output_kind kind, struct err *err);
/* data is copied */
MUST_CHECK ingle_status io_writer_add(struct io_writer *w, const char *name, uint32_t type,
                                      uint32_t n_dims, const uint64_t *shape, const void *data,
                                      uint64_t n_bytes, struct err *err);
/* writes atomically; frees w on every path */
MUST_CHECK ingle_status io_writer_close(struct io_writer *w, struct err *err);

/* A writer for GGUF: metadata and tensors first, in the order of the file, then io_gguf_begin(),
 * then the bytes of tensors in any order and from any thread.  The file appears under its name at
 * io_gguf_finish(). */
struct io_gguf;
MUST_CHECK ingle_status io_gguf_create(struct io_gguf **out, const char *path, struct err *err);
/* Before io_gguf_begin(): what it is (else a model), what the call reads (borrowed until the end),
 * whether a file of another kind is replaced; base/output.h. */
void io_gguf_output(struct io_gguf *w, enum output_kind kind, const struct output_guard *guard,
                    bool force);
/* A value of a GGUF file, as it was read; the key was not written yet. */
MUST_CHECK ingle_status io_gguf_value(struct io_gguf *w, const struct io_value *v, struct err *err);
/* A value that was set by io_meta_set_*(), in the types that files usually have: U32, F32, arrays
 * of I32, F32 and BOOL. */
MUST_CHECK ingle_status io_gguf_narrow(struct io_gguf *w, const struct io_value *v,
                                       struct err *err);
MUST_CHECK ingle_status io_gguf_u32(struct io_gguf *w, const char *key, uint32_t v,
                                    struct err *err);
MUST_CHECK ingle_status io_gguf_f32(struct io_gguf *w, const char *key, float v, struct err *err);
MUST_CHECK ingle_status io_gguf_bool(struct io_gguf *w, const char *key, bool v, struct err *err);
MUST_CHECK ingle_status io_gguf_str(struct io_gguf *w, const char *key, const char *s, size_t n,
                                    struct err *err);
MUST_CHECK ingle_status io_gguf_i32s(struct io_gguf *w, const char *key, const int32_t *v, size_t n,
                                     struct err *err);
MUST_CHECK ingle_status io_gguf_f32s(struct io_gguf *w, const char *key, const float *v, size_t n,
                                     struct err *err);
/* s[i] has n_bytes[i] bytes. */
MUST_CHECK ingle_status io_gguf_strs(struct io_gguf *w, const char *key, const char *const *s,
                                     const size_t *n_bytes, size_t n, struct err *err);
/* Before io_gguf_begin(): parts "PREFIX-00001-of-00003.gguf" of at most so many bytes of tensors (a
 * larger tensor has a part of its own) and so many tensors; 0: any.  What fits into one part is one
 * file under its own name. */
void io_gguf_split(struct io_gguf *w, uint64_t most_bytes, uint64_t most_tensors);
/* The tensors that follow stand in the next part, whatever io_gguf_split() says; a part may be
 * without tensors. */
void io_gguf_next_part(struct io_gguf *w);
/* Before the first tensor: the file becomes safetensors, without the metadata; types are those that
 * safetensors has, and parts get an index. */
void io_gguf_safetensors(struct io_gguf *w);
/* Before io_gguf_begin(): parts are called "PART.part" until they are whole, and what an earlier
 * call has written of the same file (metadata, tensors, types) from the same source (a hash) is
 * kept. */
void io_gguf_keep(struct io_gguf *w, uint64_t source);
/* Whether an earlier call has noted the tensor as written, with this sum: of the caller's choice,
 * who reads and compares. */
bool io_gguf_known(const struct io_gguf *w, size_t tensor, uint64_t *sum);
MUST_CHECK ingle_status io_gguf_note(struct io_gguf *w, size_t tensor, uint64_t sum,
                                     struct err *err);
/* What was written; any thread. */
MUST_CHECK ingle_status io_gguf_read(const struct io_gguf *w, size_t tensor, uint64_t offset,
                                     void *bytes, size_t n, struct err *err);
/* ne[0] is the contiguous one, as in struct io_tensor; tensors are numbered from 0. */
MUST_CHECK ingle_status io_gguf_tensor(struct io_gguf *w, const char *name, uint32_t type,
                                       uint32_t n_dims, const uint64_t *ne, struct err *err);
/* Before io_gguf_begin(): the file as a reader would see it, with the bytes that read() gives.  w
 * stays as it is. */
struct io_planned {
    ingle_status (*read)(void *arg, const struct io_tensor *t, uint64_t offset, void *dst, size_t n,
                         struct err *err);
    void *arg;
};
MUST_CHECK ingle_status io_gguf_plan(struct io_gguf *w, const struct io_planned *planned,
                                     struct io_file **out, struct err *err);
MUST_CHECK ingle_status io_gguf_begin(struct io_gguf *w, struct err *err);
MUST_CHECK ingle_status io_gguf_write(struct io_gguf *w, size_t tensor, uint64_t offset,
                                      const void *bytes, size_t n, struct err *err);
/* frees w on every path */
MUST_CHECK ingle_status io_gguf_finish(struct io_gguf *w, struct err *err);
void io_gguf_drop(struct io_gguf *w); /* leaves nothing; NULL is fine */
/* after io_gguf_keep(): what was written stays for a later call */
void io_gguf_leave(struct io_gguf *w);

#endif
