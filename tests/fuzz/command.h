// Parsers that a command reaches, by that command. It must end as it does for a user: done or refused (docs/cli.md).
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "cli/app.h"

namespace lockstep::fuzz {

inline void expect_done_or_refused(std::vector<std::string> words) {
    words.insert(words.begin(), "lockstep");
    std::vector<const char*> arguments;
    for (const std::string& w : words) arguments.push_back(w.c_str());
    const int code = cli::run(static_cast<int>(arguments.size()), arguments.data());
    ensure(code == 0 || code == 1, "exit code " + std::to_string(code));
}

}  // namespace lockstep::fuzz
