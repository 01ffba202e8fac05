// Programs with one address damaged, each of a kind that the random mutations do not draw: `check` must name it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>

#include "check/check.h"
#include "compile/compile.h"
#include "kernels/kernel.h"
#include "tests/base/plain.h"

namespace lockstep::check_test {
namespace {

const char* const kRecipe =
    "[training]\nseq_len = 8\nlocal_batch_size = 1\nglobal_batch_size = 4\n[parallelism]\ndata_parallel_shard_degree = 2\n"
    "[validation]\nenable = true\n[model]\nname = \"llama3\"\ndim = 16\nn_layers = 2\nn_heads = 4\nn_kv_heads = 2\n"
    "head_dim = 4\nffn_dim = 24\nvocab_size = 30\n";
const char* const kPadded = "qk_norm = 1\n";  // of the model
const char* const kSaving = "[checkpoint]\nenable = true\nasync_mode = \"async\"\n";

struct Damage {
    const char* name;
    std::function<void(ir::Program&)> edit;
    const char* refusal;    // part of it
    const char* more = "";  // of the recipe
};
std::ostream& operator<<(std::ostream& out, const Damage& d) { return out << d.name; }

ir::Buffer& buffer(ir::Program& p, const std::string& name_begins) {
    for (ir::Buffer& b : p.buffers) {
        if (b.name.starts_with(name_begins)) return b;
    }
    throw std::runtime_error("no buffer " + name_begins);
}
// The first of the kind that a call of this entry uses.
ir::Buffer& buffer_of(ir::Program& p, ir::EntryKind entry, ir::MemoryKind kind) {
    for (const ir::Call& c : p.entry(entry)->calls) {
        for (const ir::Binding& b : c.bindings) {
            if (ir::Buffer& used = p.buffers[static_cast<size_t>(b.buffer)]; used.kind == kind) return used;
        }
    }
    throw std::runtime_error("no such buffer");
}
ir::Buffer& scratch_of(ir::Program& p, ir::EntryKind entry) {
    for (const ir::Call& c : p.entry(entry)->calls) {
        if (c.scratch >= 0) return p.buffers[static_cast<size_t>(c.scratch)];
    }
    throw std::runtime_error("no such buffer");
}
ir::Routine& routine(ir::Program& p, const std::string& name) {
    return *std::find_if(p.routines.begin(), p.routines.end(), [&](const ir::Routine& r) { return r.name == name; });
}
ir::Tensor& temporary(ir::Routine& r) {
    return *std::find_if(r.tensors.begin(), r.tensors.end(), [](const ir::Tensor& t) { return t.port < 0 && t.view_of < 0; });
}
constexpr int64_t kAligned = 64;

ir::Tensor& tensor(ir::Routine& r, const std::string& name) { return r.tensors.at(static_cast<size_t>(r.find(name))); }
int64_t bytes(const ir::Program& p, const ir::Routine& r, const ir::Tensor& t) { return ir::local_bytes(p.mesh, r, t); }
// Two tensors of one port that have the same size.
std::pair<ir::Tensor*, ir::Tensor*> alike_in_port(const ir::Program& p, ir::Routine& r, const std::string& port) {
    const std::vector<ir::TensorId> all = r.port_tensors(r.port(port));
    for (ir::TensorId a : all) {
        for (ir::TensorId b : all) {
            ir::Tensor &x = r.tensors[static_cast<size_t>(a)], &y = r.tensors[static_cast<size_t>(b)];
            if (a < b && bytes(p, r, x) == bytes(p, r, y)) return {&x, &y};
        }
    }
    throw std::runtime_error("no two alike in " + port);
}
// The first op that has two temporaries, neither a view, among (operands, results), (operands, operands) or (results, results).
struct Pair {
    ir::Op* op;
    ir::Tensor *first, *second;
};
enum class Reads { Any, Last };  // of the first one: whether later ops may read it
Pair two_of(ir::Routine& r, std::vector<ir::TensorId> ir::Op::*firsts, std::vector<ir::TensorId> ir::Op::*seconds,
            Reads reads = Reads::Any) {
    for (ir::Op& op : r.ops) {
        const auto is_read_later = [&](ir::TensorId t) {
            return std::any_of(&op + 1, r.ops.data() + r.ops.size(),
                               [&](const ir::Op& o) { return std::count(o.in.begin(), o.in.end(), t) > 0; });
        };
        for (ir::TensorId a : op.*firsts) {
            if (reads == Reads::Last && is_read_later(a)) continue;
            for (ir::TensorId b : op.*seconds) {
                ir::Tensor &x = r.tensors[static_cast<size_t>(a)], &y = r.tensors[static_cast<size_t>(b)];
                if (a != b && x.port < 0 && y.port < 0 && x.view_of < 0 && y.view_of < 0 && op.kind != "rename")
                    return {&op, &x, &y};
            }
        }
    }
    throw std::runtime_error("no such op in " + r.name);
}
// The first op of a kind, and its routine.
std::pair<ir::Routine*, ir::Op*> op_of(ir::Program& p, const std::string& kind) {
    for (ir::Routine& r : p.routines) {
        for (ir::Op& op : r.ops) {
            if (op.kind == kind) return {&r, &op};
        }
    }
    throw std::runtime_error("no op " + kind);
}

const Damage kDamages[] = {
    {"EvalsActivationsLieOverAMoment",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Eval, ir::MemoryKind::Activations).offset_bytes = buffer(p, "exp_avg").offset_bytes;
     },
     "eval: call"},
    {"EvalsScratchLiesOverAMoment",
     [](ir::Program& p) { scratch_of(p, ir::EntryKind::Eval).offset_bytes = buffer(p, "exp_avg_sq").offset_bytes; },
     "overwrites the state exp_avg_sq"},
    {"EvalsActivationsLieOverTheStepCount",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Eval, ir::MemoryKind::Activations).offset_bytes = buffer(p, "steps").offset_bytes;
     },
     "eval: call"},
    {"EvalsActivationsLieOverACopyThatIsBeingSaved",
     [](ir::Program& p) {
         ir::Buffer& activations = buffer_of(p, ir::EntryKind::Eval, ir::MemoryKind::Activations);
         activations.place = Place::Host, activations.offset_bytes = buffer(p, "snapshot.").offset_bytes;
     },
     "lies in the host's memory, where the call needs it in the device's", kSaving},
    {"ACopyLiesInTheDevicesMemory",
     [](ir::Program& p) {
         ir::Buffer& copy = buffer(p, "snapshot.weights.layer");
         copy.place = Place::Device, copy.offset_bytes = p.arena_bytes[Place::Device], p.arena_bytes[Place::Device] += copy.bytes;
     },
     "snapshot.weights.layer[0] lies in the device's memory, where the call needs it in the host's", kSaving},
    {"ACopyHasAnOffsetOfTheDevicesArena",
     [](ir::Program& p) { buffer(p, "snapshot.weights.layer").offset_bytes = p.arena_bytes[Place::Device] - kAligned; },
     "buffer snapshot.weights.layer[0] lies across the host's arena's end", kSaving},
    {"ACopyLiesBeforeTheHostsArena", [](ir::Program& p) { buffer(p, "snapshot.weights.layer").offset_bytes = -kAligned; },
     "snapshot.weights.layer[0] lies outside the arena", kSaving},
    {"ACopyReachesBehindTheHostsArena", [](ir::Program& p) { p.arena_bytes[Place::Host] -= kAligned; },
     "lies across the host's arena's end", kSaving},
    {"TwoCopiesShareBytes",
     [](ir::Program& p) {
         buffer(p, "snapshot.weights.layer").offset_bytes = buffer(p, "snapshot.exp_avg.layer").offset_bytes + kAligned;
     },
     "shares bytes with snapshot.", kSaving},
    {"AScratchLiesInTheHostsMemory",
     [](ir::Program& p) {
         ir::Buffer& scratch = scratch_of(p, ir::EntryKind::Train);
         scratch.place = Place::Host, scratch.offset_bytes = p.arena_bytes[Place::Host],
         p.arena_bytes[Place::Host] += scratch.bytes;
     },
     "lies in the host's memory, where the call needs it in the device's", kSaving},
    {"AStateIsMovedToTheHostsMemory",
     [](ir::Program& p) {
         p.states[static_cast<size_t>(p.state(ir::StateRole::Moment, "layer"))].place = Place::Host;
         for (ir::Buffer& b : p.buffers) {
             if (b.state < 0 || p.states[static_cast<size_t>(b.state)].place == b.place) continue;
             b.place = Place::Host, b.offset_bytes = p.arena_bytes[Place::Host], p.arena_bytes[Place::Host] += b.bytes;
         }
     },
     "uses the host's memory, which no kernel reaches", kSaving},
    {"AKernelMakesACopy", [](ir::Program& p) { routine(p, "snapshot.layer").ops[0].kernel = "reference.rename"; },
     "snapshot.layer: rename uses the host's memory, which no kernel reaches", kSaving},
    {"TheStepsActivationsLieOverEvalsInput",
     [](ir::Program& p) {
         buffer_of(p, ir::EntryKind::Train, ir::MemoryKind::Activations).offset_bytes = buffer(p, "eval.in.").offset_bytes;
     },
     "train: call"},
    {"ABufferLiesBeforeTheArena", [](ir::Program& p) { buffer(p, "act").offset_bytes = -kAligned; }, "lies outside the arena"},
    {"ABufferLiesBehindTheArena", [](ir::Program& p) { buffer(p, "act").offset_bytes = p.arena_bytes[Place::Device]; },
     "lies across the arena's end"},
    {"ABufferEndsBehindAllAddresses", [](ir::Program& p) { buffer(p, "act").offset_bytes = INT64_MAX / kAligned * kAligned; },
     "lies across the arena's end"},
    {"ACallHasNoScratch",
     [](ir::Program& p) {
         for (ir::Call& c : p.entries[0].calls) c.scratch = -1;
     },
     "has no scratch"},
    {"ATemporaryLiesBehindItsScratch",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         temporary(r).offset_bytes = r.scratch_bytes;
     },
     "lies outside the scratch"},
    {"ATemporaryLiesBeforeItsScratch", [](ir::Program& p) { temporary(routine(p, "layer.backward")).offset_bytes = -kAligned; },
     "lies outside the scratch"},
    {"AWorkspaceLiesBehindItsScratch",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         r.ops[0].workspace_bytes = kAligned;
         r.ops[0].workspace_offset_bytes = r.scratch_bytes;
     },
     "op 0 einsum: its workspace lies outside the scratch"},
    {"ATensorLiesBehindItsPort",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         r.tensors[static_cast<size_t>(r.port_tensors(r.port("x"))[0])].offset_bytes = kAligned;
     },
     "x of port x lies outside its port"},
    {"APortReachesBehindItsBuffer",
     [](ir::Program& p) { p.entries[0].calls[0].bindings[0].offset_bytes = INT64_MAX / kAligned * kAligned; },
     "reaches past buffer"},
    {"APortIsBoundBesideItsBuffersBeginning",
     [](ir::Program& p) {
         for (ir::Call& c : p.entries[0].calls) {
             for (size_t k = 0; k < c.bindings.size(); ++k) {
                 if (p.routines[static_cast<size_t>(c.routine)].ports[k].bytes == 8) c.bindings[k].offset_bytes = 8;
             }
         }
     },
     "is bound at 8, which is not where port"},
    {"AScratchIsAState",
     [](ir::Program& p) {
         for (ir::Call& c : p.entries[0].calls) {
             if (c.scratch >= 0) c.scratch = static_cast<int>(&buffer(p, "weights.embed") - p.buffers.data());
         }
         buffer(p, "weights.embed").bytes = p.arena_bytes[Place::Device] - buffer(p, "weights.embed").offset_bytes;
     },
     "overwrites the state"},
    {"AScratchLiesOverTheResultOfTheStep",
     [](ir::Program& p) {
         std::vector<ir::Call>& calls = p.entries[0].calls;
         calls.push_back(*std::find_if(calls.begin(), calls.end(), [](const ir::Call& c) { return c.scratch >= 0; }));
         ir::Buffer scratch = p.buffers[static_cast<size_t>(calls.back().scratch)];
         scratch.offset_bytes = buffer(p, "control").offset_bytes;
         calls.back().scratch = static_cast<int>(p.buffers.size());
         p.buffers.push_back(scratch);
     },
     "overwrites the entry's result control"},
    {"ASnapshotHasAScratch",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "snapshot.layer");
         r.ops[0].workspace_bytes = r.scratch_bytes = kAligned;
         r.ops[0].workspace_offset_bytes = 0;
         for (ir::Entry& e : p.entries) {
             for (ir::Call& c : e.calls) {
                 if (&p.routines[static_cast<size_t>(c.routine)] == &r)
                     c.scratch = static_cast<int>(&scratch_of(p, ir::EntryKind::Train) - p.buffers.data());
             }
         }
     },
     "is used during a step", kSaving},
    {"AFrameIsReadElsewhere",
     [](ir::Program& p) {
         const auto [a, b] = alike_in_port(p, routine(p, "layer.backward"), "frame");
         std::swap(a->offset_bytes, b->offset_bytes);
     },
     "is read otherwise than written"},
    {"TwoTensorsOfAFrameShareBytes",
     [](ir::Program& p) {
         const auto [a, b] = alike_in_port(p, routine(p, "layer.forward"), "frame");
         a->offset_bytes = b->offset_bytes;
     },
     "in the end"},
    {"AParameterIsReadElsewhere",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         std::swap(tensor(r, "wo").offset_bytes, tensor(r, "w2").offset_bytes);
     },
     "layer.forward: wo of port params.layer does not lie where its unit, state or buffer has it"},
    {"APortsTensorIsAView",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         tensor(r, "y").view_of = r.find("x");
     },
     "y of port y is a view"},
    {"APortHasASecondTensor",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         tensor(r, "n1").port = r.port("y");
     },
     "is a second one, and a port of its kind has one tensor"},
    {"APortsTensorStandsBetweenElements",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         r.tensors[static_cast<size_t>(r.port_tensors(r.port("frame"))[0])].offset_bytes += 2;
     },
     "begins between two elements"},
    {"ATemporaryBeginsBetweenElements", [](ir::Program& p) { temporary(routine(p, "layer.backward")).offset_bytes += 2; },
     "begins between two elements"},
    {"AViewOfItself",
     [](ir::Program& p) {
         ir::Tensor& t = temporary(routine(p, "layer.forward"));
         t.view_of = static_cast<ir::TensorId>(&t - routine(p, "layer.forward").tensors.data());
     },
     "is a view of itself"},
    {"AViewOfNoTensor", [](ir::Program& p) { temporary(routine(p, "layer.forward")).view_of = 1000; }, "views no tensor"},
    {"AViewOfAnotherTensor",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         tensor(r, "k_all").view_of = r.find("v");
     },
     "op 6 rename: k_all is a view of v, which is not placed where its operand k_rot is"},
    {"AResultLiesInAPortThatIsOnlyRead",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.forward");
         const auto last = std::find_if(r.tensors.rbegin(), r.tensors.rend(), [&](const ir::Tensor& t) {
             return t.port < 0 && t.view_of < 0 && bytes(p, r, t) == bytes(p, r, tensor(r, "x"));
         });
         last->view_of = r.find("x");
     },
     "into port x, which it may only read"},
    {"TemporariesShareBytes",
     [](ir::Program& p) {
         const Pair found = two_of(routine(p, "layer.backward"), &ir::Op::in, &ir::Op::in);
         found.second->offset_bytes = found.first->offset_bytes;
     },
     "whose bytes hold"},
    {"AResultLiesOverItsOperand",
     [](ir::Program& p) {
         const Pair found = two_of(routine(p, "layer.backward"), &ir::Op::in, &ir::Op::out, Reads::Last);
         found.second->offset_bytes = found.first->offset_bytes;
     },
     "lies over its operand"},
    {"TwoResultsShareBytes",
     [](ir::Program& p) {
         const Pair found = two_of(routine(p, "layer.backward"), &ir::Op::out, &ir::Op::out);
         found.second->offset_bytes = found.first->offset_bytes;
     },
     "its results"},
    {"AKernelMayNotWriteWhereItReads",
     [](ir::Program& p) {
         for (ir::Routine& r : p.routines) {
             for (ir::Op& op : r.ops) op.attrs.erase("in_place");
         }
     },
     "lies over its operand"},
    {"AWorkspaceLiesOverAnOperand",
     [](ir::Program& p) {
         const Pair found = two_of(routine(p, "layer.backward"), &ir::Op::in, &ir::Op::in);
         found.op->workspace_bytes = kAligned;
         found.op->workspace_offset_bytes = found.first->offset_bytes;
     },
     "its workspace lies over"},
    {"AWorkspaceIsOffItsAlignment",
     [](ir::Program& p) {
         ir::Op& op = *two_of(routine(p, "layer.backward"), &ir::Op::in, &ir::Op::out).op;
         op.workspace_bytes = kAligned;
         op.workspace_offset_bytes = 4;
     },
     "its workspace is not aligned"},
    {"AMomentIsReadThatIsNotTheOneWritten",
     [](ir::Program& p) {
         ir::Op& op = *op_of(p, "adamw").second;
         op.in[2] = op.in[1];
     },
     "its kernel reads gradients0 where it writes exp_avg0, which is elsewhere"},
    {"AnUpdateRunsOverAnotherSegmentsGradients",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "update.layer");
         std::swap(r.ops[0].in[1], r.ops[1].in[1]);
     },
     "runs over weights0, and gradients1 has another number of elements"},
    {"AnUpdateObeysAnotherScalar", [](ir::Program& p) { op_of(p, "adamw").second->in[4] = 0; },
     "its last operand is the step's control"},
    {"AnOpAddsToAResultThatItLacks",
     [](ir::Program& p) {
         for (ir::Op& op : routine(p, "layer.backward").ops) {
             if (!op.accumulate.empty()) op.accumulate.push_back(7);
         }
     },
     "adds to a result that it lacks"},
    {"OneLaunchAddsToANewSumAndToAnOldOne",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "reduce_micro.layer");
         const auto launch = std::find_if(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return op.out.size() == 2; });
         ir::Op second = *launch;
         second.in = {launch->in[1]}, second.out = {launch->out[1]}, second.accumulate = {0};
         r.ops.insert(launch, second);
     },
     "one of them may be new and the other not"},
    {"ASumIsReadBeforeAnythingIsAddedToIt",
     [](ir::Program& p) {
         ir::Routine& r = routine(p, "layer.backward");
         const auto add = std::find_if(r.ops.begin(), r.ops.end(), [](const ir::Op& op) { return !op.accumulate.empty(); });
         ir::Op early = *add;
         early.kind = "accumulate", early.attrs.clear(), early.in = {r.find("grad.attention_norm")},
         early.out = {r.find("grad.ffn_norm")};
         early.kernel = "reference.accumulate";
         early.accumulate = {0};
         r.ops.insert(r.ops.begin(), early);
     },
     "reads grad.attention_norm before it is added to"},
    {"PaddingIsClearedThatIsNone",
     [](ir::Program& p) { --std::get<std::vector<int64_t>>(op_of(p, "zero_padding").second->attrs["ranges"])[0]; },
     "some of them are no padding", kPadded},
    {"PaddingIsClearedBehindItsTensor",
     [](ir::Program& p) { std::get<std::vector<int64_t>>(op_of(p, "zero_padding").second->attrs["ranges"]).back() = 1 << 20; },
     "its ranges do not ascend inside the", kPadded},
};

class DamagedPlan : public ::testing::TestWithParam<Damage> {};

TEST_P(DamagedPlan, IsRefused) {
    const compile::Recipe recipe =
        lockstep::testing::plain(compile::Recipe::from_text(std::string(kRecipe) + GetParam().more, "test"));
    ir::Program program = compile::compile(recipe, {kernels::reference_catalog(), "", {}}).programs[0];
    const std::vector<const ir::Program*> ranks(static_cast<size_t>(program.mesh.ranks()), &program);
    ASSERT_FALSE(check::prove(ranks).has_value());
    GetParam().edit(program);
    const std::optional<check::Refusal> refusal = check::prove(ranks);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_NE(refusal->message.find(GetParam().refusal), std::string::npos) << refusal->message;
}

INSTANTIATE_TEST_SUITE_P(Check, DamagedPlan, ::testing::ValuesIn(kDamages),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace lockstep::check_test
