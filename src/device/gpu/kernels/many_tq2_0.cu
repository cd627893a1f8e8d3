/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID TQ2_0
#define PRODUCT tq2_0
#include "device/gpu/kernels/many_code.inc"
