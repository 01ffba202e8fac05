// A schedule as PyTorch's CSV.
#include "pipeline/csv.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    return fuzz::accepts_or_refuses([&] { pipeline::print_csv(pipeline::read_csv(fuzz::text_of(data, size), {"input", 2, 4})); });
}
