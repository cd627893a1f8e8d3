/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID BF16
#define PRODUCT bf16
#include "device/gpu/kernels/product_float.inc"
