// Programs whose memory and order are sound, and which train something else at the end of a step: `check` must name what is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "check/check.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::check_test {
namespace {

using ir::Op;
using ir::Program;
using ir::Routine;
using ir::RoutineKind;
using ir::StateRole;

using testing::Settings;

Settings operator+(Settings a, const Settings& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
// Layouts that reach the collectives of a step's end.
const Settings kHybrid = {{"parallelism.data_parallel_replicate_degree", "2"}, {"parallelism.data_parallel_shard_degree", "2"}};
const Settings kDdp = kHybrid + Settings{{"partition.preset", "ddp"}}, kZero1 = kHybrid + Settings{{"partition.preset", "zero1"}},
               kZero2 = kHybrid + Settings{{"partition.preset", "zero2"}},
               kZero3 = kHybrid + Settings{{"partition.preset", "zero3"}};
const Settings kTensor = {{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.tensor_parallel_degree", "2"}};
const Settings kTied = {{"model.tie_embeddings", "1"},
                        {"parallelism.pipeline_parallel_degree", "2"},
                        {"parallelism.data_parallel_shard_degree", "2"},
                        {"parallelism.pipeline_parallel_microbatch_size", "1"}};
const Settings kQuantized = kZero3 + Settings{{"partition.quantized_weights", "int8"}, {"partition.quantized_gradients", "int4"}};
const Settings kSecondary = {
    {"parallelism.data_parallel_shard_degree", "4"}, {"partition.preset", "hpz"}, {"cluster.ranks_per_node", "2"}};
// Weights that are cast to float8: from what forward gathers, and before they are gathered.
const Settings kFloat8 = kTensor + Settings{{"model.converters", "quantize.linear.float8"},
                                            {"model.dim", "16"},
                                            {"model.head_dim", "16"},
                                            {"model.ffn_dim", "32"},
                                            {"training.mixed_precision_param", "bfloat16"}};
const Settings kCodes = kFloat8 + Settings{{"quantize.linear.float8.enable_fsdp_float8_all_gather", "true"}};
const Settings kIslands = {{"parallelism.data_parallel_shard_degree", "2"},
                           {"fault_tolerance.enable", "true"},
                           {"fault_tolerance.semi_sync_method", "diloco"},
                           {"fault_tolerance.group_size", "2"},
                           {"fault_tolerance.sync_steps", "4"},
                           {"fault_tolerance.num_fragments", "2"}};
const Settings kJobs = kIslands + kTensor + Settings{{"fault_tolerance.replica_id", "0"}};
const Settings kMuon = kTensor + Settings{{"optimizer.name", "Muon"}};
const Settings kScaled = kTensor + Settings{{"training.mixed_precision_param", "float16"}};
const Settings kNarrow = kZero1 + Settings{{"training.mixed_precision_param", "bfloat16"}};
const Settings kNarrowMoments = kTensor + Settings{{"optimizer.implementation", "fused_opt_states_bf16"}};
const Settings kValidated = kTensor + Settings{{"validation.enable", "true"}};

struct EndDamage {
    const char* name;
    const Settings& layout;
    std::function<bool(Program&)> edit;  // of the first pipeline rank that has a place for it
    const char* refusal;                 // part of it
};
std::ostream& operator<<(std::ostream& out, const EndDamage& d) { return out << d.name; }

// The first op of that kind in a routine of that kind which `edit` can change.
using EditOp = std::function<bool(Program&, Routine&, Op&)>;
std::function<bool(Program&)> in(RoutineKind routine, const char* op, EditOp edit) {
    return [=](Program& p) {
        for (Routine& r : p.routines) {
            for (size_t i = 0; r.kind == routine && i < r.ops.size(); ++i) {
                if (r.ops[i].kind == op && edit(p, r, r.ops[i])) return true;
            }
        }
        return false;
    };
}
bool becomes_copy(Op& op, const char* kind = "rename") {
    if (op.in.size() != 1) return false;
    op.kind = kind, op.kernel = std::string("reference.") + kind;
    op.group.clear(), op.attrs.clear();
    return true;
}
bool sums_nothing(Program&, Routine&, Op& op) { return becomes_copy(op); }
bool takes_maxima(Program&, Routine& r, Op& op) {
    for (const ir::TensorId t : op.in) r.tensors[static_cast<size_t>(t)].placement.reduce = ir::Reduce::Max;
    return true;
}
bool leaves_one_out(Program&, Routine&, Op& op) {
    if (op.in.size() < 2) return false;
    op.in.pop_back(), op.out.pop_back();
    if (!op.accumulate.empty()) op.accumulate.pop_back();
    return true;
}
bool drops(Program&, Routine& r, const Op& op) {
    r.ops.erase(r.ops.begin() + (&op - r.ops.data()));
    return true;
}
bool doubles(Program&, Routine& r, const Op& op) {
    const Op second = op;
    r.ops.insert(r.ops.begin() + (&op - r.ops.data()), second);
    return true;
}
EditOp sets(const char* key, ir::Attr value) {
    return [=](Program&, Routine&, Op& op) { return std::exchange(op.attrs.at(key), value) != value; };
}
// A number of a place (ops/element_places.h) whose elements are in several runs.
EditOp sets_place(size_t at, int64_t value) {
    return [=](Program&, Routine&, Op& op) {
        auto& places = std::get<std::vector<int64_t>>(op.attrs.at("places"));
        const size_t numbers = 6 + std::get<std::vector<int64_t>>(op.attrs.at("shards")).size();
        for (size_t k = 0; k < places.size(); k += numbers) {
            if (places[k + 3] > 1) return std::exchange(places[k + at], value) != value;
        }
        return false;
    };
}
// The next op of the same kind in the routine; nullptr: none.
Op* next_like(Routine& r, Op& op) {
    for (Op* o = &op + 1; o < r.ops.data() + r.ops.size(); ++o) {
        if (o->kind == op.kind) return o;
    }
    return nullptr;
}
std::function<bool(Program&)> state(StateRole role, std::function<void(Program&, ir::State&)> edit) {
    return [=](Program& p) {
        for (ir::State& s : p.states) {
            if (s.role != role) continue;
            edit(p, s);
            return true;
        }
        return false;
    };
}
bool exchanges_names(Program& p, const char* one, const char* other) {
    ir::State *a = nullptr, *b = nullptr;
    for (ir::State& s : p.states) {
        if (s.saved == one && !a) a = &s;
        if (s.saved == other && !b) b = &s;
    }
    if (!a || !b) return false;
    std::swap(a->saved, b->saved);
    return true;
}
// All calls of the first routine of that kind that serves no unit.
bool drops_calls(Program& p, RoutineKind kind, ir::EntryKind entry) {
    for (ir::Entry& e : p.entries) {
        if (e.kind != entry) continue;
        const size_t dropped = std::erase_if(e.calls, [&](const ir::Call& c) {
            const Routine& r = p.routines[static_cast<size_t>(c.routine)];
            return r.kind == kind && r.unit.empty();
        });
        if (dropped > 0) return true;
    }
    return false;
}

const EndDamage kEndDamages[] = {
    {"AReductionOverReplicasSumsNothing", kZero1, in(RoutineKind::ReduceStep, "all_reduce", sums_nothing),
     "leaves the gradient of segment 0 (a partial sum over dp_replicate) in reduced0, where the gradient of segment 0 belongs"},
    {"AReductionOverTensorRanksSumsNothing", kTensor, in(RoutineKind::ReduceStep, "all_reduce", sums_nothing),
     "(a partial sum over tp) in"},
    {"AReductionIsOverAnotherAxis", kZero1,
     in(RoutineKind::ReduceStep, "all_reduce",
        [](Program& p, Routine&, Op& op) {
            op.group = p.mesh.whole(mesh::Axis::dp_shard);
            return true;
        }),
     "sums the gradient of segment 0 (a partial sum over dp_replicate) over dp_shard, where it is no partial sum"},
    {"AReductionIsOverFewerAxes", kDdp,
     in(RoutineKind::ReduceStep, "all_reduce",
        [](Program&, Routine&, Op& op) {
            op.group.pop_back();
            return !op.group.empty();
        }),
     "leaves the gradient of segment 0 (a partial sum over dp_shard) in gradients0"},
    {"AReductionLeavesASegmentOut", kZero1, in(RoutineKind::ReduceStep, "all_reduce", leaves_one_out),
     "leaves the gradient of segment 1 (a partial sum over dp_replicate) in reduced1"},
    {"AReductionIsMadeTwice", kDdp, in(RoutineKind::ReduceStep, "all_reduce", doubles), "where it is no partial sum"},
    {"AReductionAfterTheMicrobatchLeavesASegmentOut", kZero2, in(RoutineKind::ReduceMicro, "reduce_scatter", leaves_one_out),
     "is never"},
    {"AReductionTakesMaxima", kZero1, in(RoutineKind::ReduceStep, "all_reduce", takes_maxima), "takes maxima of the gradient"},
    {"AReductionAfterTheMicrobatchTakesMaxima", kZero3, in(RoutineKind::ReduceMicro, "reduce_scatter", takes_maxima),
     "takes maxima of the gradient of segment 0"},
    {"ASegmentSaysThatItsGradientsAreWhole", kZero1,
     [](Program& p) {
         p.units[0].segments[0].grad_partial = p.mesh.whole(mesh::Axis::dp_shard);
         return true;
     },
     "is partial over 'dp_replicate,dp_shard', and its segment says 'dp_shard'"},
    {"QuantizedGradientsAreRoundedByTheLearningRate", kQuantized,
     [](Program& p) {
         const ir::StateId lr = p.state(StateRole::LearningRate);
         for (Routine& r : p.routines) {
             for (ir::Port& port : r.ports) {
                 if (r.kind == RoutineKind::ReduceStep && p.has_role(port, StateRole::Steps)) port.state = lr;
             }
         }
         for (ir::Entry& e : p.entries) {
             for (ir::Call& c : e.calls) {
                 const Routine& r = p.routines[static_cast<size_t>(c.routine)];
                 if (r.kind == RoutineKind::ReduceStep && r.port_of_state(lr) >= 0)
                     c.bindings[static_cast<size_t>(r.port_of_state(lr))].buffer = p.buffer(lr, 0);
             }
         }
         return true;
     },
     "holds learning_rate, where it needs steps"},
    {"AQuantizedGradientHasAnotherLeastExponent", kQuantized, in(RoutineKind::ReduceMicro, "quantize", sets("least", int64_t{3})),
     "its least exponent is 3, not "},

    {"TheNormLacksASegment", kZero3,
     in(RoutineKind::Stats, "sum_squares", [](Program& p, Routine& r, Op& op) { return next_like(r, op) && drops(p, r, op); }),
     "counts segment 0 0 times in the norm"},
    {"TheNormHasASegmentTwice", kZero3, in(RoutineKind::Stats, "sum_squares", doubles), "counts segment 0 2 times in the norm"},
    {"TheNormHasAnotherSegment", kZero3,
     in(RoutineKind::Stats, "sum_squares",
        [](Program&, Routine& r, Op& op) {
            Op* other = next_like(r, op);
            if (other) op.in = other->in, op.attrs = other->attrs;
            return other != nullptr;
        }),
     "counts segment 0 0 times in the norm"},
    {"TheNormCountsReplicas", kZero3, in(RoutineKind::Stats, "sum_squares", sets("count_if", std::vector<int64_t>{})),
     "counts one rank along '', and the ranks along 'dp_replicate' have the same"},
    {"TheNormLacksAShard", kZero3, in(RoutineKind::Stats, "sum_squares", sets("count_if", std::vector<int64_t>{0, 1})),
     "counts one rank along 'dp_replicate,dp_shard', and the ranks along 'dp_replicate' have the same"},
    {"TheNormIsOfGradientsBeforeTheirReduction", kTensor,
     [](Program& p) {
         for (Routine& r : p.routines) {
             if (r.kind == RoutineKind::ReduceStep) r.ops.clear();
         }
         return true;
     },
     "a partial sum over tp"},
    {"TheLossCountsReplicas", kTensor, in(RoutineKind::Stats, "owned", sets("count_if", std::vector<int64_t>{})),
     "counts one rank along '', and the ranks along 'tp' have the same"},
    {"TheLossIsLeftOut", kTensor,
     in(RoutineKind::Stats, "owned",
        [](Program&, Routine&, Op& op) {
            op.in.clear();
            return true;
        }),
     "takes the loss where there is none, or leaves it out"},
    {"NormAndLossAreExchanged", kTensor,
     in(RoutineKind::Stats, "step_control",
        [](Program&, Routine&, Op& op) {
            std::swap(op.in[0], op.in[1]);
            return true;
        }),
     "holds loss_sum, where it needs squared_norm"},
    {"NormAndLossAreMaxima", kTensor, in(RoutineKind::Stats, "all_reduce", takes_maxima), "takes maxima of squared_norm"},

    {"AnUpdateHasItsMomentsExchanged", kZero3,
     in(RoutineKind::Update, "adamw",
        [](Program&, Routine&, Op& op) {
            std::swap(op.in[2], op.in[3]);
            std::swap(op.out[1], op.out[2]);
            return true;
        }),
     "which checkpoints call 'exp_avg_sq.{}', in the place of 'exp_avg.{}'"},
    {"WeightsFollowTheOldMasterWeights", kNarrow,
     in(RoutineKind::Update, "adamw",
        [](Program&, Routine& r, Op& op) {
            if (op.out.size() < 4) return false;
            Op cast;
            cast.kind = "cast", cast.kernel = "reference.cast";
            cast.in = {op.in[0]}, cast.out = {op.out[3]};
            op.out.pop_back();
            r.ops.insert(r.ops.begin() + (&op - r.ops.data()), cast);
            return true;
        }),
     "master0 is cast before its update"},
    {"ANormDecays", kZero3,
     in(RoutineKind::Update, "adamw",
        [](Program&, Routine&, Op& op) { return std::get<double>(std::exchange(op.attrs["weight_decay"], 0.1)) == 0; }),
     "decays segment 1, which has no decay"},
    {"AMatrixDoesNotDecay", kZero3,
     in(RoutineKind::Update, "adamw",
        [](Program& p, Routine& r, Op& op) {
            op.attrs["weight_decay"] = 0.0;
            return p.unit(r.unit)->block == "layer";
        }),
     "weight_decay is 0.1, and 0 elsewhere"},
    {"ASegmentSaysThatItDoesNotDecay", kZero3,
     [](Program& p) {
         p.units[0].segments[0].decay = false;
         return true;
     },
     "has another weight decay than its segment"},
    {"OneUpdateHasAnotherBeta", kZero3, in(RoutineKind::Update, "adamw", sets("beta2", 0.5)), "beta2 is "},
    {"OneUpdateHasAnotherEpsilon", kZero3, in(RoutineKind::Update, "adamw", sets("eps", 0.5)), "eps is "},
    {"BiasIsCorrectedByAnotherBeta", kZero3, in(RoutineKind::Stats, "step_control", sets("beta1", 0.5)), "beta1 is "},

    {"OneUpdateRoundsFromAnotherSeed", kNarrowMoments, in(RoutineKind::Update, "adamw", sets("seed", int64_t{9})), "seed is "},
    {"AnUpdateDrawsForAnotherParameter", kNarrowMoments, in(RoutineKind::Update, "adamw", sets_place(1, 77)),
     "draws for another parameter than"},
    {"AnUpdateDrawsInOtherRuns", kNarrowMoments, in(RoutineKind::Update, "adamw", sets_place(2, 5)),
     "draws for other elements of"},
    {"AnUpdateDrawsInRunsThatAreElsewhere", kNarrowMoments, in(RoutineKind::Update, "adamw", sets_place(4, 6)),
     "draws for other elements of"},
    {"AnUpdateDrawsForTheElementsOfAnotherRank", kNarrowMoments, in(RoutineKind::Update, "adamw", sets_place(6, 0)),
     "draws for other elements of"},
    {"AnUpdateDrawsAlongOtherRanks", kNarrowMoments, in(RoutineKind::Update, "adamw", sets("shards", std::vector<int64_t>{0})),
     "draws along other sub-axes than shard its segment"},
    {"AnUpdateDrawsForOneParameterLess", kNarrowMoments,
     in(RoutineKind::Update, "adamw",
        [](Program&, Routine&, Op& op) {
            auto& places = std::get<std::vector<int64_t>>(op.attrs.at("places"));
            const size_t numbers = 6 + std::get<std::vector<int64_t>>(op.attrs.at("shards")).size();
            if (places.size() == numbers) return false;
            places.resize(places.size() - numbers);
            return true;
        }),
     "draws for other parameters than its segment has"},

    {"MomentsAreSavedUnderEachOthersName", kZero3, [](Program& p) { return exchanges_names(p, "exp_avg.{}", "exp_avg_sq.{}"); },
     "which checkpoints call 'exp_avg_sq.{}', in the place of 'exp_avg.{}'"},
    {"AMomentIsSavedAsTheWeights", kZero3, [](Program& p) { return exchanges_names(p, "{}", "exp_avg.{}"); },
     "checkpoints call it 'exp_avg.{}', not '{}'"},
    {"AMomentIsNotSaved", kZero3, state(StateRole::Moment, [](Program&, ir::State& s) { s.saved.clear(); }),
     "which checkpoints call '', in the place of 'exp_avg.{}'"},
    {"WeightsAreNotSaved", kZero3, state(StateRole::Weights, [](Program&, ir::State& s) { s.saved.clear(); }),
     "checkpoints call it '', not '{}'"},
    {"TheNumberOfStepsIsNotSaved", kZero3, state(StateRole::Steps, [](Program&, ir::State& s) { s.saved.clear(); }),
     "steps: checkpoints call it '', not 'steps'"},
    {"AMomentIsOfAnotherPipelineRank", kZero3, state(StateRole::Moment, [](Program&, ir::State& s) { ++s.owner; }),
     "is of pipeline rank 1, and 0 updates it"},
    {"WeightsDoNotOutliveTheRun", kNarrow, state(StateRole::Weights, [](Program&, ir::State& s) { s.scope = ir::Scope::Entry; }),
     "is of the scope entry, not run"},
    {"AMomentBeginsWithOnes", kZero3, state(StateRole::Moment, [](Program&, ir::State& s) { s.init = 1.0; }),
     "does not begin with zeros"},
    {"TwoParametersAreSavedUnderOneName", kZero3,
     [](Program& p) {
         p.params[1].name = p.params[2].name;
         return true;
     },
     "another parameter is called"},

    {"AnEvaluationIsNeverSummed", kValidated, [](Program& p) { return drops_calls(p, RoutineKind::Stats, ir::EntryKind::Eval); },
     "the loss is never summed over all ranks"},
    {"AnEvaluationSumsItsLossOverNothing", kValidated,
     [](Program& p) {
         for (Routine& r : p.routines) {
             if (r.kind != RoutineKind::Stats || r.entry != ir::EntryKind::Eval) continue;
             for (Op& op : r.ops) {
                 if (op.kind == "all_reduce") return becomes_copy(op, "copy");
             }
         }
         return false;
     },
     "leaves loss_sum (a partial sum over dp_shard) in total_loss"},
    {"TheNumberOfTargetsIsSummedOverNothing", kTensor,
     in(RoutineKind::Begin, "all_reduce", [](Program&, Routine&, Op& op) { return becomes_copy(op, "copy"); }),
     "where it needs target_count"},

    {"TheMeanOfIslandsIsNone", kIslands,
     in(RoutineKind::Outer, "all_reduce", [](Program&, Routine&, Op& op) { return becomes_copy(op, "copy"); }),
     "holds this island's share of the change of segment 0 (a partial sum over island), where it needs the mean change"},
    {"TheMeanOfIslandsIsTheirMaximum", kIslands, in(RoutineKind::Outer, "all_reduce", takes_maxima),
     "takes maxima of this island's share"},
    {"TheMeanOfIslandsIsTheirSum", kIslands, in(RoutineKind::Outer, "outer_gradient", sets("scale", 1.0)),
     "takes 1 of a change, and there are 2 islands"},
    {"FragmentsAreExchanged", kIslands,
     [](Program& p) {
         std::vector<ir::Entry*> outer;
         for (ir::Entry& e : p.entries) {
             if (e.kind == ir::EntryKind::Outer) outer.push_back(&e);
         }
         if (outer.size() < 2) return false;
         std::swap(outer[0]->fragment, outer[1]->fragment);
         return true;
     },
     "meets in fragment 1, and is of fragment 0"},
    {"OneSegmentMeetsAtAnotherRate", kIslands, in(RoutineKind::Outer, "outer_sgd", sets("lr", 0.25)), "lr is "},
    {"JobsDoNotMeet", kJobs, in(RoutineKind::Outer, "meet", [](Program&, Routine&, Op& op) { return becomes_copy(op, "copy"); }),
     "takes 0.5 of a change, and there are 1 islands"},

    {"TheLossScaleIsLeftOut", kScaled,
     in(RoutineKind::Stats, "step_control",
        [](Program&, Routine&, Op& op) {
            op.in.pop_back();
            return true;
        }),
     "has not the operands of a step with or without a loss scale"},
    {"TheLossScaleIsNotUpdated", kScaled, in(RoutineKind::Stats, "update_loss_scale", drops),
     "leaves loss_scale in loss_scale, where the next loss scale belongs"},
    {"TheLossScaleIsNotSaved", kScaled, state(StateRole::LossScale, [](Program&, ir::State& s) { s.saved.clear(); }),
     "loss_scale: checkpoints call it '', not 'loss_scale'"},
    {"ALargestSizeLacksAMember", kCodes,
     in(RoutineKind::Fetch, "member_amax",
        [](Program&, Routine&, Op& op) {
            auto& ranges = std::get<std::vector<int64_t>>(op.attrs["ranges"]);
            if (ranges.size() < 6) return false;
            ranges.resize(ranges.size() - 3);
            return true;
        }),
     "finds the largest size of other weights than share a scale"},
    {"ALargestSizeIsOfOneRank", kCodes,
     in(RoutineKind::Fetch, "all_reduce",
        [](Program& p, Routine& r, Op& op) {
            const Op whole = op;
            drops(p, r, op);
            for (size_t i = 0; i < whole.in.size(); ++i) {
                Op one = whole;
                one.in = {whole.in[i]}, one.out = {whole.out[i]};
                r.ops.push_back(one);
                becomes_copy(r.ops.back());
            }
            return true;
        }),
     "over"},
    {"LargestSizesAreAddedUp", kCodes,
     in(RoutineKind::Fetch, "all_reduce",
        [](Program&, Routine& r, Op& op) {
            for (const ir::TensorId t : op.in) r.tensors[static_cast<size_t>(t)].placement.reduce = ir::Reduce::Sum;
            return true;
        }),
     "adds up the largest size of weights"},
    {"ALargestSizeIsNotOfWhatIsRead", kFloat8,
     in(RoutineKind::Fetch, "member_amax", [](Program&, Routine&, Op& op) { return op.attrs.erase("rounded") == 1; }),
     "is of f32, and bf16 is read"},
    {"ALargestSizeIsRoundedToAnotherType", kFloat8, in(RoutineKind::Fetch, "member_amax", sets("rounded", std::string("f16"))),
     "is of f32, and bf16 is read"},
    {"CodesAreScaledAsThoseOfOtherWeights", kCodes,
     in(RoutineKind::Gather, "member_float8",
        [](Program&, Routine&, Op& op) {
            if (op.in.size() < 3) return false;
            std::swap(op.in[1], op.in[2]);
            return true;
        }),
     "by the largest size of weights of "},
    {"AMemberIsNoCode", kCodes,
     in(RoutineKind::Gather, "member_float8",
        [](Program&, Routine&, Op& op) {
            auto& ranges = std::get<std::vector<int64_t>>(op.attrs["ranges"]);
            ranges.erase(ranges.begin(), ranges.begin() + 3);
            return true;
        }),
     "casts other members than the segment has"},
    {"LargestSizesAreNotFetched", kCodes,
     [](Program& p) {
         for (ir::Entry& e : p.entries) {
             const auto fetches = [&](const ir::Call& c) {
                 return p.routines[static_cast<size_t>(c.routine)].kind == RoutineKind::Fetch;
             };
             const auto call = std::find_if(e.calls.begin(), e.calls.end(), fetches);
             if (call == e.calls.end()) continue;
             const auto at = static_cast<int>(call - e.calls.begin());
             e.calls.erase(call);
             for (ir::Call& c : e.calls) {
                 std::erase(c.waits, at);
                 for (int& w : c.waits) w -= w > at ? 1 : 0;
             }
             return true;
         }
         return false;
     },
     "is read before anything is written there"},
    {"TheForwardScalesByOtherWeights", kCodes,
     in(RoutineKind::Forward, "float8_scale",
        [](Program&, Routine& r, Op& op) {
            Op* const other = next_like(r, op);
            if (!other) return false;
            std::swap(op.in, other->in);
            return true;
        }),
     "not of w"},
    {"ACopyOfTheWeightsIsNotFetched", kSecondary, in(RoutineKind::Fetch, "all_gather", leaves_one_out), "is never written"},

    {"AMirrorsGradientIsAddedTwice", kTied,
     in(RoutineKind::Transfer, "recv",
        [](Program&, Routine& r, Op& op) {
            Op* add = &op + 1;
            if (add >= r.ops.data() + r.ops.size() || add->kind != "accumulate") return false;
            const Op second = *add;
            r.ops.push_back(second);
            return true;
        }),
     "adds to "},
    {"MatricesAreOrthogonalizedForEachOther", kMuon,
     in(RoutineKind::Update, "pack",
        [](Program&, Routine& r, Op& op) {
            for (size_t a = 0; a < op.in.size(); ++a) {
                for (size_t b = a + 1; b < op.in.size(); ++b) {
                    const ir::Tensor &x = r.tensors[static_cast<size_t>(op.in[a])], &y = r.tensors[static_cast<size_t>(op.in[b])];
                    if (x.placement != y.placement || x.dims.size() != y.dims.size() ||
                        x.name.substr(0, 1) != y.name.substr(0, 1))
                        continue;
                    std::swap(op.in[a], op.in[b]);
                    return true;
                }
            }
            return false;
        }),
     "of matrix "},
    {"AMatrixIsNotOrthogonalizedToTheEnd", kMuon,
     in(RoutineKind::Update, "reshape",
        [](Program&, Routine& r, Op& op) {
            const auto maker_of = [&](ir::TensorId t) {
                return std::find_if(r.ops.begin(), r.ops.end(), [=](const Op& o) { return o.kind != "unpack" && o.out[0] == t; });
            };
            const auto scale = maker_of(op.in[0]);
            if (scale == r.ops.end() || scale->kind != "scale") return false;
            op.in = {maker_of(scale->in[0])->in.back()};
            return true;
        }),
     "holds nothing, which is of no segment"},
    {"ACoefficientOfTheIterationIsAnother", kMuon,
     in(RoutineKind::Update, "scale",
        [](Program&, Routine&, Op& op) { return op.number("c") == 3.4445 && (op.attrs["c"] = 3.4, true); }),
     "is not as Newton and Schulz's iteration has it"},
    {"AMatrixIsNotDividedByItsNorm", kMuon,
     in(RoutineKind::Update, "unary",
        [](Program&, Routine&, Op& op) {
            op.attrs["fn"] = "silu";
            op.attrs.erase("eps");
            return true;
        }),
     "op 1 of 64 is not as Newton and Schulz's iteration has it"},
    {"AMatrixIsScaledOtherwise", kMuon,
     in(RoutineKind::Update, "scale",
        [](Program&, Routine& r, Op& op) {
            const bool is_last = &op + 1 < r.ops.data() + r.ops.size() && (&op + 1)->kind == "reshape";
            return is_last && (op.attrs["c"] = 1.1 * op.number("c"), true);
        }),
     "is no factor of a matrix of"},
    {"MuonsMomentumIsNotSaved", kMuon,
     [](Program& p) {
         for (ir::State& s : p.states) {
             if (s.saved == "momentum_buffer.{}") return s.saved.clear(), true;
         }
         return false;
     },
     "in the place of 'momentum_buffer.{}'"},
};

class DamagedStepEnd : public ::testing::TestWithParam<EndDamage> {};

TEST_P(DamagedStepEnd, IsRefused) {
    compile::Compiled compiled = testing::compile_recipe(testing::small_recipe(GetParam().layout), testing::Backend::Reference);
    const std::optional<check::Refusal> sound = check::prove(compiled.of_ranks());
    ASSERT_FALSE(sound.has_value()) << sound->message;
    const bool found = std::any_of(compiled.programs.begin(), compiled.programs.end(), GetParam().edit);
    ASSERT_TRUE(found) << "no place for this damage";
    const std::optional<check::Refusal> refusal = check::prove(compiled.of_ranks());
    ASSERT_TRUE(refusal.has_value());
    EXPECT_NE(refusal->message.find(GetParam().refusal), std::string::npos) << refusal->message;
}

INSTANTIATE_TEST_SUITE_P(Check, DamagedStepEnd, ::testing::ValuesIn(kEndDamages),
                         [](const auto& info) { return std::string(info.param.name); });

// A call that nothing else of its entry needs.
TEST(DamagedGeneration, LacksNoCall) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.entries = {ir::EntryKind::Prefill, ir::EntryKind::Decode};
    const compile::Compiled sound = compile::compile(testing::small_recipe(), options);
    ASSERT_FALSE(check::prove(sound.of_ranks()));
    for (size_t e = 0; e < sound.programs[0].entries.size(); ++e) {
        compile::Compiled damaged = sound;
        damaged.programs[0].entries[e].calls.pop_back();
        const auto refusal = check::prove(damaged.of_ranks());
        ASSERT_TRUE(refusal.has_value());
        EXPECT_NE(refusal->message.find("times, not "), std::string::npos) << refusal->message;
    }
}

}  // namespace
}  // namespace lockstep::check_test
