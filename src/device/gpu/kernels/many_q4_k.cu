/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q4_K
#define PRODUCT q4_k
#include "device/gpu/kernels/many_code.inc"
