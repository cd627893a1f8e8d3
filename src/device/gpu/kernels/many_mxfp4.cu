/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID MXFP4
#define PRODUCT mxfp4
#include "device/gpu/kernels/many_code.inc"
