/* SPDX-License-Identifier: Apache-2.0 */
#include "kerncheck/checks.h"
void bench_few(uint32_t cpu)
{
    (void)cpu;
}
