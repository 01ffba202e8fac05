#include "schedules/table.h"

#include <fmt/format.h>

namespace lockstep::schedules {

std::string text_of(const Action& action) {
    if (action.work == Work::Idle) return {};
    return fmt::format("{}{}{}", action.stage, static_cast<char>(action.work), action.microbatch);
}

}  // namespace lockstep::schedules
