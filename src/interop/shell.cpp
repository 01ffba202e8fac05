#include "interop/shell.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/error.h"
#include "interop/shell_interpreter.h"

namespace lockstep::interop {

namespace fs = std::filesystem;

namespace {

// What a job's header tells of the variables that Slurm sets.
void take_slurm_directive(const std::string& line, std::map<std::string, std::string>& variables) {
    const std::pair<const char*, std::vector<const char*>> known[] = {
        {"--nodes", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
        {"-N", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
        {"--ntasks", {"SLURM_NTASKS", "SLURM_NPROCS"}},
        {"-n", {"SLURM_NTASKS", "SLURM_NPROCS"}},
        {"--ntasks-per-node", {"SLURM_NTASKS_PER_NODE"}},
        {"--gpus-per-node", {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"}},
        {"--gres", {"SLURM_GPUS_ON_NODE"}},
        {"--cpus-per-task", {"SLURM_CPUS_PER_TASK"}},
    };
    for (const auto& [flag, names] : known) {
        const size_t at = line.find(flag);
        const size_t value = at == std::string::npos ? at : at + std::string(flag).size();
        if (value == std::string::npos || value >= line.size() || (line[value] != '=' && !is_shell_blank(line[value]))) continue;
        size_t begin = value + 1, end;
        while (begin < line.size() && is_shell_blank(line[begin])) ++begin;
        const size_t word_end = std::min(line.find_first_of(" \t\r#", begin), line.size());
        const std::string word = line.substr(begin, word_end - begin);
        if (const size_t colon = word.rfind(':');
            word.starts_with("gpu:") || (word.find(':') != std::string::npos && flag != std::string("--nodes")))
            begin += colon + 1;
        for (end = begin; end < line.size() && std::isdigit(static_cast<unsigned char>(line[end]));) ++end;
        constexpr size_t kDigits = 7;
        if (end == begin || end - begin > kDigits) continue;
        for (const char* name : names) variables[name] = line.substr(begin, end - begin);
    }
}

std::map<std::string, std::string> slurm_variables(const std::string& text) {
    std::map<std::string, std::string> out;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        if (line.starts_with("#SBATCH")) take_slurm_directive(line, out);
        at = end + 1;
    }
    if (out.contains("SLURM_NNODES") && out.contains("SLURM_NTASKS_PER_NODE") && !out.contains("SLURM_NTASKS")) {
        const std::string tasks = std::to_string(std::stol(out["SLURM_NNODES"]) * std::stol(out["SLURM_NTASKS_PER_NODE"]));
        out["SLURM_NTASKS"] = out["SLURM_NPROCS"] = tasks;
    }
    return out;
}

}  // namespace

Interpreter::Interpreter(const std::string& path, const ScriptInputs& inputs, Script& out)
    : path_(path), inputs_(inputs), out_(out), files_{path}, paths_{path} {}

void Interpreter::set_exported(const std::string& name, const std::string& value) {
    const Place start{1, 0};
    Variable v;
    v.items[0] = Text(value, start);
    v.is_exported = true;
    set(name, v, start);
}

void Interpreter::take_environment() {
    for (const auto& [name, value] : inputs_.environment) set_exported(name, value);
}

void Interpreter::run_file(const std::string& text) {
    const Place start{1, 0};
    constexpr size_t kMost = 1 << 20;
    if (text.size() > kMost)
        throw UserError(
            "recipe.script", path_,
            fmt::format("{}: has {} bytes, and scripts of up to {} are read: give the arguments of the run as a plain "
                        "text file",
                        path_, text.size(), kMost));
    if (const size_t nul = text.find('\0'); nul != std::string::npos)
        refuse_script(path_, 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<long>(nul), '\n')),
                      "has a byte 0, which no script has: give a script that bash runs, or the arguments of the run as a plain "
                      "text file");
    text_ = text;
    state_.folder = Text(fs::absolute(path_).lexically_normal().parent_path().string(), start);
    for (const auto& [name, value] : slurm_variables(text)) set_exported(name, value);
    Variable ifs;
    ifs.items[0] = Text(" \t\n", start);
    set("IFS", ifs, start);
    take_environment();
    state_.zero = Text(resolved(Text(path_, start)), start);
    for (const std::string& argument : inputs_.arguments) state_.arguments.emplace_back(argument, start);
    state_.has_arguments = inputs_.has_arguments;
    frames_.push_back({false, {}, {}});
    run_text(Text::of_file(text, 0), path_);
    if (state_.flow != Flow::Exits) out_.ended.clear();
    for (const auto& [name, file] : state_.files) {
        if (file) out_.files[name] = word_of(*file);
    }
}

Script read_script(const std::string& text, const std::string& path, const ScriptInputs& inputs) {
    Script out;
    Interpreter(path, inputs, out).run_file(text);
    return out;
}

}  // namespace lockstep::interop
