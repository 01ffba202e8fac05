#include "tests/equivalence/techniques.h"

#include "compile/types.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::testing {
namespace {

constexpr std::array<std::string_view, kTechniques> kNames = {"tp",
                                                              "sequence_parallel",
                                                              "async tp",
                                                              "kv_heads < tp",
                                                              "dp_shard",
                                                              "dp_replicate",
                                                              "zero1",
                                                              "zero2",
                                                              "zero3",
                                                              "recompute",
                                                              "selective",
                                                              "microbatches",
                                                              "tied",
                                                              "gpt2",
                                                              "dropout",
                                                              "qk_norm",
                                                              "qkv_bias",
                                                              "sliding_window",
                                                              "document_mask",
                                                              "masked targets",
                                                              "padded vocab",
                                                              "padded batch",
                                                              "fused loss",
                                                              "prefetch",
                                                              "comm_thread",
                                                              "debug_fill",
                                                              "clipping",
                                                              "pipeline",
                                                              "looped",
                                                              "zero bubble",
                                                              "fewer microbatches",
                                                              "uneven stages",
                                                              "reduced once",
                                                              "kept gathered",
                                                              "Adam",
                                                              "SGD",
                                                              "Muon",
                                                              "loss scale",
                                                              "packed products",
                                                              "secondary weights",
                                                              "quantized weights",
                                                              "validation",
                                                              "context gather",
                                                              "context ring",
                                                              "context heads",
                                                              "context both",
                                                              "head-tail",
                                                              "float8",
                                                              "bfloat16 moments"};

enum class Recomputed { Nothing, Some, All };

Recomputed recomputed_by(const std::vector<ir::Program>& programs) {
    struct Backward {
        bool again = false, reads = false;  // computes a forward's values again; reads what a forward saved
    };
    std::vector<Backward> all;  // with its parts
    for (const ir::Program& p : programs) {
        for (const ir::Routine& r : p.routines) {
            if (r.block != "layer" || (r.kind != ir::RoutineKind::Backward && r.kind != ir::RoutineKind::BackwardInput)) continue;
            if (r.part == 0) all.emplace_back();
            const auto is_again = [](const ir::Op& op) { return op.attrs.contains("recomputed"); };
            all.back().again = all.back().again || std::any_of(r.ops.begin(), r.ops.end(), is_again);
            all.back().reads = all.back().reads || r.port("frame") >= 0;
        }
    }
    if (std::none_of(all.begin(), all.end(), [](const Backward& b) { return b.again; })) return Recomputed::Nothing;
    const bool rest = std::any_of(all.begin(), all.end(), [](const Backward& b) { return !b.again || b.reads; });
    return rest ? Recomputed::Some : Recomputed::All;
}

// Not all stages have as many blocks.
bool is_uneven(const passes::Cut& cut) {
    const auto [least, most] = std::minmax_element(cut.stages.begin(), cut.stages.end(),
                                                   [](const auto& a, const auto& b) { return a.size() < b.size(); });
    return most->size() > least->size();
}

}  // namespace

std::string_view name_of(Technique technique) { return kNames[static_cast<size_t>(technique)]; }

std::vector<Technique> techniques(const Draw& draw, const Outcome& outcome) {
    const compile::Recipe& r = draw.recipe;
    const compile::Layout& l = draw.compiled.layout;
    const ir::Attrs shape = r.model_shape();
    const auto model = [&](const char* key) { return shape.contains(key) ? std::get<int64_t>(shape.at(key)) : 0; };
    const int64_t tp = l.mesh.degree(mesh::Axis::tp), kv_heads = model("n_kv_heads") > 0 ? model("n_kv_heads") : model("n_heads");
    const double max_norm = r.number("training.max_norm");
    const auto is_clipped = [&](double norm) { return max_norm > 0 && norm > max_norm; };

    std::vector<Technique> out;
    const auto note = [&](Technique t, bool used) {
        if (used) out.push_back(t);
    };
    note(Technique::TensorParallel, tp > 1);
    note(Technique::SequenceParallel, l.sequence_parallel);
    const auto in_parts = [](const ir::Program& p) {
        return std::any_of(p.routines.begin(), p.routines.end(), [](const ir::Routine& r) { return r.part > 0; });
    };
    note(Technique::AsyncTensorParallel, r.flag("parallelism.enable_async_tensor_parallel") && l.sequence_parallel && tp > 1 &&
                                             std::any_of(draw.compiled.programs.begin(), draw.compiled.programs.end(), in_parts));
    note(Technique::FewKvHeads, kv_heads < tp);
    note(Technique::DpShard, l.mesh.degree(mesh::Axis::dp_shard) > 1);
    note(Technique::DpReplicate, l.mesh.degree(mesh::Axis::dp_replicate) > 1);
    note(Technique::Zero1, l.partition.states > 1 && l.partition.gradients == 1);
    note(Technique::Zero2, l.partition.gradients > 1 && l.partition.weights == 1);
    note(Technique::Zero3, l.partition.weights > 1);
    const Recomputed recomputed = recomputed_by(draw.compiled.programs);
    note(Technique::Recompute, recomputed == Recomputed::All);
    note(Technique::SelectiveRecompute, recomputed == Recomputed::Some);
    note(Technique::Microbatches, l.microbatches > 1);
    note(Technique::Adam, r.text("optimizer.name") == "Adam");
    note(Technique::Sgd, r.text("optimizer.name") == "SGD");
    note(Technique::Muon, r.text("optimizer.name") == "Muon");
    note(Technique::NarrowMoments, r.text("optimizer.implementation") == "fused_opt_states_bf16");
    note(Technique::LossScale, compile::types_of(compile::config_of(r)).loss_scaling.has_value());
    note(Technique::Tied, model("tie_embeddings") != 0);
    const bool gpt = r.text("model.name") == "gpt2";
    note(Technique::Gpt, gpt);
    note(Technique::Dropout, gpt && std::get<double>(shape.at("dropout")) > 0);
    note(Technique::QkNorm, model("qk_norm") != 0);
    note(Technique::QkvBias, model("qkv_bias") != 0);
    note(Technique::SlidingWindow, model("sliding_window") != 0);
    note(Technique::DocumentMask, r.flag("training.document_mask"));
    note(Technique::MaskedTargets, r.number("debug.synthetic_masked") > 0);
    note(Technique::PaddedVocab, model("vocab_size") % tp != 0);
    note(Technique::PaddedBatch, l.global_batch % (l.local_batch * l.data_ranks) != 0);
    note(Technique::FusedLoss, r.flag("training.fuse_loss"));
    note(Technique::PackedProducts, !gpt && r.flag("training.pack_products"));
    note(Technique::SecondaryWeights, l.partition.secondary > 0);
    note(Technique::QuantizedWeights, l.partition.weights > 1 && r.text("partition.quantized_weights") == "int8");
    note(Technique::Validation, draw.compiled.programs[0].entry(ir::EntryKind::Eval) != nullptr);
    const int64_t cp = l.mesh.degree(mesh::Axis::cp), on_heads = l.context.on_heads;
    note(Technique::ContextGather, cp > 1 && on_heads < cp && !l.context.ring);
    note(Technique::ContextRing, l.context.ring);
    note(Technique::ContextHeads, cp > 1 && on_heads == cp);
    note(Technique::ContextBoth, on_heads > 1 && on_heads < cp);
    note(Technique::HeadTail, l.head_tail > 1);
    const auto is_converted = [](const ir::Program& p) {
        return std::any_of(p.params.begin(), p.params.end(), [](const ir::Parameter& x) { return x.converted; });
    };
    note(Technique::Float8, std::any_of(draw.compiled.programs.begin(), draw.compiled.programs.end(), is_converted));
    note(Technique::Prefetch, l.partition.weights > 1 && r.integer("parallelism.prefetch") > 0);
    note(Technique::CommThread, r.text("runtime.comm_thread") == "on");
    note(Technique::DebugFill, r.flag("runtime.debug_fill"));
    const compile::Stages& stages = draw.compiled.stages;
    const int64_t pipeline_ranks = l.mesh.degree(mesh::Axis::pp);
    const bool pipeline = pipeline_ranks > 1;
    note(Technique::Pipeline, pipeline);
    note(Technique::Looped, pipeline && stages.table.stages > pipeline_ranks);
    note(Technique::ZeroBubble, pipeline && compile::backwards_of(stages.table).in_parts);
    note(Technique::FewMicrobatches, pipeline && l.microbatches < pipeline_ranks);
    note(Technique::UnevenStages, pipeline && is_uneven(stages.cut));
    note(Technique::ReducedOnce,
         l.partition.gradients > 1 && l.microbatches > 1 && l.windows.reduce_gradients == passes::ReduceGradients::OnceAStep);
    note(Technique::KeptGathered, l.partition.weights > 1 && l.windows.resident_stages > 0);
    note(Technique::Clipping, std::any_of(outcome.grad_norms.begin(), outcome.grad_norms.end(), is_clipped));
    return out;
}

std::string_view impossible(Technique a, Technique b) {
    const auto is_stage = [](Technique t) { return t == Technique::Zero1 || t == Technique::Zero2 || t == Technique::Zero3; };
    if (a != b && is_stage(a) && is_stage(b)) return "a layout has one ZeRO stage";
    if (a > b) std::swap(a, b);
    const auto is_optimizer = [](Technique t) { return t == Technique::Adam || t == Technique::Sgd || t == Technique::Muon; };
    if (a != b && is_optimizer(a) && is_optimizer(b)) return "a recipe has one optimizer";
    if ((a == Technique::Sgd || a == Technique::Muon) && b == Technique::NarrowMoments) return "of AdamW and Adam";
    const auto is_context = [](Technique t) { return t >= Technique::ContextGather && t <= Technique::ContextHeads; };
    if (a != b && is_context(a) && is_context(b)) return "context ranks meet in one form";
    if (a == Technique::ContextHeads && (b == Technique::ContextBoth || b == Technique::HeadTail))
        return "all of a sequence's ranks are on heads";
    if (a == Technique::Recompute && b == Technique::SelectiveRecompute) return "all is computed again, or some";
    const auto is_llama = [](Technique t) {
        return t == Technique::FewKvHeads || t == Technique::QkNorm || t == Technique::QkvBias || t == Technique::SlidingWindow ||
               t == Technique::PackedProducts;
    };
    const auto is_gpt = [](Technique t) { return t == Technique::Gpt || t == Technique::Dropout; };
    if ((is_llama(a) && is_gpt(b)) || (is_gpt(a) && is_llama(b))) return "of different models";
    const auto needs_gathers = [](Technique t) {
        return t == Technique::Prefetch || t == Technique::KeptGathered || t == Technique::SecondaryWeights ||
               t == Technique::QuantizedWeights;
    };
    const auto is_of_tensor = [](Technique t) { return t <= Technique::FewKvHeads || t == Technique::PaddedVocab; };
    if (is_of_tensor(a) && b == Technique::QuantizedWeights) return "blocks of int8 are not those of one rank";
    if ((a == Technique::Zero1 || a == Technique::Zero2) && needs_gathers(b)) return "whole weights are never gathered";
    if (a == Technique::Zero1 && b == Technique::ReducedOnce) return "whole gradients are reduced once in any case";
    return "";
}

void PairCounts::add(const std::vector<Technique>& techniques) {
    for (Technique a : techniques) {
        for (Technique b : techniques) ++counts_[static_cast<size_t>(a)][static_cast<size_t>(b)];
    }
}

std::string PairCounts::table() const {
    std::string text = fmt::format("{:22}", "");
    for (size_t b = 0; b < kTechniques; ++b) text += fmt::format("{:>5}", b + 1);
    for (size_t a = 0; a < kTechniques; ++a) {
        text += fmt::format("\n{:3} {:18}", a + 1, kNames[a]);
        for (size_t b = 0; b <= a; ++b) {
            const bool never = !impossible(static_cast<Technique>(a), static_cast<Technique>(b)).empty();
            text += never ? fmt::format("{:>5}", "-") : fmt::format("{:>5}", counts_[a][b]);
        }
    }
    return text + "\n";
}

std::string PairCounts::rarer_than(int least) const {
    std::string text;
    for (size_t a = 0; a < kTechniques; ++a) {
        for (size_t b = 0; b < a; ++b) {
            const bool never = !impossible(static_cast<Technique>(a), static_cast<Technique>(b)).empty();
            if (!never && counts_[a][b] < least) text += fmt::format("{} with {}: {}\n", kNames[a], kNames[b], counts_[a][b]);
        }
    }
    return text;
}

}  // namespace lockstep::testing
