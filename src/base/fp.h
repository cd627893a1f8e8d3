/*
 * fp - the floating-point mode of a thread that computes.
 *
 * Logits are a function of the tokens alone, so also not of the rounding mode, or of the treatment
 * of denormals, that a host has set for its own purposes.  Threads of ours begin with fp_default();
 * calls that compute on the caller's thread do so between fp_enter() and fp_leave().
 */
#ifndef INGLE_BASE_FP_H
#define INGLE_BASE_FP_H

#include <fenv.h>

/* Round to nearest, denormals as they are, no traps. */
static inline void fp_default(void) { (void)fesetenv(FE_DFL_ENV); }

static inline void fp_enter(fenv_t *before)
{
    (void)fegetenv(before);
    fp_default();
}

static inline void fp_leave(const fenv_t *before) { (void)fesetenv(before); }

#endif
