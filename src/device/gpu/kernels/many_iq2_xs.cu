/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ2_XS
#define PRODUCT iq2_xs
#define POINTS_WANTS_iq2_xs
#include "device/gpu/kernels/many_points.inc"
