#include "passes/attach_objective.h"

#include <limits>

#include "base/error.h"
#include "ops/builder.h"
#include "ops/dropout.h"

namespace lockstep::passes {
namespace {

using ir::Access;
using ir::PortKind;
using ir::TensorId;
using ops::Builder;

using ir::DimRole;
using ir::EntryKind;
using ir::PortRole;
using ir::StateRole;

TensorId targets_of(Builder& b) {
    return b.port(PortRole::Targets, PortKind::Input, Access::Read, b.dims({DimRole::Batch, DimRole::Seq}), Dtype::I32);
}

// What the entries add up, and what they make of it.
void add_states(ir::Program& p, const std::optional<LossScaling>& scaling) {
    const auto add = [&](const char* name, StateRole role, Dtype type, ir::Scope scope = ir::Scope::Step) -> ir::State& {
        ir::State s;
        s.name = name, s.role = role, s.dtype = type, s.scope = scope;
        return p.states[static_cast<size_t>(p.add(std::move(s)))];
    };
    add("loss_sum", StateRole::LossSum, Dtype::F64);
    add("count", StateRole::TargetCount, Dtype::F64);
    add("inv_n", StateRole::InverseCount, Dtype::F32);
    add("total_loss", StateRole::TotalLoss, Dtype::F64);
    add("total_count", StateRole::TotalCount, Dtype::F64);
    if (!scaling) return;
    add("loss_seed", StateRole::LossSeed, Dtype::F32);
    const auto lasting = [&](const char* name, StateRole role, double init) -> ir::State& {
        ir::State& s = add(name, role, Dtype::F64, ir::Scope::Run);
        s.init = init;
        return s;
    };
    ir::State& scale = lasting("loss_scale", StateRole::LossScale, scaling->initial);
    if (!scaling->dynamic) return;
    scale.writer = ir::RoutineKind::Stats, scale.saved = scale.name;
    ir::State& tracker = lasting("growth_tracker", StateRole::GrowthTracker, 0);
    tracker.writer = ir::RoutineKind::Stats, tracker.saved = tracker.name;
    lasting("loss_scale_window", StateRole::LossScaleWindow, static_cast<double>(scaling->window));
}

void attach(const ir::Program& program, ir::Routine& r) {
    Builder b(r);
    const int port = r.port(PortRole::Logits);
    ensure(port >= 0, "attach_objective: the last block has no port logits");
    TensorId logits = r.port_tensors(port)[0];
    r.tensors[logits].port = -1;
    const TensorId targets = targets_of(b);
    const std::vector<ir::DimId> rows = b.dims({DimRole::Batch, DimRole::Seq});
    const ir::Dim& vocab = r.dims[b.dims({DimRole::Vocab})[0]];
    // How far the vocabulary is padded is not known yet: bind_sizes drops the mask where it is not.
    const double minus_infinity = -std::numeric_limits<double>::infinity();
    logits = b.op(ir::kMaskPadding, {logits}, {{"logits.masked", b.dims(logits)}}, {{"fill", minus_infinity}})[0];
    const TensorId m = b.op(ir::kMax, {logits}, {{"m", rows}}, {{"over", vocab.name}})[0];
    const std::vector<TensorId> ce = b.op(ir::kCrossEntropy, {logits, m, targets}, {{"z", rows}, {"t", rows}});
    // From here on values have no vocab, but are wanted where it is: the sequence stays whole with it, and nothing is gathered.
    const size_t first = r.ops.size();
    const TensorId nll = b.add("nll", {b.unary("log_z", "log", ce[0]), m, b.scale("minus_t", ce[1], -1.0)});
    const TensorId loss = b.einsum("loss", {}, {nll, b.unary("valid", "valid", targets)});
    for (size_t i = first; i < r.ops.size(); ++i) r.ops[i].attrs["beside"] = vocab.name;
    b.accumulate(b.port(program, program.state(StateRole::LossSum), Access::Accumulate), loss);
}

// A port of a state that `op` writes.
TensorId write_state(const ir::Program& program, Builder& b, StateRole role, const char* op, TensorId from) {
    const ir::StateId id = program.state(role);
    const ir::State& state = program.states[static_cast<size_t>(id)];
    const TensorId made = b.op(op, {from}, {{state.name, {}, state.dtype}})[0];
    b.leave(made, program.port(id, Access::Write));
    return made;
}

// The end of an evaluation: sum of losses and number of targets, whole on every rank.
void add_totals(ir::Program& program) {
    ir::Routine r;
    r.name = "eval.total";
    r.kind = ir::RoutineKind::Stats;
    r.entry = EntryKind::Eval;
    Builder b(r);
    const auto total = [&](StateRole part, StateRole whole) {
        write_state(program, b, whole, "copy", b.port(program, program.state(part), Access::Read));
    };
    total(StateRole::LossSum, StateRole::TotalLoss);
    total(StateRole::TargetCount, StateRole::TotalCount);
    program.routines.push_back(std::move(r));
}

// Valid targets of one microbatch, added up; then, before the first backward, their inverse.
void add_counting(ir::Program& program, const ir::Routine& last, EntryKind entry) {
    const std::string prefix = entry == EntryKind::Train ? "" : std::string(name_of(entry)) + ".";
    ir::Routine count;
    count.name = prefix + "count";
    count.kind = ir::RoutineKind::Begin;
    count.entry = entry;
    count.dims = last.dims;
    Builder b(count);
    const TensorId n = b.einsum("n", {}, {b.unary("valid", "valid", targets_of(b))});
    b.accumulate(b.port(program, program.state(StateRole::TargetCount), Access::Accumulate), n);
    program.routines.push_back(std::move(count));

    if (entry == EntryKind::Eval) return add_totals(program);
    ir::Routine begin;
    begin.name = prefix + "begin";
    begin.kind = ir::RoutineKind::Begin;
    begin.entry = entry;
    Builder c(begin);
    const TensorId total = c.port(program, program.state(StateRole::TargetCount), Access::Read);
    const TensorId inverse = write_state(program, c, StateRole::InverseCount, "inverse_count", total);
    if (const ir::StateId scale = program.state(StateRole::LossScale); scale >= 0) {
        const TensorId seed = c.einsum("loss_seed", {}, {inverse, c.port(program, scale, Access::Read)});
        c.leave(seed, program.port(program.state(StateRole::LossSeed), Access::Write));
    }
    program.routines.push_back(std::move(begin));
}

}  // namespace

ir::Program attach_objective(ir::Program program, const ObjectiveOptions& options) {
    const std::vector<ir::Routine> forwards = std::move(program.routines);
    ensure(forwards.size() == program.blocks.size(), "attach_objective: expects one forward routine a block");
    program.routines.clear();
    add_states(program, options.loss_scaling);
    for (const EntryKind entry : options.entries) {
        const bool trains = entry == EntryKind::Train;
        for (ir::Routine copy : forwards) {
            copy.name = copy.block + "." + (trains ? "forward" : std::string(name_of(entry)));
            copy.entry = entry;
            if (!trains) ops::remove_dropout(copy);
            program.routines.push_back(std::move(copy));
        }
        if (!trains && entry != EntryKind::Eval) continue;  // its result is the logits themselves
        attach(program, program.routines.back());
        const ir::Routine last = program.routines.back();
        add_counting(program, last, entry);
    }
    return program;
}

}  // namespace lockstep::passes
