/* SPDX-License-Identifier: Apache-2.0 */
/* latent_avx512 - scores and pooling on 512-bit registers. */
#include "kern/x86/latent_body.h"
