/* SPDX-License-Identifier: Apache-2.0 */
/* latent_avxvnni - the same with VPDPBUSD in its VEX form. */
#define LATENT_TABLE kern_latent_avxvnni
#include "kern/x86/latent/latent_body.h"
