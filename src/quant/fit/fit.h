/*
 * fit - what the parts of the search for scales share (quant_fit()).
 *
 * The parts are written once, in files .inc, and compiled for several instruction sets.  A vector
 * has a block or a group of a super-block in each lane, and lanes never meet: every set gives the
 * same bytes.
 */
#ifndef INGLE_QUANT_FIT_H
#define INGLE_QUANT_FIT_H

#include "quant/codec.h"

/* n_blocks blocks of a row's type, from block `first` of the row on.  weight: f32 of the same
 * elements or NULL; mean: mean square of the row. */
struct quant_fit_job {
    uint32_t type;
    const float *x, *weight;
    unsigned char *dst;
    size_t n_blocks;
    float mean;
};
typedef void quant_fit_fn(const struct quant_fit_job *j);

/* One function for a machine. */
quant_fit_fn quant_fit_plain, quant_fit_avx2, quant_fit_avx512;

#endif
