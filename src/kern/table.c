/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels and its self-test. */
#include "kern/kern.h"
#include "kern/attend_coded.h"

void kern_table_init(struct kern_table *t, uint32_t cpu)
{
    t->cpu = cpu;
    kern_matmul_table_init(&t->matmul, cpu);
    kern_math_table_init(&t->math, cpu);
    kern_attend_table_init(&t->attend, cpu);
    kern_sparse_table_init(&t->sparse, cpu);
    kern_select_table_init(&t->select, cpu);
    kern_latent_table_init(&t->latent, cpu);
}

int kern_self_test(struct kern_table *t, const struct report_sink *sink)
{
    return kern_matmul_self_test(&t->matmul, t->cpu, sink) +
           kern_math_self_test(&t->math, t->cpu, sink) +
           kern_attend_self_test(&t->attend, t->cpu, sink) +
           kern_attend_coded_self_test(&t->attend, t->cpu, sink) +
           kern_sparse_self_test(&t->sparse, t->cpu, sink) +
           kern_select_self_test(&t->select, t->cpu, sink) +
           kern_latent_self_test(&t->latent, t->cpu, sink);
}
