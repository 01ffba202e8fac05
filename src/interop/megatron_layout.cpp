// Ranks, parallel degrees, pipeline and the partition of states of a Megatron-LM run.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "interop/megatron_job.h"

namespace lockstep::interop {
namespace {

void read_world(MegatronJob& j, int64_t of_a_replica) {
    if (j.world > 0)
        return j.reading.map(fmt::format("{} ranks are started", j.world), j.args.origin(), "cluster.ranks", j.world);
    j.reading.assumed.push_back({"number of ranks", "", fmt::format("{}: one replica, unless --ranks says more", of_a_replica)});
}

void read_tensor(MegatronJob& j, int64_t tensor) {
    const Argument* sequence = j.take({"sequence-parallel"});
    if (sequence) j.args.require_no_value(*sequence);
    if (sequence && tensor > 1) j.map(*sequence, "parallelism.sequence_parallel", true);
    else if (sequence) j.no_effect(*sequence, "there is one tensor-parallel rank");
    else if (tensor > 1) j.reading.assume("no --sequence-parallel", "parallelism.sequence_parallel", false);
    const Argument* overlap = j.take({"tp-comm-overlap"});
    if (!overlap) return;
    j.args.require_no_value(*overlap);
    if (sequence && tensor > 1) j.map(*overlap, "parallelism.enable_async_tensor_parallel", true);
    else j.no_effect(*overlap, "acts only with --sequence-parallel over several tensor-parallel ranks");
}

// How context ranks meet, which Megatron-LM says for all layers or for each.
void read_context(MegatronJob& j, int64_t context) {
    j.map_integer({"context-parallel-size"}, "parallelism.context_parallel_degree");
    const Argument *how = j.take({"cp-comm-type"}), *levels = j.take({"hierarchical-context-parallel-sizes"});
    if (context == 1) {
        for (const Argument* a : {how, levels}) {
            if (a) j.no_effect(*a, "there is one context rank");
        }
        return;
    }
    const char* const method = "parallelism.context_parallel_rotate_method";
    if (!how) return j.reading.assume("no --cp-comm-type", method, std::string("alltoall"));
    const auto is_first = [&](const std::string& type) { return type == how->values.front(); };
    if (how->values.empty() || !std::all_of(how->values.begin(), how->values.end(), is_first))
        return j.refuse(*how, "must be one type for all layers: a run has one");
    constexpr std::pair<std::string_view, const char*> known[] = {
        {"p2p", "alltoall"}, {"all_gather", "allgather"}, {"a2a", "ulysses"}, {"a2a+p2p", "alltoall"}};
    const auto* type =
        std::find_if(std::begin(known), std::end(known), [&](const auto& k) { return is_first(std::string(k.first)); });
    if (type == std::end(known)) return j.refuse(*how, "must be p2p, all_gather, a2a or a2a+p2p");
    j.map(*how, method, std::string(type->second));
    if (type->first != "a2a+p2p") {
        if (levels) j.no_effect(*levels, "acts only with --cp-comm-type a2a+p2p");
        return;
    }
    if (!levels || levels->values.size() != 2)
        return j.refuse(levels ? *levels : *how, "needs two sizes in --hierarchical-context-parallel-sizes");
    Argument inner = *levels;
    inner.values.resize(1);
    j.map(*levels, "parallelism.context_parallel_head_degree", j.args.integer(inner));
}

// Megatron-DeepSpeed's.
void read_ulysses(MegatronJob& j, int64_t ranks) {
    const Argument& size = *j.take({"ds-sequence-parallel-size"});
    if (ranks == 1) return j.no_effect(size, "is off");
    j.map(size, "parallelism.context_parallel_degree", ranks);
    j.map(size, "parallelism.context_parallel_rotate_method", std::string("ulysses"));
}

const Argument* virtual_stages(MegatronJob& j) {
    const Argument* layers = j.take({"num-layers-per-virtual-pipeline-stage"});
    const Argument* stages = j.take({"num-virtual-stages-per-pipeline-rank"});
    if (layers && stages) j.refuse(*stages, fmt::format("contradicts {}: give one of them", layers->text()));
    return layers ? layers : stages;
}

[[noreturn]] void indivisible(const MegatronJob& j, const std::string& what, int64_t parts) {
    const Argument& layers = *j.args.find({"num-layers"});
    throw UserError("recipe.argument_value", "--num-layers",
                    fmt::format("{}: {}: {} not divisible by {}: change one of them", layers.where, layers.text(), what, parts));
}

// Layers of the first and the last pipeline rank, if they have fewer than the others.
struct Ends {
    const Argument *first, *last;
};

int64_t layers_of(const MegatronJob& j, const Argument* a) {
    constexpr int64_t kMost = 1 << 20;
    return a ? std::clamp(j.args.integer(*a), -kMost, kMost) : 0;
}

void read_uneven(MegatronJob& j, int64_t pipeline, int64_t layers, const Ends& ends) {
    const int64_t ranks = pipeline - (ends.first != nullptr) - (ends.last != nullptr);
    const int64_t rest = layers - layers_of(j, ends.first) - layers_of(j, ends.last);
    if (ranks < 1 || rest < 1 || rest % ranks != 0)
        indivisible(j, fmt::format("the {} layers between the first and the last pipeline rank are", rest), ranks);
    const auto read = [&](const Argument* a, const std::string& key) {
        if (!a) return j.reading.assume("as many layers as in the middle", key, int64_t{0});
        const int64_t less = rest / ranks - layers_of(j, a);
        if (less < 0)
            return j.refuse(
                *a, fmt::format("is more than the {} layers of the ranks between: only fewer are known here", rest / ranks));
        j.map(*a, key, less);
    };
    read(ends.first, "parallelism.pipeline_parallel_first_stage_less_layers");
    read(ends.last, "parallelism.pipeline_parallel_last_stage_less_layers");
}

// The embedding, the loss or both count as a layer.
void read_counted(MegatronJob& j, const char* name, const std::string& key) {
    const Argument* a = j.take({name});
    if (a) j.args.require_no_value(*a);
    if (a) j.map(*a, key, int64_t{1});
    else j.reading.assume(fmt::format("no --{}", name), key, int64_t{0});
}

void read_pipeline(MegatronJob& j, int64_t pipeline) {
    const Argument* stages = virtual_stages(j);
    const Ends ends = {j.take({"decoder-first-pipeline-num-layers"}), j.take({"decoder-last-pipeline-num-layers"})};
    if (pipeline == 1) {
        for (const Argument* a : {stages, ends.first, ends.last}) {
            if (a) j.no_effect(*a, "there is one pipeline rank");
        }
        return;
    }
    const int64_t layers = j.required({"num-layers"});
    const bool uneven = ends.first || ends.last;
    if (uneven) read_uneven(j, pipeline, layers, ends);
    read_counted(j, "account-for-embedding-in-pipeline-split", "parallelism.pipeline_parallel_first_stage_less_layers");
    read_counted(j, "account-for-loss-in-pipeline-split", "parallelism.pipeline_parallel_last_stage_less_layers");
    const int64_t counted =
        layers + (uneven ? 0
                         : j.reading.recipe.integer("parallelism.pipeline_parallel_first_stage_less_layers") +
                               j.reading.recipe.integer("parallelism.pipeline_parallel_last_stage_less_layers"));
    if (!uneven && counted % pipeline != 0) indivisible(j, fmt::format("{} layers are", counted), pipeline);
    if (!stages) return j.reading.assume("no virtual stages", "parallelism.pipeline_parallel_schedule", std::string("1F1B"));
    const int64_t each = j.args.integer(*stages), of_rank = counted / pipeline;
    const bool in_layers = stages->name == "num-layers-per-virtual-pipeline-stage";
    if (each < 1 || uneven || of_rank % each != 0) {
        if (uneven) return j.refuse(*stages, "several stages a rank are known here only for equal pipeline ranks");
        indivisible(j, fmt::format("the {} layers of a pipeline rank are", of_rank), each);
    }
    if ((in_layers ? of_rank / each : each) == 1) return j.no_effect(*stages, "makes one stage a rank");
    j.map(*stages, "parallelism.pipeline_parallel_schedule", std::string("Interleaved1F1B"));
    j.map(*stages, "parallelism.pipeline_parallel_layers_per_stage", in_layers ? each : of_rank / each);
}

// What of the states is split over data ranks.
void read_partition(MegatronJob& j) {
    const Argument* zero = j.take({"zero-stage"});
    const Argument* distributed = j.take({"use-distributed-optimizer"});
    const Argument* fsdp = j.take({"use-megatron-fsdp", "use-custom-fsdp"});
    const Argument* torch_fsdp = j.take({"use-torch-fsdp2"});
    const Argument* strategy = j.take({"data-parallel-sharding-strategy"});
    for (const Argument* a : {distributed, fsdp, torch_fsdp}) {
        if (a) j.args.require_no_value(*a);
    }
    const std::string key = "partition.preset";
    if (zero && j.deepspeed) {
        const int64_t stage = j.args.integer(*zero);
        if (stage < 0 || stage > 3) j.refuse(*zero, "must be from 0 to 3");
        else j.map(*zero, key, stage == 0 ? std::string("none") : fmt::format("zero{}", stage));
    } else if (zero) {
        j.no_effect(*zero, "acts only with --deepspeed");
    }
    if (strategy && fsdp) {
        const std::pair<const char*, const char*> presets[] = {
            {"no_shard", "none"}, {"optim", "zero1"}, {"optim_grads", "zero2"}, {"optim_grads_params", "zero3"}};
        const std::string name = j.args.text(*strategy);
        const auto* known = std::find_if(std::begin(presets), std::end(presets), [&](const auto& p) { return p.first == name; });
        if (known == std::end(presets)) return j.refuse(*strategy, "must be no_shard, optim, optim_grads or optim_grads_params");
        j.map(*strategy, key, std::string(known->second));
        if (distributed) j.no_effect(*distributed, "follows from --data-parallel-sharding-strategy");
        return j.no_effect(*fsdp, "follows from --data-parallel-sharding-strategy");
    }
    if (strategy) j.no_effect(*strategy, "acts only with --use-megatron-fsdp");
    if (torch_fsdp) j.map(*torch_fsdp, key, std::string("zero3"));
    else if (distributed) j.map(*distributed, key, std::string("zero1"));
    else j.reading.assume(j.deepspeed ? "no ZeRO stage" : "no --use-distributed-optimizer", key, std::string("none"));
    if (fsdp) j.no_effect(*fsdp, "its --data-parallel-sharding-strategy is no_shard by default");
}

}  // namespace

void read_megatron_layout(MegatronJob& j) {
    const int64_t tensor = std::max<int64_t>(j.integer({"tensor-model-parallel-size", "model-parallel-size"}, 1), 1);
    const int64_t pipeline = std::max<int64_t>(j.integer({"pipeline-model-parallel-size"}, 1), 1);
    const int64_t ulysses = std::max<int64_t>(j.integer({"ds-sequence-parallel-size"}, 1), 1);
    const int64_t context = std::max<int64_t>(j.integer({"context-parallel-size"}, ulysses), 1);
    j.map_integer({"tensor-model-parallel-size", "model-parallel-size"}, "parallelism.tensor_parallel_degree", 1);
    j.map_integer({"pipeline-model-parallel-size"}, "parallelism.pipeline_parallel_degree", 1);
    if (j.args.has("context-parallel-size")) read_context(j, context);
    else if (j.args.has("ds-sequence-parallel-size")) read_ulysses(j, ulysses);
    j.map_integer({"expert-model-parallel-size", "moe-expert-parallel-size"}, "parallelism.expert_parallel_degree");
    j.map_integer({"expert-tensor-parallel-size"}, "parallelism.expert_tensor_parallel_degree");
    j.map_integer({"num-distributed-optimizer-instances"}, "parallelism.data_parallel_replicate_degree");
    constexpr int64_t kMost = 1 << 20;
    read_world(j, std::min(tensor, kMost) * std::min(pipeline, kMost) * std::min(context, kMost));
    read_tensor(j, tensor);
    read_pipeline(j, pipeline);
    read_partition(j);
}

}  // namespace lockstep::interop
