#include "job/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/output_file.h"
#include "checkpoint/folder.h"
#include "comm/islands/service.h"
#include "compile/layout.h"
#include "job/hosts.h"
#include "job/stopping.h"
#include "planning/machine.h"
#include "planning/topology.h"
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

// A job as one supervisor looks after it: all of a launch, or one of its islands.
struct Part {
    std::vector<Host> hosts;
    compile::Recipe recipe;
    int64_t processes = 0;  // 0: one for each rank
    std::optional<int64_t> island;
    Words environment;  // NAME=value
    Output output = Output::Shown;
};

// What the supervisors of islands have in common.
struct Islands {
    comm::islands::Service service;
    std::vector<std::atomic<bool>> go_on;  // by island: it runs, and its attempts are not in vain

    Islands(const comm::islands::ServiceOptions& options)
        : service(options, [](const std::string& line) { telemetry::info("launch: " + line); }),
          go_on(static_cast<size_t>(options.meetings.islands)) {
        for (std::atomic<bool>& g : go_on) g = true;
    }
    void set_going_on(int64_t island, bool does) { go_on[static_cast<size_t>(island)] = does; }
    // For good.
    void leave(int64_t island) {
        set_going_on(island, false);
        service.lost(island);
    }
    bool others_go_on(int64_t island) const {
        for (size_t i = 0; i < go_on.size(); ++i) {
            if (static_cast<int64_t>(i) != island && go_on[i]) return true;
        }
        return false;
    }
};

class Launch {
public:
    Launch(const SupervisorOptions& args, Part part, Islands* islands)
        : args_(args), part_(std::move(part)), islands_(islands), hosts_(part_.hosts, args.agent), processes_(part_.processes) {
        for (const Host& h : hosts_.all()) processes_ += h.slots;
        compile::Recipe& recipe = part_.recipe;
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

    Supervised run() {
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
                if (islands_) islands_->service.expect(*part_.island, in_vain <= args_.max_restarts);
                code = wait_for(job::start(*command, part_.output), live, cleaned);
                if (islands_ && code == kDone) islands_->service.done(*part_.island);
            } else {
                if (islands_) islands_->service.lost(*part_.island);  // nobody waits for it
                telemetry::warn(
                    islands_ ? fmt::format("launch: {}the hosts of this island do not all answer", name())
                             : fmt::format("launch: no {} processes are left for one replica", whole_.ranks / whole_.data_ranks));
            }
            attempts_.push_back({part_.island, names_of(live), code, std::chrono::duration<double>(Clock::now() - start).count(),
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
                if (live.size() < hosts_.all().size())
                    hosts_.answers(hosts_.clean(0));  // who was cut off may have something left
                return finish(code);
            }
            in_vain = last_step() > before ? 0 : in_vain + 1;
            if (islands_) islands_->set_going_on(*part_.island, in_vain <= args_.max_restarts);
            if (islands_ && command) islands_->service.expect(*part_.island, in_vain <= args_.max_restarts);
            std::this_thread::sleep_for(std::min(in_vain, kLongestPause) * kPause);  // hosts may come back
            const size_t had = live.size();
            live = hosts_.answers(cleaned.empty() ? hosts_.clean(0) : cleaned);
            // 1 is also what mpirun says when it has lost a host.
            if (code <= kUsage && in_vain > 0 && live.size() >= had) return finish(code);
            if (remembered_signal() != 0) {
                telemetry::error(fmt::format(
                    "launch: {}ended after {} without a checkpoint of its last step; {}", name(),
                    signal_name(remembered_signal()),
                    last_step() > 0 ? "the last one is " + checkpoint::folder_of(root_, last_step()) : "there is none"));
                return finish(kFailed);
            }
            // An island may come back as long as there are others to come back to.
            if (in_vain > args_.max_restarts && !(islands_ && islands_->others_go_on(*part_.island))) return finish(kFailed);
            telemetry::warn(fmt::format("launch: {}exit code {}; again from step {}", name(), code, last_step()));
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

    // To begin a line with.
    std::string name() const { return part_.island ? fmt::format("island {}: ", *part_.island) : std::string(); }

    // mpirun with as many data-parallel replicas as there is room for, and the batch of all.
    std::optional<Words> command_for(const std::vector<Host>& live) const {
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
        out.insert(out.end(), part_.environment.begin(), part_.environment.end());
        out.push_back(std::filesystem::read_symlink("/proc/self/exe").string());
        out.insert(out.end(), args_.command.begin(), args_.command.end());
        const auto set = [&](const char* key, int64_t value) {
            out.insert(out.end(), {fmt::format("--{}", key), std::to_string(value)});
        };
        set("parallelism.data_parallel_replicate_degree", replicate), set("parallelism.data_parallel_shard_degree", shard);
        set("cluster.ranks", ranks), set("training.global_batch_size", whole_.global_batch);
        if (part_.island) {
            set("fault_tolerance.replica_id", *part_.island);
            out.insert(out.end(), {"--job.dump_folder", part_.recipe.text("job.dump_folder")});
            if (part_.output == Output::Dropped && std::find(out.begin(), out.end(), "--quiet") == out.end())
                out.push_back("--quiet");
        }
        if (ranks < whole_.ranks)
            telemetry::warn(fmt::format("launch: {} of {} data-parallel ranks, with the same global batch of {}",
                                        replicate * shard, whole_.data_ranks, whole_.global_batch));
        return out;
    }

    // Exit code of an attempt. A signal to stop is sent to all ranks repeatedly, as a rank may not listen yet. After the grace
    // period, or a second Ctrl-C, what still runs is ended. New flight records mean that all ranks end: the hosts are then
    // cleaned, as after the loss of a host. When the hosts have answered, mpirun is killed.
    int wait_for(pid_t pid, const std::vector<Host>& used, std::vector<Asked>& cleaned) const {
        const auto before = newest_in(records_);
        const int64_t from_step = last_step();
        Clock::time_point looked = Clock::now();
        Hosts::Lookout lookout(hosts_, used);
        Stop stop(*this);
        int status = 0;
        for (; waitpid(pid, &status, WNOHANG) == 0; std::this_thread::sleep_for(kLook)) {
            if (cleaned.empty() && stop.is_overdue())
                cleaned = was_interrupted_again() ? hosts_.clean(0) : hosts_.end(kGraceSeconds);
            if (!cleaned.empty()) {
                if (!all_answered(cleaned)) continue;
                telemetry::warn("launch: mpirun does not end: it is killed");
                kill(-pid, SIGKILL);
                status = await_end(pid);
                break;
            }
            if (Clock::now() - looked < kLookForRecords) continue;
            looked = Clock::now();
            if (islands_ && last_step() > from_step) islands_->set_going_on(*part_.island, true);
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

    // What a signal to the supervisor becomes.
    class Stop {
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
                    fmt::format("launch: {}: all ranks are told to stop after their step, with a checkpoint; what still "
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

    Supervised finish(int code) const {
        if (islands_) islands_->leave(*part_.island);
        return {code, last_step(), attempts_};
    }

    const SupervisorOptions& args_;
    Part part_;
    Islands* const islands_;
    const Hosts hosts_;
    compile::Layout whole_;
    int64_t processes_ = 0;       // where no host is gone
    std::string root_, records_;  // folders of checkpoints, of flight records
    std::vector<Attempt> attempts_;
};

// The job of the command, as a whole.
Part whole_of(const SupervisorOptions& args) {
    if (!args.command.empty() && args.command[0] != "train")
        throw UserError(
            "launch.command", "--",
            fmt::format("launch starts train, but the command after -- is {}: write lockstep launch -- train recipe.toml",
                        args.command[0]));
    if (args.recipe.path.empty())
        throw UserError("launch.command", "--",
                        "nothing to start: write the command after --, as in lockstep launch -- train recipe.toml");
    Part whole{hosts_of(args.hosts), planning::announced_for_training(args.recipe).recipe, args.processes, {}, {}, Output::Shown};
    planning::set_levels(whole.recipe, "");
    const compile::Config config = compile::config_of(whole.recipe);
    planning::use_instruction_set(config);
    if (!config.checkpoint.enable || config.checkpoint.interval < 1)
        telemetry::warn(
            "launch: without checkpoint.enable = true and a checkpoint.interval every restart begins at the first step");
    return whole;
}

// The hosts, in their order, in equal parts.
std::vector<std::vector<Host>> parts_of(const std::vector<Host>& hosts, int64_t islands) {
    int64_t slots = 0;
    for (const Host& h : hosts) slots += h.slots;
    const int64_t each = slots / islands;
    if (slots % islands != 0)
        throw UserError("launch.islands", "--hosts",
                        fmt::format("launch: {} processes cannot be shared out among fault_tolerance.group_size = {} islands: "
                                    "each has equally many; change one of them",
                                    slots, islands));
    std::vector<std::vector<Host>> out(static_cast<size_t>(islands));
    int64_t taken = 0;
    for (const Host& h : hosts) {
        for (int64_t left = h.slots; left > 0;) {
            const int64_t here = std::min(left, each - taken % each);
            out[static_cast<size_t>(taken / each)].push_back({h.name, here});
            taken += here, left -= here;
        }
    }
    return out;
}

// host:port of --meet-at, or what stands for it.
comm::islands::ServiceOptions service_of(const SupervisorOptions& args, const compile::Config& config, bool here) {
    comm::islands::ServiceOptions o;
    o.meetings.islands = config.fault_tolerance.group_size;
    if (const int64_t timeout_s = config.comm.train_timeout_seconds; timeout_s > 0)
        o.meetings.patience_s = static_cast<double>(timeout_s) / 2;
    if (args.meet_at.empty()) {
        std::array<char, 256> name{};
        if (!here && gethostname(name.data(), name.size() - 1) == 0) o.host = name.data();
        return o;
    }
    const size_t colon = args.meet_at.rfind(':');
    o.host = args.meet_at.substr(0, colon);
    const std::string port = colon == std::string::npos ? "0" : args.meet_at.substr(colon + 1);
    constexpr int kMostPort = 65535;
    const bool is_number = !port.empty() && port.size() < 6 && port.find_first_not_of("0123456789") == std::string::npos;
    if (o.host.empty() || !is_number || (o.port = std::stoi(port)) > kMostPort)
        throw UserError(
            "launch.meet_at", "--meet-at",
            fmt::format("--meet-at {}: it must be a host's name, or name:port with a port up to {}", args.meet_at, kMostPort));
    return o;
}

// A file that only its owner can read, as long as the launch runs; no other launch has one of this name.
struct Secret {
    std::string file;
    Secret(const std::filesystem::path& folder, const comm::islands::Invitation& invitation) {
        std::random_device random;
        file = (folder / fmt::format("islands-{:08x}{:08x}.json", random(), random())).string();
        comm::islands::write_invitation(file, invitation);
    }
    ~Secret() {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
    }
    Secret(const Secret&) = delete;
    Secret& operator=(const Secret&) = delete;
};

// Of an island's run, in that of the first one.
std::string folder_of(const std::filesystem::path& first, int64_t island) {
    return (first / fmt::format("island.{}", island)).string();
}

// A job for each island.
Supervised supervise_islands(const SupervisorOptions& args, const Part& whole, const compile::Config& config) {
    const int64_t count = config.fault_tolerance.group_size;
    const bool here = whole.hosts.empty();
    if (whole.processes % count != 0)
        throw UserError("launch.islands", "--processes",
                        fmt::format("--processes {} cannot be shared out among fault_tolerance.group_size = {} islands: each has "
                                    "equally many",
                                    whole.processes, count));
    const std::vector<std::vector<Host>> hosts = parts_of(whole.hosts, count);
    Islands islands(service_of(args, config, here));
    const std::filesystem::path folder = config.job.dump_folder;
    make_folder(folder);
    const Secret secret(folder, islands.service.invitation());
    std::vector<std::unique_ptr<Launch>> launches;
    for (int64_t i = 0; i < count; ++i) {
        const auto k = static_cast<size_t>(i);
        Part part{hosts[k],
                  whole.recipe,
                  whole.processes / count,
                  i,
                  {fmt::format("{}={}", comm::islands::kInvitation, secret.file)},
                  i == 0 ? Output::Shown : Output::Dropped};
        part.recipe.set("fault_tolerance.replica_id", std::to_string(i));
        if (config.cluster.ranks > 0) part.recipe.set("cluster.ranks", std::to_string(config.cluster.ranks / count));
        if (i > 0) part.recipe.set("job.dump_folder", folder_of(folder, i));
        islands.service.expect(i);  // nobody begins before all have been started
        launches.push_back(std::make_unique<Launch>(args, std::move(part), &islands));
    }
    std::vector<Supervised> ends(launches.size());
    std::vector<std::exception_ptr> errors(launches.size());
    std::vector<std::thread> threads;
    for (size_t k = 0; k < launches.size(); ++k) {
        threads.emplace_back([&, k] {
            try {
                ends[k] = launches[k]->run();
            } catch (...) {
                errors[k] = std::current_exception();
                islands.leave(static_cast<int64_t>(k));
            }
        });
    }
    for (std::thread& t : threads) t.join();
    for (const std::exception_ptr& e : errors) {
        if (e) std::rethrow_exception(e);
    }
    // The first one's folder is that of the job.
    Supervised out{ends[0].code, ends[0].step, {}};
    for (size_t k = 0; k < ends.size(); ++k) {
        out.attempts.insert(out.attempts.end(), ends[k].attempts.begin(), ends[k].attempts.end());
        if (ends[k].code == out.code) continue;
        const std::string where = k == 0 ? folder.string() : folder_of(folder, static_cast<int64_t>(k));
        telemetry::warn(
            fmt::format("launch: island {} ended with exit code {} at step {}: {}", k, ends[k].code, ends[k].step, where));
    }
    return out;
}

}  // namespace

Supervised supervise(const SupervisorOptions& options) {
    const Part whole = whole_of(options);
    if (geteuid() == 0)  // mpirun asks twice
        setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0), setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    const compile::Config config = compile::config_of(whole.recipe);
    if (config.fault_tolerance.enable && config.fault_tolerance.replica_id >= 0)
        throw UserError("launch.islands", "fault_tolerance.replica_id",
                        fmt::format("{}fault_tolerance.replica_id = {}: launch starts all islands and numbers them itself; leave "
                                    "it out",
                                    config.where("fault_tolerance.replica_id"), config.fault_tolerance.replica_id));
    if (!config.fault_tolerance.enable) {
        Launch launch(options, whole, nullptr);
        remember_signals(Again::IsRemembered);
        return launch.run();
    }
    compile::layout_of(config);  // what is wrong with islands is said before any is started
    remember_signals(Again::IsRemembered);
    return supervise_islands(options, whole, config);
}

}  // namespace lockstep::job
