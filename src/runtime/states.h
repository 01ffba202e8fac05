// The states of a rank as typed memory: filling them with initial values or anything else that is a function of the global index.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/parameters.h"

namespace lockstep::runtime {

enum class StateKind { Weights, Moment1, Moment2 };
std::string_view name_of(StateKind kind);  // "weights", "moment1", "moment2": also the prefix of the buffer's name

// The sub-axes over which a unit's state is split.
const mesh::AxisList& split_of(const ir::Unit& unit, StateKind kind);

// f(run, data) for every run of every state of that kind on the executor's rank; data points at run.local_begin.
void for_each_state_run(Executor& executor, StateKind kind, const std::function<void(const Run&, char* data)>& f);

// The initial values of all weights; moments are zero.
void fill_initial_weights(Executor& executor, uint64_t seed);
// Weights from value(param, instance, global index).
using ValueOf = std::function<double(const ir::Parameter& param, int64_t instance, int64_t global_index)>;
void fill_weights(Executor& executor, const ValueOf& value);

// Writes this rank's owned part of a state into whole global tensors, in double. Ranks may call it at the same time on the same
// map once every tensor in it has its full size.
using GlobalTensors = std::map<std::string, std::vector<double>>;
void allocate_tensors(const ir::Program& program, GlobalTensors& tensors);
void export_state(Executor& executor, StateKind kind, GlobalTensors& tensors);

}  // namespace lockstep::runtime
