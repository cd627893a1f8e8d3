/* SPDX-License-Identifier: Apache-2.0 */
#define FIT_NAME quant_fit_avx512
#include "quant/fit/fit_all.inc"
