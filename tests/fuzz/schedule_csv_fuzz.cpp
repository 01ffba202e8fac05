// A schedule as PyTorch's CSV, as `lockstep schedule` reads, draws and plays it.
#include "schedules/csv.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_schedule_csv("schedule_csv", [](std::string_view bytes) {
    schedules::print_csv(schedules::read_csv(bytes, {"input", 2, 4}));
});

}  // namespace
