/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q4_0
#define PRODUCT q4_0
#include "device/gpu/kernels/many_code.inc"
