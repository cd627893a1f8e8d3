/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID F16
#define PRODUCT f16
#include "device/gpu/kernels/product_float.inc"
