/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ2_S
#define PRODUCT iq2_s
#define POINTS_WANTS_iq2_s
#include "device/gpu/kernels/many_points.inc"
