/*
 * cpu - inside the room: the operations on the processor, beside their table.
 */
#ifndef INGLE_DEVICE_CPU_H
#define INGLE_DEVICE_CPU_H

#include "device/ops.h"

void device_cpu_matmul(struct device *d, const void *args, void *scratch);
struct device_cost device_cpu_matmul_cost(const struct device_matmul_args *a);
size_t device_cpu_matmul_scratch(const struct device *d, const struct device_matmul_args *a);
size_t device_cpu_matmul_codes(const struct device *d, const struct device_matmul_args *a);
/* y = act(gate) * up of n floats, as device_glu() has it; y may be gate. */
void device_cpu_gate(const struct kern_math_table *k, enum device_glu act, float limit, float *y,
                     float *gate, float *up, int64_t n);
void device_cpu_mlp(struct device *d, const void *args, void *scratch);
struct device_cost device_cpu_mlp_cost(const struct device_mlp_args *a);
size_t device_cpu_mlp_scratch(const struct device *d, const struct device_mlp_args *a);
size_t device_cpu_mlp_codes(const struct device *d, const struct device_mlp_args *a);
/* The kernels of attention for rows that are a prompt's, or for others. */
const struct kern_attend_table *device_cpu_attend_kernels(const struct device *d, bool prompt);
void device_cpu_kv_append(struct device *d, const void *args, void *scratch);
void device_cpu_attend(struct device *d, const void *args, void *scratch);
/* Rows [row, row + n) of a span. */
static inline struct device_span device_span_part(const struct device_span *s, int64_t row,
                                                  int64_t n)
{
    struct device_span part = *s;
    part.row0 += row;
    part.pos0 += row;
    part.first = s->first ? s->first + row : NULL;
    part.n = n;
    return part;
}
/* The last rows of a span that attend to few positions, and what they need and do. */
int64_t device_cpu_few_rows(const struct device *d, const struct device_attend_args *a,
                            const struct device_span *s);
size_t device_cpu_sparse_scratch(const struct device *d, const struct device_attend_args *a,
                              const struct device_span *s);
void device_cpu_sparse(struct device *d, const struct device_attend_args *a,
                    const struct device_span *s, void *scratch);
/* The kernels of attention for keys and values of that kind. */
const struct kern_attend_table *device_cpu_kernels_of(const struct device *d,
                                                      const struct device_kv *kv, bool prompt);
void device_cpu_probe(struct device *d, const void *args, void *scratch);
void device_cpu_shadow_append(struct device *d, const void *args, void *scratch);
void device_cpu_select_pages(struct device *d, const void *args, void *scratch);
size_t device_cpu_select_pages_scratch(const struct device *d,
                                       const struct device_select_pages_args *a);
struct device_cost device_cpu_select_pages_cost(const struct device_select_pages_args *a);
void device_cpu_attend_selected(struct device *d, const void *args, void *scratch);
size_t device_cpu_attend_selected_scratch(const struct device *d,
                                        const struct device_attend_selected_args *a);
struct device_cost device_cpu_attend_selected_cost(const struct device_attend_selected_args *a);
struct device_cost device_cpu_attend_cost(const struct device *d,
                                          const struct device_attend_args *a);
size_t device_cpu_attend_scratch(const struct device *d, const struct device_attend_args *a);
void device_cpu_clamp(struct device *d, const void *args, void *scratch);
void device_cpu_layer_norm(struct device *d, const void *args, void *scratch);
void device_cpu_each(struct device *d, const void *args, void *scratch);
void device_cpu_dense_put(struct device *d, const void *args, void *scratch);
size_t device_cpu_dense_put_scratch(const struct device *d, const struct device_dense_put_args *a);
void device_cpu_dense_attend(struct device *d, const void *args, void *scratch);
size_t device_cpu_dense_attend_scratch(const struct device *d,
                                       const struct device_dense_attend_args *a);
struct device_cost device_cpu_dense_attend_cost(const struct device_dense_attend_args *a);
/* Bytes of a tile of n rows of a head's keys, and of its values. */
void device_cpu_dense_bytes(int64_t width, size_t *k, size_t *v);
void device_cpu_route(struct device *d, const void *args, void *scratch);
void device_cpu_hc_pre(struct device *d, const void *args, void *scratch);
void device_cpu_hc_post(struct device *d, const void *args, void *scratch);
void device_cpu_rows_append(struct device *d, const void *args, void *scratch);
void device_cpu_rows_read(struct device *d, const void *args, void *scratch);
void device_cpu_compress(struct device *d, const void *args, void *scratch);
size_t device_cpu_compress_scratch(const struct device *d, const struct device_compress_args *a);
void device_cpu_select(struct device *d, const void *args, void *scratch);
size_t device_cpu_select_scratch(const struct device *d, const struct device_select_args *a);
void device_cpu_attend_latent(struct device *d, const void *args, void *scratch);
size_t device_cpu_attend_latent_scratch(const struct device *d,
                                        const struct device_attend_latent_args *a);
size_t device_cpu_attend_latent_near(const struct device *d,
                                     const struct device_attend_latent_args *a);

#endif
