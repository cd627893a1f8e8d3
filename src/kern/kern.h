/*
 * kern - the CPU kernels.
 *
 * One arithmetic: every kernel of an operation gives the same bits as its plain C version in
 * ref/, for any batch, chunking and thread count.  Kernels are registered in one list per
 * operation (*.inc); the table is filled from the lists for a set of instruction bundles,
 * later lines win.  kern_self_test() compares each chosen kernel with its plain version.
 *
 * NaN results are equal to each other whatever their payload.
 */
#ifndef INGLE_KERN_KERN_H
#define INGLE_KERN_KERN_H

#include "base/cpu.h"
#include "base/report.h"
#include "kern/attend.h"
#include "kern/sparse.h"
#include "kern/kv_code.h"
#include "kern/latent.h"
#include "kern/math.h"
#include "kern/matmul.h"
#include "kern/select.h"
#include "kern/row.h"

struct kern_table {
    uint32_t cpu; /* bundles the table was made for */
    struct kern_matmul_table matmul;
    struct kern_math_table math;
    struct kern_attend_kernels attend;
    struct kern_sparse_kernels sparse;
    struct kern_select_kernels select;
    struct kern_latent_table latent;
};

/* Fills t with the fastest kernels that cpu allows; no I/O, no allocation. */
void kern_table_init(struct kern_table *t, uint32_t cpu);

/* Compares each kernel of t with its ref version on small data (a few milliseconds); one that
 * differs is replaced by the next slower one and reported.  Returns how many differed. */
int kern_self_test(struct kern_table *t, const struct report_sink *sink);

#endif
