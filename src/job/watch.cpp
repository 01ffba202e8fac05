#include "job/watch.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "job/exit_code.h"
#include "telemetry/console.h"

namespace lockstep::job {

Watch::Watch(const compile::Config& config, runtime::Ranks& ranks) {
    const int64_t timeout_s = config.comm.train_timeout_seconds;
    runtime::WatchdogOptions options;
    options.timeout_s = static_cast<double>(timeout_s);
    options.folder = std::filesystem::path(config.job.dump_folder) / config.comm.save_traces_folder;
    options.prefix = config.comm.save_traces_file_prefix;
    options.end = [process = ranks.group().process()](const std::string& message) {
        if (!message.empty()) {
            telemetry::unmute();  // the process that usually speaks may be the one that is lost
            telemetry::error(process == 0 ? message : fmt::format("process {}: {}", process, message));
        }
        std::_Exit(kFailed);
    };
    if (options.timeout_s > 0) watchdog_.emplace(ranks, std::move(options));
}

}  // namespace lockstep::job
