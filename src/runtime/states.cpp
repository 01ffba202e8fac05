#include "runtime/states.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "base/error.h"

namespace lockstep::runtime {

std::string_view name_of(StateKind kind) {
    return kind == StateKind::Weights ? "weights" : kind == StateKind::Moment1 ? "moment1" : "moment2";
}

const mesh::AxisList& split_of(const ir::Unit& unit, StateKind kind) {
    return kind == StateKind::Weights ? unit.weights : unit.optimizer;
}

void for_each_state_run(Executor& executor, StateKind kind, const std::function<void(const Run&, char* data)>& f) {
    const ir::Program& p = executor.program();
    for (const ir::Unit& unit : p.units) {
        for (int64_t i = 0; i < unit.count; ++i) {
            const int buffer = p.buffer(fmt::format("{}.{}[{}]", name_of(kind), unit.name, i));
            ensure(buffer >= 0, fmt::format("state {} of {}[{}] has no buffer", name_of(kind), unit.name, i));
            for_each_run(p, unit, i, split_of(unit, kind), executor.rank(),
                         [&](const Run& run) { f(run, executor.buffer(buffer) + run.local_begin * bytes_of(run.param->dtype)); });
        }
    }
}

namespace {

// value(global index) for every element of a run.
template <class F>
void fill(const Run& run, char* data, const F& value) {
    for (int64_t i = 0; i < run.count; ++i) {
        const double v = value(run.global_begin + i);
        if (run.param->dtype == Dtype::F64) reinterpret_cast<double*>(data)[i] = v;
        else reinterpret_cast<float*>(data)[i] = static_cast<float>(v);
    }
}

}  // namespace

void fill_initial_weights(Executor& executor, uint64_t seed) {
    for_each_state_run(executor, StateKind::Weights,
                       [&](const Run& run, char* data) { fill(run, data, InitialValues(*run.param, run.instance, seed)); });
}

void fill_weights(Executor& executor, const ValueOf& value) {
    for_each_state_run(executor, StateKind::Weights, [&](const Run& run, char* data) {
        fill(run, data, [&](int64_t i) { return value(*run.param, run.instance, i); });
    });
}

void allocate_tensors(const ir::Program& program, GlobalTensors& tensors) {
    for (const ir::Unit& unit : program.units) {
        for (int64_t i = 0; i < unit.count; ++i) {
            for (const ir::Segment& s : unit.segments) {
                for (const ir::Member& m : s.members) {
                    const ir::Parameter& param = *program.param(m.param);
                    const std::vector<int64_t> shape = global_shape(param);
                    tensors[global_name(param, i)].resize(
                        static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
                }
            }
        }
    }
}

void export_state(Executor& executor, StateKind kind, GlobalTensors& tensors) {
    const ir::Program& p = executor.program();
    for_each_state_run(executor, kind, [&](const Run& run, char* data) {
        for (const ir::Unit& unit : p.units) {
            if (unit.name != run.param->block || !is_owner(p, *run.param, split_of(unit, kind), executor.rank())) continue;
            std::vector<double>& whole = tensors.find(global_name(*run.param, run.instance))->second;
            for (int64_t i = 0; i < run.count; ++i) {
                whole[static_cast<size_t>(run.global_begin + i)] = run.param->dtype == Dtype::F64
                                                                       ? reinterpret_cast<const double*>(data)[i]
                                                                       : reinterpret_cast<const float*>(data)[i];
            }
        }
    });
}

}  // namespace lockstep::runtime
