#include "tests/cli/command.h"
#include "tests/base/plain.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

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

}  // namespace lockstep::testing
