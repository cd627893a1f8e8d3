/*
 * kernels - the functions that the lists name; for this room and its tests.
 */
#ifndef INGLE_KERN_KERNELS_H
#define INGLE_KERN_KERNELS_H

#include "kern/code.h"

kern_matmul_fn kern_matmul_float_ref, kern_matmul_quantised_ref;
kern_act_fn kern_act_q32_ref, kern_act_q256_ref;

#if defined(__x86_64__)
#endif

#endif
