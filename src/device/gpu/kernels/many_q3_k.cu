/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q3_K
#define PRODUCT q3_k
#include "device/gpu/kernels/many_code.inc"
