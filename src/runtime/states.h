// The states of a rank as typed memory: filling them with initial values or anything else that is a function of the global index.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/parameters.h"

namespace lockstep::runtime {

// Weights: those that the optimizer changes and a checkpoint holds (master weights, where there are such). Copy: those that
// forward and backward read, in units that keep them apart from the master weights; a function of Weights, never saved.
enum class StateKind { Weights, Moment1, Moment2, Copy };
constexpr StateKind kSavedStates[] = {StateKind::Weights, StateKind::Moment1, StateKind::Moment2};

// Of a unit's state: its buffer's name without the instance, the sub-axes over which it is split, its element type. Empty
// name: the unit has no such state.
struct StatePlace {
    std::string_view buffer;
    mesh::AxisList split;
    Dtype type;
};
StatePlace place_of(const ir::Unit& unit, StateKind kind);

enum class StateBytes { Live, Snapshot };  // a state, or what the entry `snapshot` has made of it

// f(run, data, type) for every run of every state of that kind on the executor's rank; data points at run.local_begin.
using OfStateRun = std::function<void(const Run&, char* data, Dtype type)>;
void for_each_state_run(Executor& executor, StateKind kind, StateBytes bytes, const OfStateRun& f);
void for_each_state_run(Executor& executor, StateKind kind, const OfStateRun& f);

// The initial values of all weights; moments are zero.
void fill_initial_weights(Executor& executor, uint64_t seed);
// Weights from value(param, instance, global index).
using ValueOf = std::function<double(const ir::Parameter& param, int64_t instance, int64_t global_index)>;
void fill_weights(Executor& executor, const ValueOf& value);

// Writes this rank's owned part of a state into whole global tensors, in double. Ranks may call it at the same time on the same
// map once every tensor in it has its full size.
using GlobalTensors = std::map<std::string, std::vector<double>>;
void allocate_tensors(const std::vector<ir::Program>& programs, GlobalTensors& tensors);
void export_state(Executor& executor, StateKind kind, GlobalTensors& tensors);

}  // namespace lockstep::runtime
