#include <fmt/format.h>

#include <fmt/ranges.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/nearest.h"
#include "base/output_file.h"
#include "base/text_file.h"
#include "cli/checkpointing.h"
#include "cli/groups.h"
#include "cli/job.h"
#include "cli/machine.h"
#include "cli/number_flags.h"
#include "cli/observe.h"
#include "cli/run_log.h"
#include "cli/stopping.h"
#include "cli/watch.h"
#include "compile/report.h"
#include "runtime/capture.h"
#include "runtime/replicas.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

struct TrainArgs {
    RecipeArgs recipe;
    std::vector<std::string> watch;
    ObserveArgs observe;
    bool json = false;
};

double median(std::vector<double> x) {
    if (x.empty()) return 0;
    std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
    return x[x.size() / 2];
}

std::string make_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error)
        throw UserError("train.dump_folder", "job.dump_folder",
                        fmt::format("job.dump_folder: {} cannot be made: {}", path, error.message()));
    return path;
}

std::unique_ptr<FolderLock> lock(comm::Crew& crew, const std::string& folder) {
    std::unique_ptr<FolderLock> lock;
    crew.together([&] {
        if (crew.is_first()) lock = std::make_unique<FolderLock>(make_folder(folder));
    });
    return lock;
}

// The loop of one training run: steps, what is said of them, validation, checkpoints, a clean stop.
class Run {
public:
    using Clock = std::chrono::steady_clock;

    Run(Job& job, const TrainArgs& args, Clock::time_point begun)
        : job_(job),
          crew_(job.trainer->ranks().crew()),
          config_(job.config),
          recipe_(job.recipe),
          dump_(config_.job.dump_folder),
          lock_(lock(crew_, dump_)),
          log_(job, dump_, args.observe.cluster),
          checkpoints_(job, std::filesystem::path(dump_) / config_.checkpoint.folder),
          stopping_(config_, begun),
          watch_(args.watch),
          observe_(args.observe),
          steps_(config_.training.steps),
          replica_check_freq_(config_.debug.replica_check_freq) {}

    int run() {
        checkpoints_.resume();
        keep_recipe();
        checkpoint_ = checkpoints_.latest();
        log_.start(job_.trainer->progress().steps > 0 ? checkpoint_ : "");
        replicas_agreed_ = job_.trainer->progress().steps;
        if (config_.checkpoint.create_seed_checkpoint) {
            checkpoints_.at_end(Checkpointing::End::Stopped);
            return kDone;
        }
        std::optional<runtime::Capture> capture;
        if (!watch_.empty()) {
            capture.emplace(job_.trainer->ranks(), [this](const std::string& name) {
                return std::find(watch_.begin(), watch_.end(), name) != watch_.end();
            });
        }
        observer_.emplace(observe_, *job_.trainer, job_.compiled, steps_ - job_.trainer->progress().steps);
        while (job_.trainer->progress().steps < steps_ && !stopping_.asked(crew_)) {
            const runtime::StepResult r = observer_->step();
            if (capture) {
                const auto watched = capture->take();
                crew_.together([&] { write_watched(r.step, watched); });
            }
            after(r);
            stopping_.after_step(r, checkpoints_.longest_save_s());
        }
        return end();
    }

    // What became of the run, for those who read of it later.
    void say_end(const nlohmann::ordered_json& summary) {
        note_checkpoint();
        const bool done = job_.trainer->progress().steps >= steps_, counted = counted_ || times_.empty();
        if (done) log_.end(counted ? "done" : "non_finite", counted ? "" : "no step of this run counted", summary);
        else log_.end(std::string(name_of(stopping_.reason())), stopping_.text(), summary);
    }
    void say_failed(const std::string& why) { log_.end("failed", why, nullptr); }

    // null where no profile was asked for.
    nlohmann::ordered_json profile(bool quiet) { return observer_ ? observer_->finish(quiet) : nullptr; }

    nlohmann::ordered_json summary() const {
        int64_t resident = 0;  // of all processes
        for (const std::string& bytes : crew_.exchange(std::to_string(log_.resident_bytes()))) resident += std::stoll(bytes);
        const double step_s = median({times_.begin() + std::min<long>(2, static_cast<long>(times_.size())), times_.end()});
        nlohmann::ordered_json out = {
            {"steps", job_.trainer->progress().steps},
            {"final_loss", last_loss_},
            {"tokens_per_s", step_s > 0 ? static_cast<double>(job_.trainer->tokens_per_step()) / step_s : 0.0},
            {"step_time_s", step_s},
            {"peak_bytes_planned", job_.compiled.all_arena_bytes()},
            {"peak_bytes_resident", resident},
            {"checkpoint", or_null(checkpoints_.latest())},
            {"checkpoints_written", checkpoints_.written()},
            {"checkpoint_stall_s", checkpoints_.stall_s()},
            {"stopped", or_null(job_.trainer->progress().steps < steps_ ? std::string(name_of(stopping_.reason())) : "")},
            {"start_up_s", job_.start_up_s},
            {"dump_folder", dump_}};
        if (heldout_) {
            out["heldout_loss"] = heldout_->loss;
            for (const auto& [name, loss] : heldout_->of_sets) out["heldout_loss_of"][name] = loss;
        }
        if (job_.data.unigram_entropy_nats) out["unigram_entropy_nats"] = *job_.data.unigram_entropy_nats;
        return out;
    }

private:
    static nlohmann::ordered_json or_null(const std::string& text) {
        return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
    }

    // The last checkpoint, and the exit code.
    int end() {
        log_.clear_bar();
        const Stopping::Reason reason = stopping_.reason();
        if (reason == Stopping::Reason::NonFinite) {  // the weights may be what is wrong: nothing is saved
            checkpoints_.wait();
            const std::string good = checkpoints_.latest();
            telemetry::error(fmt::format("{} after step {}; {}", stopping_.text(), job_.trainer->progress().steps,
                                         good.empty() ? "there is no checkpoint" : "the last good checkpoint is " + good));
            return kFailed;
        }
        const bool done = job_.trainer->progress().steps >= steps_;
        if (done && !times_.empty() && !counted_) {  // as above: nothing is saved
            checkpoints_.wait();
            telemetry::error(fmt::format(
                "none of the {} steps of this run counted: loss or gradient norm was never finite, and the weights are those "
                "that it "
                "began with. Lower optimizer.lr, or look for the first tensor that is not finite (`lockstep train --watch`)",
                times_.size()));
            return kFailed;
        }
        checkpoints_.at_end(done ? Checkpointing::End::LastStep : Checkpointing::End::Stopped);
        if (done) return kDone;
        telemetry::warn(fmt::format("{} after step {}: {}", stopping_.text(), job_.trainer->progress().steps,
                                    checkpoints_.saves()
                                        ? "checkpoint written: " + checkpoints_.latest() + "; go on with the same command"
                                        : "nothing was saved, since checkpoint.enable is false"));
        return checkpoints_.saves() ? kStopped : kFailed;
    }

    void after(const runtime::StepResult& r) {
        last_loss_ = r.loss;
        times_.push_back(r.step_time_s);
        counted_ |= r.committed;
        const bool validate = !job_.data.heldout.empty() && (r.step % config_.validation.freq == 0 || r.step == steps_);
        if (validate) heldout_ = evaluate();
        log_.step(r, validate ? heldout_ : std::nullopt);
        if (replica_check_freq_ > 0 && r.step % replica_check_freq_ == 0) check_replicas(r.step);
        checkpoints_.after_step(r);  // after the log: a step that need not be done again must stand in it
        note_checkpoint();
    }

    // What differs may be in every checkpoint since the last look: none is written, and which one to take is said.
    void check_replicas(int64_t step) {
        const std::vector<runtime::ReplicaDifference> differences = runtime::replica_differences(job_.trainer->ranks());
        if (differences.empty()) {
            replicas_agreed_ = step;
            return;
        }
        const runtime::ReplicaDifference& d = differences.front();
        const bool two = d.ranks.size() == d.others.size();  // nobody can say which one is right
        throw std::runtime_error(fmt::format(
            "step {}: the {} on rank{} {} differ from those of rank{} {}, which must be the same{}{}. They last agreed at step "
            "{}: resume from a checkpoint of that step or an earlier one (checkpoint.load_step), without the faulty machine",
            step, d.state, d.ranks.size() > 1 ? "s" : "", fmt::join(d.ranks, " "), d.others.size() > 1 ? "s" : "",
            fmt::join(d.others, " "), two ? " (either may be wrong)" : "",
            differences.size() > 1 ? fmt::format(", and {} more states", differences.size() - 1) : "", replicas_agreed_));
    }

    HeldoutLoss evaluate() {
        runtime::Evaluator& e = job_.trainer->evaluator();
        const int64_t steps = config_.validation.steps;
        HeldoutLoss out;
        runtime::EvalResult whole;
        for (const RunData::Heldout& set : job_.data.heldout) {
            const int64_t all = e.batches(set.data);
            const runtime::EvalResult r = e.evaluate(set.data, steps > 0 ? std::min(steps, all) : all);
            whole += r;
            if (job_.data.heldout.size() > 1) out.of_sets.emplace_back(set.name, r.loss());
        }
        out.loss = whole.loss();
        return out;
    }

    void note_checkpoint() {
        if (checkpoints_.latest() == checkpoint_) return;
        checkpoint_ = checkpoints_.latest();
        log_.checkpoint(checkpoint_);
    }

    // One line a value would be unreadable: shape in the first line, then all values in global order, a row of the last dim a
    // line.
    void write_watched(int64_t step, const std::map<std::string, runtime::Captured>& tensors) {
        for (const auto& [name, t] : tensors) {
            if (!crew_.is_first()) break;
            const std::string path = fmt::format("{}/{}.step{}.txt", make_folder(dump_ + "/watch"), name, step);
            std::ofstream out(path);
            fmt::memory_buffer text;
            fmt::format_to(std::back_inserter(text), "# {} step {} shape [{}]\n", name, step, fmt::join(t.shape, ", "));
            const int64_t row = t.shape.empty() ? 1 : t.shape.back();
            for (size_t i = 0; i < t.values.size(); ++i)
                fmt::format_to(std::back_inserter(text), "{}{}", t.values[i],
                               (static_cast<int64_t>(i) + 1) % row == 0 ? "\n" : " ");
            out.write(text.data(), static_cast<std::streamsize>(text.size()));
            if (!out) throw UserError("train.watch", "--watch", fmt::format("{}: cannot be written", path));
        }
    }

    // recipe.toml is the one of now. Each that the run has begun or gone on with stays in recipes/, by its first step.
    void keep_recipe() {
        crew_.together([&] {
            if (!crew_.is_first()) return;
            const std::string now = recipe_.toml(), file = dump_ + "/recipe.toml";
            if (std::filesystem::exists(file) && read_text_file(file).text == now) return;
            const auto write = [&](const std::string& path) {
                AtomicFile out(path);
                out.append(now);
                out.finish();
                out.publish();
            };
            const std::string kept =
                fmt::format("{}/step-{:08}", make_folder(dump_ + "/recipes"), job_.trainer->progress().steps);
            std::string path = kept + ".toml";
            for (int again = 2; std::filesystem::exists(path); ++again) path = fmt::format("{}.{}.toml", kept, again);
            write(path);
            write(file);
        });
    }

    Job& job_;
    comm::Crew& crew_;
    const compile::Config& config_;
    const compile::Recipe& recipe_;
    const std::string dump_;
    const std::unique_ptr<FolderLock> lock_;  // of dump_, held by the first process
    RunLog log_;
    Checkpointing checkpoints_;
    Stopping stopping_;
    const std::vector<std::string> watch_;
    const ObserveArgs observe_;
    const int64_t steps_, replica_check_freq_;
    int64_t replicas_agreed_ = 0;  // after which step
    std::vector<double> times_;
    double last_loss_ = std::nan("");
    std::optional<HeldoutLoss> heldout_;  // the last one
    std::optional<Observer> observer_;
    std::string checkpoint_;  // the last one that the log knows of
    bool counted_ = false;    // any step of this run
};

void require_watchable(const std::vector<std::string>& watch, const compile::Compiled& compiled) {
    std::set<std::string> names;
    if (!watch.empty())
        for (const ir::Program& p : compiled.programs) names.merge(runtime::capturable(p, ir::EntryKind::Train));
    for (const std::string& name : watch) {
        if (names.contains(name)) continue;
        const std::string meant = nearest_if_close(name, {names.begin(), names.end()});
        throw UserError("train.watch_name", "--watch",
                        fmt::format("--watch {}: no op makes a tensor of that name; `lockstep show` prints them, written as "
                                    "layer[0].forward.q{}",
                                    name, meant.empty() ? "" : fmt::format("; did you mean {}?", meant)));
    }
}

int train(const TrainArgs& args, comm::Crew& crew) {
    const auto begun = std::chrono::steady_clock::now();
    const SignalNotice notice;
    const std::unique_ptr<Job> job = start_job(args.recipe, &crew,
                                               {{"--watch", fmt::format("{}", fmt::join(args.watch, " "))},
                                                {"--trace", args.observe.trace},
                                                {"--trace-step", std::to_string(args.observe.trace_step)},
                                                {"--profile", args.observe.profile ? "given" : "not given"}});
    require_watchable(args.watch, job->compiled);
    if (crew.hosts() > 1)
        warn_of_hosts(described_cluster(job->config), compile::traffic_of(job->compiled, job->trainer->ranks().host_of()));
    const Watch watch(job->config, job->trainer->ranks());
    Run run(*job, args, begun);
    int code = kDone;
    try {
        crew.guard([&] { code = run.run(); });
    } catch (const std::exception& e) {
        run.say_failed(e.what());
        throw;
    }
    nlohmann::ordered_json summary = run.summary();
    run.say_end(summary);
    if (nlohmann::ordered_json profile = run.profile(args.json || !crew.is_first()); !profile.is_null())
        summary["profile"] = std::move(profile);
    if (!crew.is_first()) return code;
    if (args.json) {
        print_json(summary);
        return code;
    }
    telemetry::info(fmt::format("memory of all ranks: planned {}, resident {}", gib(summary["peak_bytes_planned"]),
                                gib(summary["peak_bytes_resident"])));
    if (summary.contains("heldout_loss") && summary["heldout_loss"].is_number()) {
        const auto entropy = job->data.unigram_entropy_nats;
        telemetry::info(fmt::format("held-out loss {:.4f} nats{}", summary["heldout_loss"].get<double>(),
                                    entropy ? fmt::format("; token frequencies alone give {:.4f}", *entropy) : ""));
    }
    telemetry::info(fmt::format("written: {}", summary["dump_folder"].get<std::string>()));
    return code;
}

}  // namespace

Command add_train(CLI::App& app) {
    const auto args = std::make_shared<TrainArgs>();
    CLI::App* command = app.add_subcommand(
        "train", "train a recipe; ranks are threads of this process, or of all processes that mpirun or srun started");
    add_recipe_flags(*command, args->recipe);
    command->add_option(
        "--watch", args->watch,
        "a tensor, such as layer[0].forward.q or embed.forward.y; its values are written in global order under the dump folder");
    auto* trace = command->add_option("--trace", args->observe.trace,
                                      "write the timeline of one step to this file, for chrome://tracing or Perfetto");
    command->add_option("--trace-step", args->observe.trace_step, "step of this run to trace (default: the third)")
        ->needs(trace)
        ->check(positive_number());
    command->add_flag("--profile", args->observe.profile,
                      "print the time by kind of op, beside this machine's roofs, which are measured after the run");
    command->add_option("--cluster", args->observe.cluster,
                        "cluster file of this machine: the step time is planned on it, and MFU and --profile take its roofs "
                        "instead of measuring them");
    command->add_flag("--json", args->json, "one JSON object on standard output at the end");
    command->footer("Example: lockstep train recipes/demo.toml --training.steps 100");
    return {.app = command,
            .run = [args](comm::Crew& crew) { return train(*args, crew); },
            .recipe = &args->recipe,
            .in_every_process = true,
            .catches_signals = true};
}

}  // namespace lockstep::cli
