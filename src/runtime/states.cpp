#include "runtime/states.h"

#include <fmt/format.h>

#include <functional>
#include <numeric>

#include "base/elements.h"
#include "base/error.h"

namespace lockstep::runtime {

StatePlace place_of(const ir::Unit& unit, StateKind kind) {
    // A mirror has a copy of its owner's weights and nothing else.
    if (unit.mirror) return {kind == StateKind::Copy ? "weights" : "", unit.weights, unit.storage};
    switch (kind) {
        case StateKind::Weights:
            if (unit.has_master()) return {"master", unit.optimizer, unit.master};
            return {"weights", unit.weights, unit.storage};
        case StateKind::Copy: return {unit.has_master() ? "weights" : "", unit.weights, unit.storage};
        case StateKind::Moment1: return {"moment1", unit.optimizer, unit.master};
        case StateKind::Moment2: break;
    }
    return {"moment2", unit.optimizer, unit.master};
}

void for_each_state_run(Executor& executor, StateKind kind, const OfStateRun& f) {
    for_each_state_run(executor, kind, StateBytes::Live, f);
}

void for_each_state_run(Executor& executor, StateKind kind, StateBytes bytes, const OfStateRun& f) {
    const ir::Program& p = executor.program();
    for (const ir::Unit& unit : p.units) {
        const StatePlace place = place_of(unit, kind);
        for (int64_t i : place.buffer.empty() ? std::vector<int64_t>{} : unit.instances()) {
            const char* copied = bytes == StateBytes::Snapshot ? "snapshot." : "";
            const int buffer = p.buffer(fmt::format("{}{}.{}[{}]", copied, place.buffer, unit.name, i));
            ensure(buffer >= 0, fmt::format("state {} of {}[{}] has no buffer", place.buffer, unit.name, i));
            for_each_run(p, unit, i, place.split, executor.rank(), [&](const Run& run) {
                f(run, executor.buffer(buffer) + run.local_begin * bytes_of(place.type), place.type);
            });
        }
    }
}

namespace {

// Weights, and the copies of them that some units keep, from values_of(run)(global index).
template <class ValuesOf>
void fill(Executor& executor, const ValuesOf& values_of) {
    for (StateKind kind : {StateKind::Weights, StateKind::Copy}) {
        for_each_state_run(executor, kind, [&](const Run& run, char* data, Dtype type) {
            const auto value = values_of(run);
            for (int64_t i = 0; i < run.count; ++i) set_element(data, type, i, value(run.global_begin + i));
        });
    }
}

}  // namespace

void fill_initial_weights(Executor& executor, uint64_t seed) {
    fill(executor, [seed](const Run& run) { return InitialValues(*run.param, run.instance, seed); });
}

void fill_weights(Executor& executor, const ValueOf& value) {
    fill(executor, [&](const Run& run) { return [&](int64_t i) { return value(*run.param, run.instance, i); }; });
}

void allocate_tensors(const std::vector<ir::Program>& programs, GlobalTensors& tensors) {
    for_each_parameter(programs, [&](const ir::Parameter& param, int64_t i) {
        const std::vector<int64_t> shape = global_shape(param);
        tensors[global_name(param, i)].resize(
            static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
    });
}

void export_state(Executor& executor, StateKind kind, GlobalTensors& tensors) {
    const ir::Program& p = executor.program();
    for_each_state_run(executor, kind, [&](const Run& run, char* data, Dtype type) {
        if (!is_owner(p, *run.param, place_of(*run.unit, kind).split, executor.rank())) return;
        std::vector<double>& whole = tensors.find(global_name(*run.param, run.instance))->second;
        for (int64_t i = 0; i < run.count; ++i) whole[static_cast<size_t>(run.global_begin + i)] = element(data, type, i);
    });
}

}  // namespace lockstep::runtime
