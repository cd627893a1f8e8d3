/* number - the formulas that a card's kernels share with the processor (base/both.h). */
#ifndef INGLE_DEVICE_GPU_KERNELS_NUMBER_H
#define INGLE_DEVICE_GPU_KERNELS_NUMBER_H

#include "device/gpu/kernels/gpu.h"

#if defined(__NVPTX__)
#define BOTH_FN GPU_DEV
#define BOTH_FMA gpu_fma
#define both_float gpu_bits
#define both_word gpu_word
#endif
#include "kern/poly_fn.h"
#include "kern/row_fn.h"
#include "quant/number.h"

#define NUMBER_INFINITY gpu_bits(0x7f800000u)
#define NUMBER_NAN gpu_bits(0x7fc00000u)

#endif
