/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ4_NL
#define PRODUCT iq4_nl
#include "device/gpu/kernels/many_code.inc"
