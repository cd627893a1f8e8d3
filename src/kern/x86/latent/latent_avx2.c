/* SPDX-License-Identifier: Apache-2.0 */
/* latent_avx2 - scores and pooling on 256-bit registers. */
#define LATENT_TABLE kern_latent_avx2
#include "kern/x86/latent/latent_body.h"
