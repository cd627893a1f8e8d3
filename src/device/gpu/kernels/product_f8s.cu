/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID F8S
#define PRODUCT f8s
#include "device/gpu/kernels/product_float.inc"
