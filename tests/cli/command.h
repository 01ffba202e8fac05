// Runs the lockstep binary as a user would, in a scratch folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/base/scratch_folder.h"

namespace lockstep::testing {

struct Finished {
    int code = 0;
    std::string out, err;
    nlohmann::json json() const { return nlohmann::json::parse(out); }
};

class Scratch : public ScratchFolder {
public:
    // A recipe (a text with [model]) says in addition what plain.h says.
    std::string write(const std::string& file, const std::string& text) const;
    // Arguments as the shell takes them. `timeout_s` 0: none. `signal_after_s`: sends SIGTERM after that long.
    Finished lockstep(const std::string& arguments, double signal_after_s = 0) const;
    // In so many processes of mpirun. Arguments may hold " : ", as mpirun's may.
    Finished in_processes(int processes, const std::string& arguments) const;
    // Any command line, with LOCKSTEP in place of the binary and MPIRUN of mpirun with what this machine asks of it.
    Finished shell(const std::string& command) const;
};

// A tiny recipe on synthetic data; more lines may follow it under their own sections.
std::string tiny_recipe(const std::string& more = "");

}  // namespace lockstep::testing
