// The laws of verify() about states. Each function returns what is wrong, or "".
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::ops {

// States agree with their units and blocks. Each has one buffer for each instance; one of the program that ends with the step
// has one in each entry.
std::string wrong_states(const ir::Program& program);

// A routine binds a state in the state's type and split, and changes it only as its writer. The ports' states exist.
std::string wrong_ports_of_states(const ir::Program& program, const ir::Routine& routine);

// Whether calls bind the buffers of their ports' states.
class BoundStates {
public:
    explicit BoundStates(const ir::Program& program);

    // Resident parameters and gradients that are summed in place are states of their unit, too. Call and binding exist.
    bool agree(const ir::Call& call, size_t port) const;

private:
    const ir::Program& p_;
    std::vector<std::vector<const ir::Unit*>> units_;  // by routine and port
};

}  // namespace lockstep::ops
