/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q2_K
#define PRODUCT q2_k
#include "device/gpu/kernels/many_code.inc"
