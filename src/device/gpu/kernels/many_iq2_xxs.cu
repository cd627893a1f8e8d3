/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ2_XXS
#define PRODUCT iq2_xxs
#define POINTS_WANTS_iq2_xxs
#include "device/gpu/kernels/many_points.inc"
