/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ3_S
#define PRODUCT iq3_s
#define POINTS_WANTS_iq3_s
#include "device/gpu/kernels/many_points.inc"
