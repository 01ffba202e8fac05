// Rows of the table of recipe keys: parallelism and partition.
#include "compile/key_field.h"
#include "compile/limits.h"
#include "schedules/schedules.h"

namespace lockstep::compile {
namespace {

std::vector<std::string> schedule_names() {
    std::vector<std::string> out;
    for (const schedules::Schedule& s : schedules::schedules()) out.emplace_back(s.name);
    return out;
}

}  // namespace

std::span<const KeyRow> keys_of_layout() {
    using C = Config;
    using S = KeyStatus;
    constexpr Allowed split =
        one_of({"", "none", "package", "node", "shard", "world"}).or_form("a number of data ranks", is_count);
    static constexpr KeyRow rows[] = {
        acts<&C::parallelism, &C::Parallelism::data_parallel_replicate_degree>(
            "parallelism.data_parallel_replicate_degree", "number of replicas of the model, which may itself be sharded",
            from_to(1, kMostRanks))
            .of_step(kTwice),
        acts<&C::parallelism, &C::Parallelism::data_parallel_shard_degree>(
            "parallelism.data_parallel_shard_degree",
            "data ranks over which parameters are sharded; -1: the ranks that the other degrees leave",
            from_to(1, kMostRanks).or_value(-1)),
        acts<&C::parallelism, &C::Parallelism::tensor_parallel_degree>(
            "parallelism.tensor_parallel_degree", "ranks over which heads, feed-forward and vocabulary are sharded",
            from_to(1, kMostRanks))
            .of_step(kTwice),
        acts<&C::parallelism, &C::Parallelism::sequence_parallel>(
            "parallelism.sequence_parallel", "shard the residual stream along the sequence over tensor-parallel ranks")
            .of_step(kOthers),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_degree>(
            "parallelism.pipeline_parallel_degree",
            "pipeline ranks, over which the layers are divided. Batch sizes are then divided into microbatches of "
            "pipeline_parallel_microbatch_size",
            from_to(1, kMostRanks))
            .of_step(kTwice),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_schedule>(
            "parallelism.pipeline_parallel_schedule",
            "order of forwards and backwards; `lockstep schedule` lists and draws the schedules",
            one_of(schedule_names).with_any_case())
            .of_step(kOthers),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_schedule_csv>(
            "parallelism.pipeline_parallel_schedule_csv",
            "CSV file with your own schedule, in PyTorch's format; overrides the name"),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_microbatch_size>(
            "parallelism.pipeline_parallel_microbatch_size", "sequences per microbatch and data rank, with a pipeline",
            from_to(1, kSize))
            .of_step(kTwice),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_layers_per_stage>(
            "parallelism.pipeline_parallel_layers_per_stage",
            "largest number of layers per stage; 0: one stage per rank, or two if the schedule runs several", from_to(0, kSize))
            .of_step(to(1)),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_first_stage_less_layers>(
            "parallelism.pipeline_parallel_first_stage_less_layers",
            "number of layers that the first stage has less, because it has the embedding; -1 in both keys: the cut minimizes "
            "the cost of the costliest stage",
            from_to(0, kSize).or_value(-1))
            .of_step(to(0)),
        acts<&C::parallelism, &C::Parallelism::pipeline_parallel_last_stage_less_layers>(
            "parallelism.pipeline_parallel_last_stage_less_layers",
            "number of layers that the last stage has less, because it has the head; -1: as for the first stage",
            from_to(0, kSize).or_value(-1))
            .of_step(to(0)),
        {"parallelism.pipeline_parallel_expert_parallel_overlap", true, S::Ignored, "there are no experts"},
        acts<&C::parallelism, &C::Parallelism::module_fqns_per_model_part>(
            "parallelism.module_fqns_per_model_part",
            "modules of each stage: [[\"tok_embeddings\", \"layers.0\"], [\"layers.1\", \"norm\", \"output\"]]"),
        acts<&C::parallelism, &C::Parallelism::context_parallel_degree>(
            "parallelism.context_parallel_degree",
            "ranks over which each sequence is divided. They hold the same parameters, which are sharded over them as over data "
            "ranks",
            from_to(1, kMostRanks))
            .of_step(kTwice),
        acts<&C::parallelism, &C::Parallelism::context_parallel_load_balancer>(
            "parallelism.context_parallel_load_balancer",
            "headtail: each context rank has a piece of the first half of the sequence and one of the last, so that a causal "
            "mask leaves all the same work. none: one piece each, in order; better with a sliding window")
            .of_step(kOthers),
        acts<&C::parallelism, &C::Parallelism::context_parallel_rotate_method>(
            "parallelism.context_parallel_rotate_method",
            "how context ranks meet keys and values of the others. allgather: each gathers them all. alltoall: they go around a "
            "ring, and attention runs block by block. ulysses: ranks exchange their part of the sequence for some of the heads")
            .of_step(kOthers),
        acts<&C::parallelism, &C::Parallelism::context_parallel_head_degree>(
            "parallelism.context_parallel_head_degree",
            "context ranks that exchange their part of the sequence for some of the heads; the others gather, or are a ring. 0: "
            "with ulysses all, otherwise none",
            from_to(0, kMostRanks)),
        {"parallelism.expert_parallel_degree", 1, S::Only, "experts"},
        {"parallelism.expert_tensor_parallel_degree", 1, S::Only, "experts"},
        {"parallelism.expert_parallel_comm_backend", "standard", S::Ignored, "there are no experts"},
        acts<&C::parallelism, &C::Parallelism::fsdp_reshard_after_forward>(
            "parallelism.fsdp_reshard_after_forward",
            "always: free gathered parameters after each use; never: keep them for the step; default: always, but with a "
            "pipeline keep those that one of the rank's next three stages uses")
            .of_step(kOthers),
        {"parallelism.disable_loss_parallel", false, S::Only, "a loss over the whole vocabulary on each rank"},
        acts<&C::parallelism, &C::Parallelism::enable_async_tensor_parallel>(
            "parallelism.enable_async_tensor_parallel",
            "cut the collectives of tensor parallelism into blocks, which travel while others are multiplied; needs "
            "parallelism.sequence_parallel")
            .of_step(kOthers),
        acts<&C::parallelism, &C::Parallelism::prefetch>(
            "parallelism.prefetch", "number of parameter units gathered ahead of the one in use", from_to(0, 1024))
            .of_step(to(2)),

        acts<&C::partition, &C::Partition::preset>(
            "partition.preset",
            "ddp (or none), zero1, zero2, zero3, hsdp, mics, hpz, zeropp or three_level: over which data ranks weights, "
            "gradients and optimizer states are sharded; default: zero3 over the data_parallel_shard ranks")
            .of_step(kOthers),
        acts<&C::partition, &C::Partition::weights>(
            "partition.weights",
            "data ranks over which weights are sharded: none, package, node, shard, world or a number; overrides the preset",
            split),
        acts<&C::partition, &C::Partition::secondary_weights>(
            "partition.secondary_weights",
            "data ranks over which a second copy of the weights is sharded, as partition.weights. A step fetches it once and "
            "gathers from it; fewer ranks than those of partition.weights, as those of a node; none: no copy",
            split),
        acts<&C::partition, &C::Partition::gradients>("partition.gradients",
                                                      "data ranks over which gradients are sharded: as partition.weights", split),
        acts<&C::partition, &C::Partition::optimizer>(
            "partition.optimizer", "data ranks over which optimizer states are sharded: as partition.weights", split),
        acts<&C::partition, &C::Partition::quantized_weights>(
            "partition.quantized_weights",
            "int8: gathers and fetches of weights carry int8 with a scale for each 256 elements. Every layout computes with "
            "the weights that this leaves; norms and biases are not quantized. none: as they are; default: as the preset says")
            .of_step(kOthers),
        acts<&C::partition, &C::Partition::quantized_gradients>(
            "partition.quantized_gradients",
            "int8, int4: ranks exchange gradients so and add them up in float32, within a node first where a level names it. "
            "Norms and biases are not quantized. This changes the arithmetic with the number of ranks. none: as they are; "
            "default: as the preset says")
            .of_step(kOthers),
        acts<&C::partition, &C::Partition::gradient_rounding>(
            "partition.gradient_rounding",
            "how quantized gradients are rounded. nearest; stochastic: up or down at random, so that small gradients are not "
            "lost on average; default: nearest with int8, stochastic with int4")
            .of_step(kOthers),
        acts<&C::partition, &C::Partition::reduce_gradients>(
            "partition.reduce_gradients",
            "when sharded gradients are reduced. microbatch: after each microbatch; step: once a step, which needs whole "
            "gradients until then; default: microbatch, with a pipeline step")
            .of_step(kOthers),
    };
    return rows;
}

}  // namespace lockstep::compile
