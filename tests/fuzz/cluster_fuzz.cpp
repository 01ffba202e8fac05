// A cluster file. What is accepted prints, and what was printed is accepted.
#include "sim/cluster.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    std::string printed;
    fuzz::accepts_or_refuses([&] { printed = print(sim::parse_cluster(std::string(fuzz::text_of(data, size)), "input")); });
    if (!printed.empty()) sim::parse_cluster(printed, "printed");
    return 0;
}
