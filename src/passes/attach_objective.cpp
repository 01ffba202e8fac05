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

TensorId targets_of(Builder& b) {
    return b.port_tensor("targets", PortKind::Input, Access::Read, "targets", b.dims({"batch", "seq"}), "targets", Dtype::I32);
}

void attach(ir::Routine& r) {
    Builder b(r);
    const int port = r.port("logits");
    ensure(port >= 0, "attach_objective: the last block has no port logits");
    TensorId logits = r.port_tensors(port)[0];
    r.tensors[logits].port = -1;
    const TensorId targets = targets_of(b);
    const std::vector<ir::DimId> rows = b.dims({"batch", "seq"});
    const ir::Dim& vocab = r.dims[r.dim("vocab")];
    if (vocab.valid < vocab.size) {
        const double minus_infinity = -std::numeric_limits<double>::infinity();
        logits = b.op("mask_padding", {logits}, {{"logits.masked", b.dims(logits)}}, {{"fill", minus_infinity}})[0];
    }
    const TensorId m = b.op("max", {logits}, {{"m", rows}}, {{"over", std::string("vocab")}})[0];
    const std::vector<TensorId> ce = b.op("cross_entropy", {logits, m, targets}, {{"z", rows}, {"t", rows}});
    // From here on values have no vocab, but are wanted where it is: the sequence stays whole beside it, and nothing is gathered.
    const size_t first = r.ops.size();
    const TensorId nll = b.add("nll", {b.unary("log_z", "log", ce[0]), m, b.scale("minus_t", ce[1], -1.0)});
    const TensorId loss = b.einsum("loss", {}, {nll, b.unary("valid", "valid", targets)});
    for (size_t i = first; i < r.ops.size(); ++i) r.ops[i].attrs["beside"] = std::string("vocab");
    b.accumulate(b.port("loss_sum", PortKind::Scalar, Access::Accumulate, {}, Dtype::F64), loss);
}

// The end of an evaluation: sum of losses and number of targets, whole on every rank.
void add_totals(ir::Program& program) {
    ir::Routine r;
    r.name = "eval.total";
    r.kind = ir::RoutineKind::Stats;
    r.entry = "eval";
    Builder b(r);
    for (const char* name : {"loss", "count"}) {
        const std::string from = std::string(name) == "loss" ? "loss_sum" : "count";
        const TensorId part = b.port(from, PortKind::Scalar, Access::Read, {}, Dtype::F64);
        const TensorId total = b.op("copy", {part}, {{std::string("total_") + name, {}, Dtype::F64}})[0];
        r.tensors[total].port = static_cast<int>(r.ports.size());
        r.ports.push_back({r.tensors[total].name, PortKind::Scalar, Access::Write, "", -1});
    }
    program.routines.push_back(std::move(r));
}

// Valid targets of one microbatch, added up; then, before the first backward, their inverse.
void add_counting(ir::Program& program, const ir::Routine& last, const std::string& entry) {
    const std::string prefix = entry == "train" ? "" : entry + ".";
    ir::Routine count;
    count.name = prefix + "count";
    count.kind = ir::RoutineKind::Begin;
    count.entry = entry;
    count.dims = last.dims;
    Builder b(count);
    const TensorId n = b.einsum("n", {}, {b.unary("valid", "valid", targets_of(b))});
    b.accumulate(b.port("count", PortKind::Scalar, Access::Accumulate, {}, Dtype::F64), n);
    program.routines.push_back(std::move(count));

    if (entry == "eval") return add_totals(program);
    ir::Routine begin;
    begin.name = prefix + "begin";
    begin.kind = ir::RoutineKind::Begin;
    begin.entry = entry;
    Builder c(begin);
    const TensorId total = c.port("count", PortKind::Scalar, Access::Read, {}, Dtype::F64);
    const TensorId inverse = c.op("inverse_count", {total}, {{"inv_n", {}}})[0];
    begin.tensors[inverse].port = static_cast<int>(begin.ports.size());
    begin.ports.push_back({"inv_n", PortKind::Scalar, Access::Write, "", -1});
    program.routines.push_back(std::move(begin));
}

}  // namespace

ir::Program attach_objective(ir::Program program, const ObjectiveOptions& options) {
    const std::vector<ir::Routine> forwards = std::move(program.routines);
    ensure(forwards.size() == program.blocks.size(), "attach_objective: expects one forward routine a block");
    program.routines.clear();
    for (const std::string& entry : options.entries) {
        for (ir::Routine copy : forwards) {
            copy.name = copy.block + "." + (entry == "train" ? "forward" : entry);
            copy.entry = entry;
            if (entry != "train") ops::remove_dropout(copy);
            program.routines.push_back(std::move(copy));
        }
        if (entry != "train" && entry != "eval") continue;  // its result is the logits themselves
        attach(program.routines.back());
        const ir::Routine last = program.routines.back();
        add_counting(program, last, entry);
    }
    return program;
}

}  // namespace lockstep::passes
