/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q8_0
#define PRODUCT q8_0
#include "device/gpu/kernels/many_code.inc"
