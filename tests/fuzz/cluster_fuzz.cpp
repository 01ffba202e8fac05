// A cluster file. What is accepted prints, and what was printed is accepted.
#include "sim/cluster.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_cluster("cluster", [](std::string_view bytes) {
    const std::string printed = print(sim::parse_cluster(std::string(bytes), "input"));
    try {
        sim::parse_cluster(printed, "printed");
    } catch (const UserError& e) {
        throw InternalError(e.what());
    }
});

}  // namespace
