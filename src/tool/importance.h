/*
 * importance - sums of squares of columns by tensor and matrix: files of llama.cpp's llama-imatrix
 * (GGUF, and the older .dat) in memory.
 */
#ifndef INGLE_TOOL_IMPORTANCE_H
#define INGLE_TOOL_IMPORTANCE_H

#include "base/report.h"
#include "io/io.h"

enum { TOOL_IMPORTANCE_NAME = 128 };

struct tool_importance_entry {
    char name[TOOL_IMPORTANCE_NAME]; /* of the tensor */
    uint64_t width, n_matrices;
    float *sum2;  /* [n_matrices][width] */
    float *count; /* [n_matrices]: rows */
};

struct tool_importance;
MUST_CHECK ingle_status tool_importance_create(struct tool_importance **out, struct err *err);
void tool_importance_free(struct tool_importance *t);
size_t tool_importance_n(const struct tool_importance *t);
const struct tool_importance_entry *tool_importance_at(const struct tool_importance *t, size_t i);
/* NULL: none */
const struct tool_importance_entry *tool_importance_find(const struct tool_importance *t,
                                                         const char *name);
/* Adds squares f64 [width] of n rows to a matrix.  A tensor of another shape than before is an
 * error. */
MUST_CHECK ingle_status tool_importance_add(struct tool_importance *t, const char *name,
                                            uint64_t width, uint64_t n_matrices, uint64_t index,
                                            const double *square, uint64_t n);
/* Adds all of a file, GGUF or .dat. */
MUST_CHECK ingle_status tool_importance_read(struct tool_importance *t, const char *path,
                                             const struct report_sink *sink, struct err *err);
/* What the file says: the text's name, chunks so far and their size, and what they are of.  model:
 * its identity; state: of model, text and size of chunks. */
void tool_importance_set(struct tool_importance *t, const char *dataset, uint64_t n_chunks,
                         uint64_t chunk, uint64_t model, uint64_t state);
/* Takes the file of the same state, if it is there: how many chunks it has, else 0. */
uint64_t tool_importance_resume(struct tool_importance *t, const char *path, uint64_t state,
                                const struct report_sink *sink);
void tool_importance_set_merged(struct tool_importance *t); /* it is of several files */
/* The model that the files name; 0: none does. */
uint64_t tool_importance_model(const struct tool_importance *t);
/* Whether sums that were read from path are of this model.  model: what tool_importance_set() was
 * named, 0: not known; width_of: the columns of the model's matrix of this name, 0: it has none,
 * which files without that number are compared with. */
typedef uint64_t tool_importance_width_fn(void *arg, const char *name);
MUST_CHECK ingle_status tool_importance_check_in(const struct tool_importance *t, const char *path,
                                                 uint64_t model, tool_importance_width_fn *width_of,
                                                 void *arg, struct err *err);
/* What a file at `path` may be, so that another takes its place: nothing, or importance of this
 * model in this state. */
MUST_CHECK ingle_status tool_importance_check_out(const char *path, uint64_t model, uint64_t state,
                                                  tool_importance_width_fn *width_of, void *arg,
                                                  struct err *err);
/* A GGUF file, which appears whole; guard, force: base/output.h. */
MUST_CHECK ingle_status tool_importance_write(const struct tool_importance *t, const char *path,
                                              const struct output_guard *guard, bool force,
                                              struct err *err);

#endif
