/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID F32
#define PRODUCT f32
#include "device/gpu/kernels/product_float.inc"
