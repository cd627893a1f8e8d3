/* SPDX-License-Identifier: Apache-2.0 */
#define PRODUCT_ID IQ3_XXS
#define PRODUCT iq3_xxs
#define POINTS_WANTS_iq3_xxs
#include "device/gpu/kernels/many_points.inc"
