// The states of a rank as typed memory: filling them with initial values or anything else that is a function of the global
// index. Host code sees them in pieces of device::kAccessBytes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/parameters.h"

namespace lockstep::runtime {

// Which states of units: all that a predicate accepts, such as &ir::State::is_weights.
using WhichStates = std::function<bool(const ir::State&)>;
inline WhichStates saved_as(std::string saved) {
    return [saved = std::move(saved)](const ir::State& s) { return s.saved == saved; };
}

enum class StateBytes { Live, Snapshot };  // a state, or what the entry `snapshot` has made of it

// f(run, state, buffer) for every run of these states on the executor's rank, cut into pieces; the run's elements are at
// run.local_begin of the buffer.
using OfStateRun = std::function<void(const Run&, const ir::State&, int buffer)>;
void for_each_state_run(Executor& executor, const WhichStates& which, const OfStateRun& f, StateBytes bytes = StateBytes::Live);
// The same with the elements: to be read, or to be filled.
using ReadRun = std::function<void(const Run&, const ir::State&, const char* data)>;
void read_states(Executor& executor, const WhichStates& which, const ReadRun& f);
using WriteRun = std::function<void(const Run&, const ir::State&, char* data)>;
void write_states(Executor& executor, const WhichStates& which, const WriteRun& f);

// Under which name a checkpoint holds a state's part of a parameter. Weights that are not saved themselves, as they are a copy,
// have the name of the weights. What islands have apart begins with their number, but for those of the first.
std::string saved_name(const ir::State& state, const ir::Parameter& param, int64_t instance, int64_t island = 0);
std::string of_island(std::string name, int64_t island);  // "island.1.steps"; of the first as it is

// f(state, param, instance) for all that checkpoints hold of the units of these programs, one a pipeline rank: state after
// state, weights first, each in the order of the model.
using OfSaved = std::function<void(const ir::State&, const ir::Parameter&, int64_t instance)>;
void for_each_saved(const std::vector<ir::Program>& programs, const OfSaved& f);

// The states of the whole program that checkpoints hold, by their saved names; those of the executor's island. What a
// checkpoint lacks of an island is as on the first one.
std::map<std::string, double> saved_values(Executor& executor);
void set_saved_values(Executor& executor, const std::map<std::string, double>& values);

// The initial values of all weights, and of what begins as they do; moments are zero.
void fill_initial_weights(Executor& executor, uint64_t seed);
// Weights, and what begins as they do, from values_of(param, instance)(global index).
// Several threads may ask one such function.
using Values = std::function<double(int64_t global_index)>;
using ValuesOf = std::function<Values(const ir::Parameter& param, int64_t instance)>;
void fill_weights(Executor& executor, const ValuesOf& values_of);

// Writes this rank's owned part of states (of the first island) into whole global tensors under the parameters' names, in
// double. Ranks may call it at the same time on the same map once every tensor in it has its full size.
using GlobalTensors = std::map<std::string, std::vector<double>>;
void allocate_tensors(const std::vector<ir::Program>& programs, GlobalTensors& tensors);
void export_state(Executor& executor, const WhichStates& which, GlobalTensors& tensors);

}  // namespace lockstep::runtime
