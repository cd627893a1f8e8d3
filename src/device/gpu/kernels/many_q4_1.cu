/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q4_1
#define PRODUCT q4_1
#include "device/gpu/kernels/many_code.inc"
