/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q5_1
#define PRODUCT q5_1
#include "device/gpu/kernels/many_code.inc"
