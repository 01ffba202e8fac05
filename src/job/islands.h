// Islands (docs/islands.md): a launch for each of them, all at the same time. They meet in a service of the supervisor.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "comm/islands/service.h"
#include "job/launch.h"

namespace lockstep::job {

// What the launches of islands have in common.
class Islands {
public:
    explicit Islands(const comm::islands::ServiceOptions& options);

    comm::islands::Service& service() { return service_; }
    // Does it run, and are its attempts not in vain?
    void set_going_on(int64_t island, bool does) { go_on_[static_cast<size_t>(island)] = does; }
    bool others_go_on(int64_t island) const;
    // For good.
    void leave(int64_t island);

private:
    comm::islands::Service service_;
    std::vector<std::atomic<bool>> go_on_;  // by island
};

// `whole` in equal parts, a launch each. UserError launch.*.
Supervised supervise_islands(const SupervisorOptions& options, const LaunchedJob& whole, const compile::Config& config);

}  // namespace lockstep::job
