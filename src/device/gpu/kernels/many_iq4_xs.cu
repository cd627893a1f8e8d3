/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ4_XS
#define PRODUCT iq4_xs
#include "device/gpu/kernels/many_code.inc"
