/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q5_K
#define PRODUCT q5_k
#include "device/gpu/kernels/many_code.inc"
