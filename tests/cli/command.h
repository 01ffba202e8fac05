// Runs the lockstep binary as a user would, in a scratch folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::testing {

struct Finished {
    int code = 0;
    std::string out, err;
    nlohmann::json json() const { return nlohmann::json::parse(out); }
};

// A folder of its own for each test, removed at the end.
class Scratch {
public:
    Scratch();
    ~Scratch();
    std::string path(const std::string& file) const { return (folder_ / file).string(); }
    std::string write(const std::string& file, const std::string& text) const;
    std::string read(const std::string& file) const;

    // Arguments as the shell takes them. `timeout_s` 0: none. `signal_after_s`: sends SIGTERM after that long.
    Finished lockstep(const std::string& arguments, double signal_after_s = 0) const;

private:
    std::filesystem::path folder_;
};

// A tiny recipe on synthetic data; more lines may follow it under their own sections.
std::string tiny_recipe(const std::string& more = "");

}  // namespace lockstep::testing
