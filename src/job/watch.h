// The watchdog of a run, by the keys of [comm].
#pragma once

#include <optional>

#include "compile/config.h"
#include "runtime/watchdog.h"

namespace lockstep::job {

class Watch {
public:
    Watch(const compile::Config& config, runtime::Ranks& ranks);

private:
    std::optional<runtime::Watchdog> watchdog_;
};

}  // namespace lockstep::job
