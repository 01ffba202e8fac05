// Runs the lockstep binary as a user would, in a scratch folder.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
    // In this number of processes of mpirun. Arguments may hold " : ", as mpirun's may.
    Finished in_processes(int processes, const std::string& arguments) const;
    // Texts as the documents of the prepared folder `d`, of which 0.3 are held out. Of one text its end is held out.
    void prepare(const std::vector<std::string>& texts, const std::string& tokenizer = "bytes") const;
    // The objects of a file of JSON Lines.
    std::vector<nlohmann::json> objects(const std::string& file) const;
    // Any command line, with LOCKSTEP in place of the binary and MPIRUN of mpirun with what this machine asks of it.
    Finished shell(const std::string& command) const;
};

// A tiny model; `more` follows under sections of its own.
std::string tiny_recipe(const std::string& more = "");
// It trains on synthetic data: `steps` of 4 sequences of 16 tokens. `more` follows under sections of its own.
std::string training_recipe(int64_t steps, const std::string& more = "");
// It has the vocabulary of the prepared folder `d` and trains on it. `training` goes on in [training].
std::string prepared_recipe(const std::string& training);

bool has(const std::string& text, const std::string& part);
std::vector<std::string> lines_of(const std::string& text);

}  // namespace lockstep::testing
