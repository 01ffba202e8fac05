#include "job/launch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "job/islands.h"
#include "job/stopping.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

using Clock = std::chrono::steady_clock;
using Words = std::vector<std::string>;

constexpr auto kLook = std::chrono::milliseconds(20), kLookForRecords = std::chrono::milliseconds(250),
               kPause = std::chrono::milliseconds(500), kTellAgain = std::chrono::milliseconds(2000);
// What ranks get to end by themselves once there are flight records, which they write just before they do.
constexpr int kGraceSeconds = 3;
constexpr int64_t kLongestPause = 20;  // times kPause

// Of the newest file in a folder; the least time where there is none.
std::filesystem::file_time_type newest_in(const std::string& folder) {
    auto newest = std::filesystem::file_time_type::min();
    std::error_code error;
    for (const auto& file : std::filesystem::directory_iterator(folder, error))
        newest = std::max(newest, file.last_write_time(error));
    return newest;
}

Words names_of(const std::vector<Host>& hosts) {
    Words out;
    for (const Host& h : hosts) out.push_back(h.name);
    return out;
}

}  // namespace

Launch::Launch(const SupervisorOptions& options, LaunchedJob job, Islands* islands)
    : args_(options), job_(std::move(job)), islands_(islands), hosts_(job_.hosts, options.agent), processes_(job_.processes) {
    for (const Host& h : hosts_.all()) processes_ += h.slots;
    compile::Recipe& recipe = job_.recipe;
    compile::Config config = compile::config_of(recipe);
    if (config.leaves_ranks_open() && processes_ > 0) {
        recipe.set("cluster.ranks", std::to_string(processes_));
        config = compile::config_of(recipe);
    }
    whole_ = compile::layout_of(config);
    if (processes_ == 0) processes_ = whole_.ranks;
    const std::filesystem::path folder = config.job.dump_folder;
    root_ = folder / config.checkpoint.folder;
    records_ = folder / config.comm.save_traces_folder;
}

Supervised Launch::run() {
    int64_t in_vain = 0;
    std::vector<Host> live = hosts_.answers(hosts_.clean(0));
    for (int64_t attempt = 1;; ++attempt) {
        const std::optional<Words> command = command_for(live);
        const int64_t before = last_step();
        int code = kFailed;
        std::vector<Asked> cleaned;
        const Clock::time_point start = Clock::now();
        if (command) {
            telemetry::info(fmt::format("launch: {}", fmt::join(*command, " ")));
            if (islands_) islands_->service().expect(*job_.island, in_vain <= args_.max_restarts);
            code = wait_for(job::start(*command, job_.output), live, cleaned);
            if (islands_ && code == kDone) islands_->service().done(*job_.island);
        } else {
            if (islands_) islands_->service().lost(*job_.island);  // nobody waits for it
            telemetry::warn(
                islands_ ? fmt::format("launch: {}the hosts of this island do not all answer", name())
                         : fmt::format("launch: no {} processes are left for one replica", whole_.ranks / whole_.data_ranks));
        }
        attempts_.push_back({job_.island, names_of(live), code, std::chrono::duration<double>(Clock::now() - start).count(),
                             before, last_step()});
        constexpr int kNotRunnable = 126, kNotFound = 127;  // as a shell says it
        if (attempts_.size() == 1 && (code == kNotRunnable || code == kNotFound))
            throw UserError(
                "launch.mpirun", "--mpirun",
                fmt::format("launch: {} cannot be started: install Open MPI, or give its path with --mpirun", args_.mpirun));
        if (code == kStopped)
            telemetry::info(fmt::format("launch: {}checkpoint written: {}; go on with the same command", name(),
                                        checkpoint::folder_of(root_, last_step())));
        if (code == kDone || code == kStopped) {
            if (live.size() < hosts_.all().size()) hosts_.answers(hosts_.clean(0));  // who was cut off may have something left
            return finish(code);
        }
        in_vain = last_step() > before ? 0 : in_vain + 1;
        if (islands_) islands_->set_going_on(*job_.island, in_vain <= args_.max_restarts);
        if (islands_ && command) islands_->service().expect(*job_.island, in_vain <= args_.max_restarts);
        std::this_thread::sleep_for(std::min(in_vain, kLongestPause) * kPause);  // hosts may come back
        const size_t had = live.size();
        live = hosts_.answers(cleaned.empty() ? hosts_.clean(0) : cleaned);
        // 1 is also what mpirun says when it has lost a host.
        if (code <= kUsage && in_vain > 0 && live.size() >= had) return finish(code);
        if (remembered_signal() != 0) {
            telemetry::error(fmt::format(
                "launch: {}ended after {} without a checkpoint of its last step; {}", name(), signal_name(remembered_signal()),
                last_step() > 0 ? "the last one is " + checkpoint::folder_of(root_, last_step()) : "there is none"));
            return finish(kFailed);
        }
        // An island may come back as long as there are others to come back to.
        if (in_vain > args_.max_restarts && !(islands_ && islands_->others_go_on(*job_.island))) return finish(kFailed);
        telemetry::warn(fmt::format("launch: {}exit code {}; again from step {}", name(), code, last_step()));
    }
}

int64_t Launch::last_step() const {
    const std::vector<int64_t> steps = checkpoint::complete_steps(root_);
    return steps.empty() ? 0 : steps.back();
}

// To begin a line with.
std::string Launch::name() const { return job_.island ? fmt::format("island {}: ", *job_.island) : std::string(); }

// mpirun with as many data-parallel replicas as there is room for, and the batch of all.
std::optional<Words> Launch::command_for(const std::vector<Host>& live) const {
    int64_t slots = hosts_.here() ? processes_ : 0;
    for (const Host& h : live) slots += h.slots;
    const int64_t each = whole_.ranks % processes_ == 0 ? whole_.ranks / processes_ : 1;  // ranks of a process
    const int64_t part = whole_.ranks / whole_.data_ranks;                                // ranks of one replica of the model
    int64_t replicate = whole_.mesh.degree(mesh::Axis::dp_replicate), shard = whole_.mesh.degree(mesh::Axis::dp_shard);
    while (replicate * shard * part > slots * each && replicate > 1) --replicate;
    while (replicate * shard * part > slots * each && shard > 1) --shard;
    const int64_t ranks = replicate * shard * part;
    if (ranks > slots * each || ranks % each != 0) return std::nullopt;
    if (islands_ && ranks < whole_.ranks) return std::nullopt;  // all islands have equally many ranks
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
    out.insert(out.end(), {"env", hosts_.mark()});
    out.insert(out.end(), job_.environment.begin(), job_.environment.end());
    out.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
    out.insert(out.end(), args_.command.begin(), args_.command.end());
    const auto set = [&](const char* key, int64_t value) {
        out.insert(out.end(), {fmt::format("--{}", key), std::to_string(value)});
    };
    set("parallelism.data_parallel_replicate_degree", replicate), set("parallelism.data_parallel_shard_degree", shard);
    set("cluster.ranks", ranks), set("training.global_batch_size", whole_.global_batch);
    if (job_.island) {
        set("fault_tolerance.replica_id", *job_.island);
        out.insert(out.end(), {"--job.dump_folder", job_.recipe.text("job.dump_folder")});
        if (job_.output == Output::Dropped && std::find(out.begin(), out.end(), "--quiet") == out.end()) out.push_back("--quiet");
    }
    if (ranks < whole_.ranks)
        telemetry::warn(fmt::format("launch: {} of {} data-parallel ranks, with the same global batch of {}", replicate * shard,
                                    whole_.data_ranks, whole_.global_batch));
    return out;
}

// What a signal to the supervisor becomes.
class Launch::Stop {
public:
    explicit Stop(const Launch& launch) : launch_(launch) {}
    ~Stop() {
        for (Asked& a : told_) {
            if (!a.code) await_end(a.pid);
        }
    }
    Stop(const Stop&) = delete;
    Stop& operator=(const Stop&) = delete;

    // Tells the ranks, and says so. True once those that still run are to be ended.
    bool is_overdue() {
        if (remembered_signal() == 0) return false;
        const Clock::time_point now = Clock::now();
        const auto grace = std::chrono::seconds(launch_.args_.grace_s);
        const std::string name = signal_name(remembered_signal());
        if (!since_) {
            since_ = next_ = now;
            telemetry::warn(
                fmt::format("launch: {}: all ranks are asked to stop after their step, with a checkpoint; what still "
                            "runs after {} s is ended (--grace), or after a second Ctrl-C",
                            name, launch_.args_.grace_s));
        }
        if (was_interrupted_again() || now - *since_ > grace) {
            telemetry::warn(was_interrupted_again()
                                ? std::string("launch: Ctrl-C again: what still runs is ended, without a checkpoint")
                                : fmt::format("launch: {} s after {} something still runs: it is ended, without a checkpoint",
                                              launch_.args_.grace_s, name));
            return true;
        }
        if (now >= next_ && all_answered(told_)) {
            told_ = launch_.hosts_.ask_to_stop();
            next_ = now + kTellAgain;
        }
        return false;
    }

private:
    const Launch& launch_;
    std::optional<Clock::time_point> since_;
    Clock::time_point next_;
    std::vector<Asked> told_;
};

// Exit code of an attempt. A signal to stop is sent to all ranks repeatedly, as a rank may not listen yet. After the grace
// period, or a second Ctrl-C, what still runs is ended. New flight records mean that all ranks end: the hosts are then
// cleaned, as after the loss of a host. When the hosts have answered, mpirun is killed.
int Launch::wait_for(pid_t pid, const std::vector<Host>& used, std::vector<Asked>& cleaned) const {
    const auto before = newest_in(records_);
    const int64_t from_step = last_step();
    Clock::time_point looked = Clock::now();
    Hosts::Lookout lookout(hosts_, used);
    Stop stop(*this);
    int status = 0;
    for (; waitpid(pid, &status, WNOHANG) == 0; std::this_thread::sleep_for(kLook)) {
        if (cleaned.empty() && stop.is_overdue()) cleaned = was_interrupted_again() ? hosts_.clean(0) : hosts_.end(kGraceSeconds);
        if (!cleaned.empty()) {
            if (!all_answered(cleaned)) continue;
            telemetry::warn("launch: mpirun does not end: it is killed");
            kill(-pid, SIGKILL);
            status = await_end(pid);
            break;
        }
        if (Clock::now() - looked < kLookForRecords) continue;
        looked = Clock::now();
        if (islands_ && last_step() > from_step) islands_->set_going_on(*job_.island, true);
        if (newest_in(records_) != before) {
            cleaned = hosts_.clean(kGraceSeconds);
        } else if (const std::string why = lookout.loss(); !why.empty()) {
            telemetry::warn(fmt::format("launch: {}", why));
            cleaned = hosts_.clean(kGraceSeconds);
        }
    }
    kill(-pid, SIGKILL);  // what mpirun has left
    return code_of(status);
}

Supervised Launch::finish(int code) const {
    if (islands_) islands_->leave(*job_.island);
    return {code, last_step(), attempts_};
}

}  // namespace lockstep::job
