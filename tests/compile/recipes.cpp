#include "tests/compile/recipes.h"
#include "tests/base/plain.h"

#include <algorithm>

#include "kernels/kernel.h"

namespace lockstep::testing {

compile::Recipe small_recipe(const Settings& settings) {
    compile::Recipe recipe = plain();
    const Settings shape = {{"model.dim", "8"},
                            {"model.n_layers", "2"},
                            {"model.n_heads", "4"},
                            {"model.n_kv_heads", "2"},
                            {"model.head_dim", "4"},
                            {"model.ffn_dim", "12"},
                            {"model.vocab_size", "16"},
                            {"training.seq_len", "8"},
                            {"training.local_batch_size", "1"},
                            {"training.loss_chunk_tokens", "4"}};
    const bool gpt2 =
        std::find(settings.begin(), settings.end(), std::pair<std::string, std::string>("model.name", "gpt2")) != settings.end();
    for (const auto& [key, value] : shape) {
        if (!gpt2 || key != "model.n_kv_heads") recipe.set(key, value);
    }
    for (const auto& [key, value] : settings) recipe.set(key, value);
    return recipe;
}

ir::Program program_after(const std::string& pass, const Settings& settings, Backend backend) {
    compile::CompileOptions options;
    options.catalog = backend == Backend::Reference ? kernels::reference_catalog() : kernels::cpu_catalog(1);
    options.stop_after = pass;
    return compile::compile(small_recipe(settings), options).programs[0];
}

bool converts(const Settings& settings) {
    return std::any_of(settings.begin(), settings.end(), [](const auto& s) { return s.first == "model.converters"; });
}

const std::vector<NamedSettings>& sample_settings() {
    const std::string tp = "parallelism.tensor_parallel_degree", shard = "parallelism.data_parallel_shard_degree",
                      replicate = "parallelism.data_parallel_replicate_degree", preset = "partition.preset",
                      batch = "training.global_batch_size", recompute = "activation_checkpoint.mode",
                      param = "training.mixed_precision_param", reduce = "training.mixed_precision_reduce",
                      residual = "training.fp32_residual_connection", norm = "training.mixed_precision_norm",
                      context = "parallelism.context_parallel_degree", method = "parallelism.context_parallel_rotate_method",
                      balancer = "parallelism.context_parallel_load_balancer", pp = "parallelism.pipeline_parallel_degree",
                      async = "parallelism.enable_async_tensor_parallel";
    static const std::vector<NamedSettings> all = {
        {"one_rank", {}},
        {"four_way_tp_with_cut_heads", {{tp, "4"}, {shard, "2"}, {batch, "4"}}},
        {"tp_without_sequence_parallel", {{tp, "2"}, {"parallelism.sequence_parallel", "false"}}},
        {"zero3_recompute", {{shard, "4"}, {recompute, "full"}, {batch, "12"}}},
        {"recompute_every_second_layer", {{shard, "2"}, {recompute, "selective"}, {"model.n_layers", "5"}, {batch, "4"}}},
        {"recompute_by_op", {{tp, "2"}, {recompute, "selective"}, {"activation_checkpoint.selective_ac_option", "op"}}},
        {"recompute_within_a_budget",
         {{tp, "2"}, {shard, "2"}, {recompute, "memory_budget"}, {"model.n_layers", "5"}, {batch, "4"}}},
        {"zero2", {{shard, "2"}, {preset, "zero2"}, {batch, "4"}}},
        {"zero1_without_overlap", {{shard, "2"}, {preset, "zero1"}, {"parallelism.prefetch", "0"}}},
        {"replicated", {{replicate, "2"}, {preset, "none"}}},
        {"hybrid_states_over_world", {{replicate, "2"}, {shard, "2"}, {"partition.optimizer", "world"}, {batch, "8"}}},
        {"tied_padded_vocab_qk_norm",
         {{tp, "2"}, {"model.vocab_size", "15"}, {"model.tie_embeddings", "1"}, {"model.qk_norm", "1"}}},
        {"products_apart", {{tp, "2"}, {"training.pack_products", "false"}}},
        {"float64_loss_in_one_piece", {{"training.dtype", "float64"}, {"training.fuse_loss", "false"}, {shard, "2"}}},
        {"bfloat16_one_rank", {{param, "bfloat16"}}},
        {"float8",
         {{"model.converters", "quantize.linear.float8"},
          {"model.dim", "16"},
          {"model.head_dim", "16"},
          {"model.ffn_dim", "32"},
          {param, "bfloat16"},
          {tp, "2"},
          {shard, "2"},
          {batch, "4"}}},
        {"context_ranks_that_gather", {{context, "2"}, {param, "bfloat16"}, {recompute, "full"}}},
        {"a_ring_of_context_ranks", {{context, "2"}, {method, "alltoall"}, {param, "bfloat16"}, {tp, "2"}}},
        {"a_ring_in_plain_order", {{context, "4"}, {method, "alltoall"}, {"training.dtype", "float64"}, {balancer, "none"}}},
        {"context_ranks_on_heads", {{context, "2"}, {method, "ulysses"}, {param, "bfloat16"}, {tp, "2"}, {batch, "2"}}},
        {"context_ranks_on_heads_and_in_a_ring",
         {{context, "4"}, {method, "alltoall"}, {"parallelism.context_parallel_head_degree", "2"}, {recompute, "full"}}},
        {"float16_zero1_reduced_in_float16",
         {{param, "float16"}, {reduce, "float16"}, {shard, "2"}, {tp, "2"}, {preset, "zero1"}}},
        {"float64_with_a_loss_scale", {{"training.dtype", "float64"}, {"training.loss_scale", "24"}, {pp, "2"}}},
        {"bfloat16_zero3_tp_recompute",
         {{param, "bfloat16"}, {shard, "2"}, {tp, "2"}, {recompute, "full"}, {batch, "4"}, {"model.vocab_size", "15"}}},
        {"bfloat16_zero2_reduced_in_bfloat16", {{param, "bfloat16"}, {reduce, "bfloat16"}, {shard, "2"}, {preset, "zero2"}}},
        {"bfloat16_zero1_replicas",
         {{param, "bfloat16"}, {reduce, "bfloat16"}, {shard, "2"}, {replicate, "2"}, {preset, "zero1"}}},
        {"bfloat16_beside_a_float32_stream", {{param, "bfloat16"}, {residual, "true"}, {tp, "2"}, {recompute, "full"}}},
        {"bfloat16_beside_a_float32_stream_gpt2",
         {{"model.name", "gpt2"}, {"model.dropout", "0.1"}, {param, "bfloat16"}, {residual, "true"}, {shard, "2"}}},
        {"bfloat16_beside_float32_norms",
         {{param, "bfloat16"},
          {norm, "float32"},
          {reduce, "bfloat16"},
          {"model.qk_norm", "1"},
          {shard, "2"},
          {tp, "2"},
          {batch, "4"}}},
        {"bfloat16_beside_float32_norms_and_stream_gpt2",
         {{"model.name", "gpt2"}, {param, "bfloat16"}, {norm, "float32"}, {residual, "true"}, {shard, "2"}, {recompute, "full"}}},
        {"bfloat16_throughout", {{"training.dtype", "bfloat16"}, {shard, "2"}}},
        {"moments_in_bfloat16", {{"optimizer.implementation", "fused_opt_states_bf16"}, {tp, "2"}, {shard, "2"}, {batch, "4"}}},
        {"moments_in_bfloat16_zero1_bfloat16",
         {{"optimizer.implementation", "fused_opt_states_bf16"}, {param, "bfloat16"}, {shard, "2"}, {preset, "zero1"}}},
        {"float32_under_float64", {{"training.dtype", "float64"}, {param, "float32"}, {shard, "2"}, {preset, "zero1"}}},
        {"biases_and_a_window", {{tp, "2"}, {"model.qkv_bias", "1"}, {"model.sliding_window", "3"}}},
        {"gpt2_with_dropout",
         {{"model.name", "gpt2"}, {"model.dropout", "0.1"}, {tp, "2"}, {shard, "2"}, {recompute, "full"}, {batch, "4"}}},
        {"gpt2_without_sequence_parallel",
         {{"model.name", "gpt2"}, {tp, "4"}, {"parallelism.sequence_parallel", "false"}, {"validation.enable", "true"}}},
        {"validation_document_mask",
         {{"validation.enable", "true"},
          {"training.document_mask", "true"},
          {tp, "2"},
          {recompute, "full"},
          {"parallelism.prefetch", "2"}}},
        {"validation_hpz",
         {{"validation.enable", "true"}, {preset, "hpz"}, {shard, "4"}, {"cluster.ranks_per_node", "2"}, {batch, "4"}}},
        {"validation_zeropp",
         {{"validation.enable", "true"}, {preset, "zeropp"}, {shard, "4"}, {"cluster.ranks_per_node", "2"}, {batch, "4"}}},
        {"pipeline", {{pp, "2"}, {batch, "4"}}},
        {"pipeline_tied_interleaved",
         {{pp, "2"},
          {shard, "2"},
          {tp, "2"},
          {batch, "8"},
          {"model.n_layers", "4"},
          {"model.tie_embeddings", "1"},
          {"parallelism.pipeline_parallel_schedule", "Interleaved1F1B"}}},
        {"pipeline_tied_bfloat16_float32_norms",
         {{pp, "2"}, {shard, "2"}, {batch, "4"}, {param, "bfloat16"}, {norm, "float32"}, {"model.tie_embeddings", "1"}}},
        {"pipeline_zero_bubble_recompute",
         {{pp, "3"},
          {batch, "3"},
          {"model.n_layers", "5"},
          {recompute, "full"},
          {"parallelism.pipeline_parallel_schedule", "ZB-H1"}}},
        {"async_tensor_parallel_by_op",
         {{tp, "4"},
          {shard, "2"},
          {batch, "8"},
          {async, "true"},
          {recompute, "selective"},
          {"activation_checkpoint.selective_ac_option", "op"}}},
        {"async_tensor_parallel_pipeline_bfloat16_recompute",
         {{tp, "2"},
          {pp, "2"},
          {batch, "4"},
          {async, "true"},
          {param, "bfloat16"},
          {recompute, "full"},
          {"model.n_layers", "4"},
          {"parallelism.pipeline_parallel_schedule", "ZBVZeroBubble"}}},
    };
    return all;
}

}  // namespace lockstep::testing
