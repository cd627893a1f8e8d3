/*
 * kernels - declares the functions that the lists name; for this room and its tests.
 */
#ifndef INGLE_KERN_KERNELS_H
#define INGLE_KERN_KERNELS_H

#include "kern/code.h"

#define KERN_MATMUL(needs, code, fn) kern_matmul_fn fn;
#include "kern/matmul.inc"
#undef KERN_MATMUL
#define KERN_ACT(needs, kind, fn) kern_act_fn fn;
#include "kern/act.inc"
#undef KERN_ACT

#endif
