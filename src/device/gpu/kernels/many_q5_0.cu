/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q5_0
#define PRODUCT q5_0
#include "device/gpu/kernels/many_code.inc"
