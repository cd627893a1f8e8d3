/* SPDX-License-Identifier: Apache-2.0 */
/* latent_avx512vnni - the same with VPDPBUSD. */
#define LATENT_TABLE kern_latent_avx512vnni
#include "kern/x86/latent/latent_body.h"
