/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID Q1_0
#define PRODUCT q1_0
#include "device/gpu/kernels/many_code.inc"
