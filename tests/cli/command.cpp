#include "tests/cli/command.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep::testing {

Finished Scratch::lockstep(const std::string& arguments, double signal_after_s) const {
    const std::string wait = signal_after_s > 0 ? fmt::format(" & p=$!; sleep {}; kill -TERM $p; wait $p", signal_after_s) : "";
    const std::string command =
        fmt::format("cd '{}' && {{ '{}' {} >out.txt 2>err.txt{}; }}", folder_.string(), LOCKSTEP_BINARY, arguments, wait);
    const int status = std::system(command.c_str());
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

}  // namespace lockstep::testing
