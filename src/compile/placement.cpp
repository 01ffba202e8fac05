#include "compile/placement.h"

#include <algorithm>

namespace lockstep::compile {

Placement placement_of(const Recipe& recipe, int64_t ranks, int cores) {
    Placement p;
    p.threads_per_rank = static_cast<int>(recipe.integer("runtime.threads_per_rank"));
    if (p.threads_per_rank == 0) p.threads_per_rank = static_cast<int>(std::max<int64_t>(1, cores / ranks));
    const std::string& comm = recipe.text("runtime.comm_thread");
    p.comm_thread = comm == "on" || (comm == "auto" && cores > ranks * p.threads_per_rank);
    return p;
}

mesh::Link local_link(const Recipe& recipe) {
    return {recipe.number("runtime.local_link_bytes_per_s"), recipe.number("runtime.local_link_latency_s")};
}

}  // namespace lockstep::compile
