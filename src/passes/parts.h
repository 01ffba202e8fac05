// Parts of a routine: its ops shared out among routines that are called one after the other. What shall overlap with other ops
// of the same routine, or more often than they, becomes a part; queues, waits and memory are planned call by call.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

// The ops that have number `part` in `part_of_op`, in their order. A temporary that another part makes is read through a value
// port, one that another part needs is written to one; the port is called `prefix` and the tensor's name. Parts keep the order
// of their numbers: a port's tensor that an earlier part has written may be read. `without_ops` is the routine whose ops these
// are: it is copied for each part, and ops are large.
ir::Routine part_of(const ir::Routine& without_ops, const std::vector<ir::Op>& ops, const std::vector<int>& part_of_op, int part,
                    const std::string& prefix);

// Is the routine one of several parts?
inline bool is_a_part(const ir::Program& program, size_t routine) {
    const std::vector<ir::Routine>& all = program.routines;
    return all[routine].part > 0 || (routine + 1 < all.size() && all[routine + 1].part == 1);
}

}  // namespace lockstep::passes
