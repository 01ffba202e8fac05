// Starts a job over hosts, looks after it and starts it again: from its last checkpoint, with fewer data-parallel replicas where
// hosts are gone, with all of them where they are back.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "cli/commands.h"
#include "cli/stopping.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr int kProbeSeconds = 5;
constexpr auto kLook = std::chrono::milliseconds(20), kPause = std::chrono::milliseconds(500);

struct Host {
    std::string name;
    int64_t slots = 1;  // processes
};

std::vector<Host> hosts_of(const std::string& list) {
    std::vector<Host> out;
    for (size_t at = 0; at <= list.size() && !list.empty();) {
        const size_t end = std::min(list.find(',', at), list.size()), colon = list.find(':', at);
        Host h{list.substr(at, std::min(colon, end) - at), 1};
        const std::string slots = colon < end ? list.substr(colon + 1, end - colon - 1) : "1";
        const bool right =
            !h.name.empty() && !slots.empty() && slots.size() < 6 && slots.find_first_not_of("0123456789") == std::string::npos;
        if (!right || std::stoll(slots) < 1)
            throw UserError("launch.hosts", "--hosts",
                            fmt::format("--hosts {}: '{}' must be a name, or name:processes", list, list.substr(at, end - at)));
        h.slots = std::stoll(slots);
        out.push_back(h);
        at = end + 1;
    }
    return out;
}

pid_t start(const Words& command) {
    std::vector<char*> words;
    for (const std::string& w : command) words.push_back(const_cast<char*>(w.c_str()));
    words.push_back(nullptr);
    const pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);  // signals of the terminal come to the supervisor, which hands them on
        execvp(words[0], words.data());
        std::_Exit(127);
    }
    return pid;
}

// Exit code, or 128 + signal.
int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

class Launch {
public:
    explicit Launch(const LaunchArgs& args) : args_(args), hosts_(hosts_of(args.hosts)) {
        if (args_.recipe.path.empty())
            throw UserError("launch.command", "--",
                            "nothing to start: write the command after --, as in lockstep launch -- train recipe.toml");
        recipe_ = read_recipe(args_.recipe);
        processes_ = args_.processes;
        for (const Host& h : hosts_) processes_ += h.slots;
        const bool open =
            recipe_.integer("parallelism.data_parallel_shard_degree") == -1 && recipe_.integer("cluster.ranks") == 0;
        if (open && processes_ > 0) recipe_.set("cluster.ranks", std::to_string(processes_));
        whole_ = compile::layout_of(recipe_);
        if (processes_ == 0) processes_ = whole_.ranks;
        root_ = recipe_.text("job.dump_folder") + "/" + recipe_.text("checkpoint.folder");
        if (!recipe_.flag("checkpoint.enable") || recipe_.integer("checkpoint.interval") < 1)
            telemetry::warn(
                "launch: without checkpoint.enable = true and a checkpoint.interval every restart begins at the first step");
    }

    int run() {
        if (geteuid() == 0)  // mpirun asks twice
            setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
        remember_signals();
        int64_t in_vain = 0;
        for (int64_t attempt = 1;; ++attempt) {
            const std::vector<Host> live = probe();
            const std::optional<Words> command = command_for(live);
            const int64_t before = last_step();
            int code = kFailed;
            const Clock::time_point start = Clock::now();
            if (command) {
                telemetry::info(fmt::format("launch: {}", fmt::join(*command, " ")));
                code = wait_for(cli::start(*command));
            } else {
                telemetry::warn(
                    fmt::format("launch: no {} processes are left for one replica", whole_.ranks / whole_.data_ranks));
            }
            attempts_.push_back({{"attempt", attempt},
                                 {"hosts", names_of(live)},
                                 {"code", code},
                                 {"time_s", std::chrono::duration<double>(Clock::now() - start).count()},
                                 {"from_step", before},
                                 {"to_step", last_step()}});
            if (code <= kUsage || code == kStopped) return finish(code);
            in_vain = last_step() > before ? 0 : in_vain + 1;
            if (remembered_signal() != 0 || in_vain > args_.max_restarts) return finish(kFailed);
            telemetry::warn(fmt::format("launch: exit code {}; again from step {}", code, last_step()));
            std::this_thread::sleep_for(in_vain * kPause);  // hosts may come back
        }
    }

private:
    static Words names_of(const std::vector<Host>& hosts) {
        Words out;
        for (const Host& h : hosts) out.push_back(h.name);
        return out;
    }

    int64_t last_step() const {
        const std::vector<int64_t> steps = checkpoint::complete_steps(root_);
        return steps.empty() ? 0 : steps.back();
    }

    // The hosts that answer. All are asked at once.
    std::vector<Host> probe() const {
        std::vector<pid_t> asked;
        for (const Host& h : hosts_)
            asked.push_back(cli::start({"timeout", std::to_string(kProbeSeconds), args_.agent, h.name, "true"}));
        std::vector<Host> live;
        for (size_t i = 0; i < hosts_.size(); ++i) {
            int status = 0;
            while (waitpid(asked[i], &status, 0) < 0 && errno == EINTR) {
            }
            if (code_of(status) == 0) live.push_back(hosts_[i]);
            else telemetry::warn(fmt::format("launch: {} does not answer", hosts_[i].name));
        }
        return live;
    }

    // mpirun with as many data-parallel replicas as there is room for, and the batch of all.
    std::optional<Words> command_for(const std::vector<Host>& live) const {
        int64_t slots = hosts_.empty() ? processes_ : 0;
        for (const Host& h : live) slots += h.slots;
        const int64_t each = whole_.ranks % processes_ == 0 ? whole_.ranks / processes_ : 1;  // ranks of a process
        const int64_t part = whole_.ranks / whole_.data_ranks;                                // ranks of one replica of the model
        int64_t replicate = whole_.mesh.degree(mesh::Axis::dp_replicate), shard = whole_.mesh.degree(mesh::Axis::dp_shard);
        while (replicate * shard * part > slots * each && replicate > 1) --replicate;
        while (replicate * shard * part > slots * each && shard > 1) --shard;
        const int64_t ranks = replicate * shard * part;
        if (ranks > slots * each || ranks % each != 0) return std::nullopt;
        Words out;
        for (std::istringstream words(args_.mpirun); words >> out.emplace_back();) {
        }
        out.pop_back();
        out.insert(out.end(), {"-n", std::to_string(ranks / each)});
        if (!live.empty()) {
            Words list;
            for (const Host& h : live) list.push_back(fmt::format("{}:{}", h.name, h.slots));
            out.insert(out.end(), {"--host", fmt::format("{}", fmt::join(list, ","))});
        }
        out.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
        out.insert(out.end(), args_.command.begin(), args_.command.end());
        const auto set = [&](const char* key, int64_t value) {
            out.insert(out.end(), {fmt::format("--{}", key), std::to_string(value)});
        };
        set("parallelism.data_parallel_replicate_degree", replicate), set("parallelism.data_parallel_shard_degree", shard);
        set("cluster.ranks", ranks), set("training.global_batch_size", whole_.global_batch);
        if (ranks < whole_.ranks)
            telemetry::warn(fmt::format("launch: {} of {} data-parallel ranks, with the same global batch of {}",
                                        replicate * shard, whole_.data_ranks, whole_.global_batch));
        return out;
    }
    // A signal to stop becomes one that mpirun hands on to all processes.
    int wait_for(pid_t pid) const {
        int status = 0;
        for (bool told = false; waitpid(pid, &status, WNOHANG) == 0; std::this_thread::sleep_for(kLook)) {
            if (remembered_signal() != 0 && !told) kill(pid, SIGUSR1), told = true;
        }
        kill(-pid, SIGKILL);  // what mpirun has left
        return code_of(status);
    }

    int finish(int code) const {
        if (args_.json) fmt::print("{}\n", Json{{"code", code}, {"step", last_step()}, {"attempts", attempts_}}.dump());
        if (code != kDone || attempts_.size() > 1) {
            for (const Json& a : attempts_)
                telemetry::info(fmt::format(
                    "launch: attempt {}: step {} to {}, {:.1f} s, exit code {}{}", a["attempt"].get<int>(),
                    a["from_step"].get<int64_t>(), a["to_step"].get<int64_t>(), a["time_s"].get<double>(), a["code"].get<int>(),
                    a["hosts"].empty() ? "" : fmt::format(", on {}", fmt::join(a["hosts"].get<Words>(), " "))));
        }
        if (code == kFailed)
            telemetry::error(fmt::format("launch: given up after {} attempts at step {}", attempts_.size(), last_step()));
        return code;
    }

    const LaunchArgs& args_;
    const std::vector<Host> hosts_;
    compile::Recipe recipe_;
    compile::Layout whole_;
    int64_t processes_ = 0;  // where no host is gone
    std::string root_;
    Json attempts_ = Json::array();
};

}  // namespace

int launch(const LaunchArgs& args) { return Launch(args).run(); }

}  // namespace lockstep::cli
