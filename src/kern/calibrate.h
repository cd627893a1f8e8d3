/* calibrate - inside the room: what kern_matmul_calibrate_code() is made of. */
#ifndef INGLE_KERN_CALIBRATE_H
#define INGLE_KERN_CALIBRATE_H

#include "base/report.h"
#include "kern/kernels.h"

/* A matrix that kernels read as that code; false: no type of the list is. */
bool kern_matrix_of_code(struct kern_matrix *w, uint32_t code, int64_t out, int64_t in);
/* Of one code, once: t->ahead is NULL afterwards. */
void kern_matmul_calibrate_reading(struct kern_matmul_table *t, uint32_t code,
                                   const struct report_sink *sink);

#endif
