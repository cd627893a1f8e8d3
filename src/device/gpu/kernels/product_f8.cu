/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID F8
#define PRODUCT f8
#include "device/gpu/kernels/product_float.inc"
