/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID W8
#define PRODUCT w8
#include "device/gpu/kernels/product_float.inc"
