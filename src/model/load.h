/*
 * load - inside the room: how stored weights become those of a model.
 */
#ifndef INGLE_MODEL_LOAD_H
#define INGLE_MODEL_LOAD_H

#include "model/parts.h"

/* ---- stored.c ---- */

/* The tensors of matrix `name`, of shape ne = {in, out, n_stack}: one source, or one for each
 * matrix of the stack (*n_parts of them, owned by the caller).  factor f32 [n_stack] gets what
 * products are to be multiplied by. */
MUST_CHECK ingle_status model_stored(struct model *m, const char *name, const uint64_t ne[3],
                                     struct source **part, int64_t *n_parts, struct layout *l,
                                     float *factor, struct err *err);
/* "<base>.weight" without its end; false: the name has another. */
bool model_base_name(const char *name, char out[NAME_MAX_BYTES]);

/* ---- convert.c ---- */

/* Where rows of a matrix are converted: rows [row0, row0 + n) of matrix `index` of the stack. */
struct convert {
    const struct io_file *file;
    const struct source *p;
    const struct layout *l;
    int64_t out, index, row0, n; /* out: rows of one matrix */
    uint64_t row_bytes;          /* of a converted row */
    bool rounded;                /* set: a scale was too small for a half */
};
/* Bytes of work memory for rows of this layout, beside the stored and the converted ones. */
size_t model_convert_bytes(const struct source *p, const struct layout *l, int64_t n_rows);
/* codes: n stored rows; out: n converted ones. */
MUST_CHECK ingle_status model_convert(struct convert *c, const uint8_t *codes, void *work,
                                      uint8_t *out, struct err *err);
/* Scales [at, at + n) of a tensor as floats.  work: n * 4 bytes. */
MUST_CHECK ingle_status model_scales(const struct io_file *f, const struct io_tensor *t,
                                     uint64_t at, size_t n, void *work, float *out,
                                     struct err *err);
/* The exponent of a power of two as E8M0. */
bool model_exponent(float v, uint8_t *out);

/* ---- scheme.c ---- */

/* Whether the checkpoint's configuration agrees with how matrix t is stored. */
MUST_CHECK ingle_status model_scheme_check(const struct model *m, const struct source *p,
                                           const struct layout *l, struct err *err);
/* Tile of FP8 scales in rows and columns; left as they are where it says none. */
void model_scheme_tile(const struct model *m, int64_t *rows, int64_t *columns);
/* Whether it describes a quantised cache of keys and values, whose steps k_scale and v_scale
 * are. */
bool model_scheme_has_cache(const struct model *m);
void model_scheme_free(struct scheme *s);

/* ---- sum.c ---- */

/* Any thread: n rows that were read. */
void model_see(struct seen *s, const uint8_t *rows, int64_t n, uint64_t row_bytes);
/* Bytes of a small tensor. */
void model_sum_add(struct model *m, const struct io_tensor *t, const void *bytes, size_t n);
/* All matrices in the order of binding, by their chunks (of those that were not read: by samples),
 * then tables.  Chunks are freed.  INGLE_FORMAT: a part of the file is missing. */
MUST_CHECK ingle_status model_sum_all(struct model *m, struct err *err);

/* Ends what model_load() began. */
void model_unload(struct model *m);

#endif
