/* SPDX-License-Identifier: Apache-2.0 */
/* latent_avx512 - scores and pooling on 512-bit registers. */
#define LATENT_TABLE kern_latent_avx512
#include "kern/x86/latent/latent_body.h"
