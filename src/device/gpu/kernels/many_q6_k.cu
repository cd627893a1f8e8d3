/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q6_K
#define PRODUCT q6_k
#include "device/gpu/kernels/many_code.inc"
