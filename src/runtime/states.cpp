#include "runtime/states.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/elements.h"
#include "base/error.h"
#include "base/thread_pool.h"

namespace lockstep::runtime {
namespace {

ir::StateId snapshot_of(const ir::Program& p, ir::StateId id) {
    const auto is = [&](const ir::State& s) { return s.role == ir::StateRole::Copy && s.copy_of == id; };
    const auto at = std::find_if(p.states.begin(), p.states.end(), is);
    ensure(at != p.states.end(), "no snapshot is made of " + p.states[static_cast<size_t>(id)].full_name());
    return static_cast<ir::StateId>(at - p.states.begin());
}

}  // namespace

void for_each_state_run(Executor& executor, const WhichStates& which, const OfStateRun& f, StateBytes bytes) {
    const ir::Program& p = executor.program();
    for (const ir::Unit& unit : p.units) {
        for (size_t k = 0; k < p.states.size(); ++k) {
            const ir::State& state = p.states[k];
            if (state.unit != unit.name || !which(state)) continue;
            const auto id = static_cast<ir::StateId>(k);
            const ir::StateId held = bytes == StateBytes::Live ? id : snapshot_of(p, id);
            for (int64_t i : p.instances(unit)) {
                const int buffer = p.buffer(held, i);
                ensure(buffer >= 0, fmt::format("state {} of instance {} has no buffer", state.full_name(), i));
                for_each_run(p, state, i, executor.rank(), [&](const Run& run) {
                    const int64_t most = device::kAccessBytes / bytes_of(state.dtype);
                    for (int64_t done = 0; done < run.count; done += most) {
                        Run piece = run;
                        piece.local_begin += done, piece.global_begin += done;
                        piece.count = std::min(most, run.count - done);
                        f(piece, state, buffer);
                    }
                });
            }
        }
    }
}

void read_states(Executor& executor, const WhichStates& which, const ReadRun& f) {
    for_each_state_run(executor, which, [&](const Run& run, const ir::State& state, int buffer) {
        const int64_t each = bytes_of(state.dtype);
        executor.read(buffer, run.local_begin * each, run.count * each, [&](const char* data) { f(run, state, data); });
    });
}

void write_states(Executor& executor, const WhichStates& which, const WriteRun& f) {
    for_each_state_run(executor, which, [&](const Run& run, const ir::State& state, int buffer) {
        const int64_t each = bytes_of(state.dtype);
        executor.write(buffer, run.local_begin * each, run.count * each, [&](char* data) { f(run, state, data); });
    });
}

std::string of_island(std::string name, int64_t island) {
    return island == 0 ? std::move(name) : fmt::format("island.{}.{}", island, name);
}

std::string saved_name(const ir::State& state, const ir::Parameter& param, int64_t instance, int64_t island) {
    std::string name = state.saved.empty() ? "{}" : state.saved;
    name.replace(name.find("{}"), 2, global_name(param, instance));
    return of_island(std::move(name), state.is_of_all_islands() ? 0 : island);
}

namespace {

bool covers(const ir::State& state, const ir::Unit& unit, const ir::Parameter& param) {
    for (size_t i = 0; i < unit.segments.size(); ++i) {
        const std::vector<ir::Member>& members = unit.segments[i].members;
        if (std::any_of(members.begin(), members.end(), [&](const ir::Member& m) { return m.param == param.key; }))
            return ir::Program::covers(state, static_cast<int>(i));
    }
    return false;
}

}  // namespace

void for_each_saved(const std::vector<ir::Program>& programs, const OfSaved& f) {
    std::vector<std::string> all;
    for (const ir::Program& p : programs) {
        for (const ir::State& s : p.states) {
            if (!s.unit.empty() && !s.saved.empty() && std::find(all.begin(), all.end(), s.saved) == all.end())
                all.push_back(s.saved);
        }
    }
    for (const std::string& saved : all) {
        for_each_member(programs, [&](const ir::Program& p, const ir::Unit& u, const ir::Parameter& param, int64_t i) {
            for (const ir::State& s : p.states) {
                if (s.unit == u.name && s.saved == saved && covers(s, u, param)) f(s, param, i);
            }
        });
    }
}

namespace {

// f(state, id) for those of the whole program.
template <class F>
void for_each_saved_value(Executor& e, const F& f) {
    const ir::Program& p = e.program();
    for (size_t k = 0; k < p.states.size(); ++k) {
        const ir::State& s = p.states[k];
        if (s.unit.empty() && s.block.empty() && !s.saved.empty()) f(s, static_cast<ir::StateId>(k));
    }
}

}  // namespace

std::map<std::string, double> saved_values(Executor& executor) {
    std::map<std::string, double> out;
    const int64_t island = executor.program().mesh.island_of(executor.rank());
    for_each_saved_value(executor,
                         [&](const ir::State& s, ir::StateId id) { out[of_island(s.saved, island)] = executor.value(id); });
    return out;
}

void set_saved_values(Executor& executor, const std::map<std::string, double>& values) {
    for_each_saved_value(executor, [&](const ir::State& s, ir::StateId id) {
        auto at = values.find(of_island(s.saved, executor.program().mesh.island_of(executor.rank())));
        if (at == values.end()) at = values.find(s.saved);
        if (at != values.end()) executor.set_value(id, at->second);
    });
}

// Weights, the copies of them that some units keep, and anchors.
void fill_weights(Executor& executor, const ValuesOf& values_of) {
    const std::unique_ptr<ThreadPool> threads = executor.host_threads();
    write_states(executor, &ir::State::begins_as_weights, [&](const Run& run, const ir::State& state, char* data) {
        const Values value = values_of(*run.param, run.instance);
        threads->parallel([&](int thread, int all) {
            const int64_t begin = run.count * thread / all, end = run.count * (thread + 1) / all;
            for (int64_t i = begin; i < end; ++i) set_element(data, state.dtype, i, value(run.global_begin + i));
        });
    });
}

void fill_initial_weights(Executor& executor, uint64_t seed) {
    fill_weights(executor, [seed](const ir::Parameter& p, int64_t instance) { return InitialValues(p, instance, seed); });
}

void allocate_tensors(const std::vector<ir::Program>& programs, GlobalTensors& tensors) {
    for_each_parameter(programs, [&](const ir::Parameter& param, int64_t i) {
        const std::vector<int64_t> shape = global_shape(param);
        tensors[global_name(param, i)].resize(
            static_cast<size_t>(std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
    });
}

void export_state(Executor& executor, const WhichStates& which, GlobalTensors& tensors) {
    if (executor.program().mesh.island_of(executor.rank()) != 0) return;
    const ir::Program& p = executor.program();
    read_states(executor, which, [&](const Run& run, const ir::State& state, const char* data) {
        if (!is_owner(p, *run.param, state.split, executor.rank())) return;
        std::vector<double>& whole = tensors.find(global_name(*run.param, run.instance))->second;
        for (int64_t i = 0; i < run.count; ++i) whole[static_cast<size_t>(run.global_begin + i)] = element(data, state.dtype, i);
    });
}

}  // namespace lockstep::runtime
