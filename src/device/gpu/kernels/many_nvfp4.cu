/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID NVFP4
#define PRODUCT nvfp4
#include "device/gpu/kernels/many_code.inc"
