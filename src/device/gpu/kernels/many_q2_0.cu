/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q2_0
#define PRODUCT q2_0
#include "device/gpu/kernels/many_code.inc"
