#include "tests/cli/command.h"
#include "tests/base/plain.h"
#include "tests/paths.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>

namespace lockstep::testing {

std::string Scratch::write(const std::string& file, const std::string& text) const {
    const bool is_recipe = file.ends_with(".toml") && text.find("[model]") != std::string::npos;
    return ScratchFolder::write(file, is_recipe ? plain(text) : text);
}

Finished Scratch::lockstep(const std::string& arguments, double signal_after_s) const {
    const std::string wait = signal_after_s > 0 ? fmt::format(" & p=$!; sleep {}; kill -TERM $p; wait $p", signal_after_s) : "";
    return shell(fmt::format("{{ $LOCKSTEP {} >out.txt 2>err.txt{}; }}", arguments, wait));
}

Finished Scratch::in_processes(int processes, const std::string& arguments) const {
    return shell(fmt::format("timeout 100 $MPIRUN -n {} $LOCKSTEP {} >out.txt 2>err.txt", processes, arguments));
}

void Scratch::prepare(const std::vector<std::string>& texts, const std::string& tokenizer) const {
    std::string files;
    for (size_t i = 0; i < texts.size(); ++i) files += " " + fmt::format("text{}.txt", i);
    for (size_t i = 0; i < texts.size(); ++i) write(fmt::format("text{}.txt", i), texts[i]);
    const Finished f = lockstep(fmt::format("data prepare{} --out d --tokenizer {} --heldout 0.3", files, tokenizer));
    EXPECT_EQ(f.code, 0) << f.err;
}

std::vector<nlohmann::json> Scratch::objects(const std::string& file) const {
    std::vector<nlohmann::json> out;
    for (const std::string& line : lines_of(read(file))) out.push_back(nlohmann::json::parse(line));
    return out;
}

Finished Scratch::shell(const std::string& command) const {
    const std::string whole = fmt::format(
        "LOCKSTEP='{}'; MPIRUN='{} --allow-run-as-root --oversubscribe --bind-to none -mca mpi_yield_when_idle 1'; cd '{}' && {}",
        LOCKSTEP_BINARY, LOCKSTEP_MPIRUN, folder_.string(), command);
    const int status = std::system(whole.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read("out.txt"), read("err.txt")};
}

std::string tiny_recipe(const std::string& more) {
    return R"([job]
dump_folder = "out"
[model]
dim = 16
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 24
vocab_size = 61
[optimizer]
lr = 1e-2
[lr_scheduler]
warmup_steps = 0
[metrics]
log_freq = 1
)" + more;
}

std::string training_recipe(int64_t steps, const std::string& more) {
    return tiny_recipe(fmt::format(R"([training]
dataset = "synthetic"
local_batch_size = 1
global_batch_size = 4
seq_len = 16
steps = {}
)",
                                   steps)) +
           more;
}

std::string prepared_recipe(const std::string& training) {
    std::string recipe = tiny_recipe("[training]\ndataset_path = \"d\"\n") + training;
    const std::string vocabulary = "vocab_size = 61\n";
    return recipe.erase(recipe.find(vocabulary), vocabulary.size());
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
}

}  // namespace lockstep::testing
