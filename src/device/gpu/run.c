/* SPDX-License-Identifier: Apache-2.0 */
/* run - the operations that the card has. */
#include "device/gpu/run.h"

gpu_run_fn *const device_gpu_run[DEVICE_OPS] = {
    [DEVICE_OP_embed] = device_gpu_run_embed,
    [DEVICE_OP_matmul] = device_gpu_run_matmul,
    [DEVICE_OP_mlp] = device_gpu_run_mlp,
    [DEVICE_OP_copy] = device_gpu_run_copy,
    [DEVICE_OP_norm] = device_gpu_run_norm,
    [DEVICE_OP_add_norm] = device_gpu_run_add_norm,
    [DEVICE_OP_add] = device_gpu_run_add,
    [DEVICE_OP_scale] = device_gpu_run_scale,
    [DEVICE_OP_mul] = device_gpu_run_mul,
    [DEVICE_OP_mul_vector] = device_gpu_run_mul_vector,
    [DEVICE_OP_glu] = device_gpu_run_glu,
    [DEVICE_OP_softcap] = device_gpu_run_softcap,
    [DEVICE_OP_softmax] = device_gpu_run_softmax,
    [DEVICE_OP_sqrt_softplus] = device_gpu_run_sqrt_softplus,
    [DEVICE_OP_rope] = device_gpu_run_rope,
    [DEVICE_OP_rope_pairs] = device_gpu_run_rope_pairs,
    [DEVICE_OP_hadamard] = device_gpu_run_hadamard,
    [DEVICE_OP_gather] = device_gpu_run_gather,
    [DEVICE_OP_weighted_sum] = device_gpu_run_weighted_sum,
    [DEVICE_OP_kv_append] = device_gpu_run_kv_append,
    [DEVICE_OP_attend] = device_gpu_run_attend,
    [DEVICE_OP_rows_append] = device_gpu_run_rows_append,
    [DEVICE_OP_rows_read] = device_gpu_run_rows_read,
    [DEVICE_OP_route] = device_gpu_run_route,
    [DEVICE_OP_hc_pre] = device_gpu_run_hc_pre,
    [DEVICE_OP_hc_post] = device_gpu_run_hc_post,
    [DEVICE_OP_compress] = device_gpu_run_compress,
    [DEVICE_OP_select] = device_gpu_run_select,
    [DEVICE_OP_attend_latent] = device_gpu_run_attend_latent,
};

size_t device_gpu_scratch(const struct device *d, enum device_op op, const void *args)
{
    switch (op) {
    case DEVICE_OP_matmul:
        return device_gpu_matmul_scratch(d, args);
    case DEVICE_OP_mlp:
        return device_gpu_mlp_scratch(d, args);
    case DEVICE_OP_attend:
        return device_gpu_attend_scratch(args);
    case DEVICE_OP_attend_latent:
        return device_gpu_latent_scratch(args);
    case DEVICE_OP_select:
        return device_gpu_select_scratch(args);
    default:
        return 0;
    }
}
