// How long work below the command line reports how far it is: through a callback, never by logging.
// `stage` is a short present-tense phrase ("counting words"); `done` and `total` have the unit that `stage` implies.
// An empty callback is allowed everywhere. Calls come from the thread that called the function reporting.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace lockstep::data {

using Progress = std::function<void(std::string_view stage, int64_t done, int64_t total)>;

inline void report(const Progress& progress, std::string_view stage, int64_t done, int64_t total) {
    if (progress) progress(stage, done, total);
}

}  // namespace lockstep::data
