// A schedule as PyTorch's CSV, as `lockstep schedule` reads, draws and plays it.
#include "pipeline/csv.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare target("schedule_csv", [](std::string_view bytes) {
    pipeline::print_csv(pipeline::read_csv(bytes, {"input", 2, 4}));
});

}  // namespace
