/* SPDX-License-Identifier: Apache-2.0 */
/* gemma4_keys - what a file of the family may say (family/keys.h). */
#include "family/keys.h"

#define READ FAMILY_KEY_READ, 0, 0, NULL
#define FREE FAMILY_KEY_FREE, 0, 0, NULL
#define NUMBER(a, b) FAMILY_KEY_NUMBER, a, b, NULL
#define FLAG(a) FAMILY_KEY_FLAG, a, 0, NULL
#define WORD(words) FAMILY_KEY_WORD, 0, 0, words
#define SAME(other) FAMILY_KEY_SAME, 0, 0, other

const struct family_key family_gemma4_keys[] = {
    {"block_count", READ},
    {"embedding_length", READ},
    {"context_length", READ},
    {"vocab_size", READ},
    {"feed_forward_length", READ},
    {"final_logit_softcapping", READ},
    {"embedding_length_per_layer_input", READ},
    {"embedding_length_out", SAME("embedding_length")},
    {"attention.head_count", READ},
    {"attention.head_count_kv", READ},
    /* written by ingle convert: pictures see all of themselves where others of the size do not */
    {"attention.vision_unusual", READ},
    {"attention.key_length", READ},
    {"attention.key_length_swa", READ},
    {"attention.value_length", READ},
    {"attention.value_length_swa", READ},
    {"attention.layer_norm_rms_epsilon", READ},
    {"attention.scale", READ},
    {"attention.sliding_window", READ},
    {"attention.sliding_window_pattern", READ},
    {"attention.shared_kv_layers", READ},
    {"rope.freq_base", READ},
    {"rope.freq_base_swa", READ},
    {"rope.partial_rotary_factor", READ},
    {"rope.dimension_count", SAME("attention.key_length")},
    {"rope.dimension_count_swa", SAME("attention.key_length_swa")},
    {"rope.proportional_factor", READ}, /* ours, from config.json */
    {"rope.linear_factor_swa", READ},
    {"expert_count", READ},
    {"expert_used_count", READ},
    {"expert_feed_forward_length", READ},
    {"expert_gating_func", NUMBER(1, 0)}, /* softmax */
    {NULL, READ},
};

const struct family_key family_gemma4_config_keys[] = {
    {"vocab_size", READ},
    {"hidden_size", READ},
    {"intermediate_size", READ},
    {"num_hidden_layers", READ},
    {"num_attention_heads", READ},
    {"num_key_value_heads", READ},
    {"num_global_key_value_heads", READ},
    {"num_kv_shared_layers", READ},
    {"head_dim", READ},
    {"global_head_dim", READ},
    {"attention_k_eq_v", READ},
    {"layer_types", READ},
    {"per_layer_config", READ},
    {"max_position_embeddings", READ},
    {"rms_norm_eps", READ},
    {"final_logit_softcapping", READ},
    {"sliding_window", READ},
    {"use_sliding_window", FLAG(1)},
    {"_sliding_window_pattern", FREE}, /* layer_types says it */
    {"sliding_window_pattern", FREE},
    {"hidden_activation", WORD("gelu_pytorch_tanh|gelu_new|gelu_tanh")},
    {"hidden_act", WORD("gelu_pytorch_tanh|gelu_new|gelu_tanh")},
    {"hidden_size_per_layer_input", READ},
    {"vocab_size_per_layer_input", SAME("vocab_size")},
    {"use_double_wide_mlp", READ},
    {"enable_moe_block", READ},
    {"num_experts", READ},
    {"top_k_experts", READ},
    {"moe_intermediate_size", READ},
    {"expert_intermediate_size", SAME("moe_intermediate_size")},
    {"norm_topk_prob", FLAG(1)},
    {"use_bidirectional_attention", WORD("vision")}, /* of the tokens of an image */
    {"rope_parameters.full_attention.rope_type", READ},
    {"rope_parameters.full_attention.rope_theta", READ},
    {"rope_parameters.full_attention.partial_rotary_factor", READ},
    {"rope_parameters.full_attention.factor", READ},
    {"rope_parameters.sliding_attention.rope_type", READ},
    {"rope_parameters.sliding_attention.rope_theta", READ},
    {"rope_parameters.sliding_attention.factor", READ},
    {"rope_parameters.sliding_attention.partial_rotary_factor", NUMBER(1, 1)},
    {"rope_local_base_freq", NUMBER(10000, 10000)}, /* of Gemma 3; rope_parameters says it */
    {"rope_theta", NUMBER(1000000, 1000000)},
    {NULL, READ},
};
