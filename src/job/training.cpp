#include "job/training.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <set>
#include <span>

#include "base/error.h"
#include "base/nearest.h"
#include "base/output_file.h"
#include "base/text_file.h"
#include "compile/traffic.h"
#include "job/checkpointing.h"
#include "job/job.h"
#include "job/run_log.h"
#include "job/stopping.h"
#include "job/watch.h"
#include "planning/topology.h"
#include "runtime/capture.h"
#include "runtime/replicas.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

double median(std::vector<double> x) {
    if (x.empty()) return 0;
    std::nth_element(x.begin(), x.begin() + static_cast<long>(x.size() / 2), x.end());
    return x[x.size() / 2];
}

// Of the steps but the first two. Where islands meet now and then, the mean, which includes meetings.
double time_of_a_step(std::span<const double> x, bool meets) {
    x = x.subspan(std::min<size_t>(2, x.size()));
    if (!meets) return median({x.begin(), x.end()});
    return std::accumulate(x.begin(), x.end(), 0.0) / std::max(1.0, static_cast<double>(x.size()));
}

std::string make_folder(const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error)
        throw UserError("train.dump_folder", "job.dump_folder",
                        fmt::format("job.dump_folder: {} cannot be made: {}", path, error.message()));
    return path;
}

std::unique_ptr<FolderLock> lock(comm::ProcessGroup& group, const std::string& folder) {
    std::unique_ptr<FolderLock> lock;
    group.together([&] {
        if (group.is_first()) lock = std::make_unique<FolderLock>(make_folder(folder));
    });
    return lock;
}

// The loop of one training run: steps, what is said of them, validation, checkpoints, a clean stop.
class Run {
public:
    using Clock = std::chrono::steady_clock;

    Run(Job& job, const TrainOptions& options, Clock::time_point begun)
        : job_(job),
          group_(job.trainer->ranks().group()),
          config_(job.config),
          recipe_(job.recipe),
          dump_(config_.job.dump_folder),
          lock_(lock(group_, dump_)),
          log_(job, dump_, options.observe.cluster),
          checkpoints_(job, std::filesystem::path(dump_) / config_.checkpoint.folder),
          stopping_(config_, begun),
          options_(options),
          steps_(config_.training.steps),
          replica_check_freq_(config_.debug.replica_check_freq) {}

    int run() {
        checkpoints_.resume();
        if (job_.trainer->join_islands())
            telemetry::info(fmt::format("island {}: the state is now that of another island, at step {}",
                                        job_.compiled.layout.job, job_.trainer->progress().steps));
        keep_recipe();
        checkpoint_ = checkpoints_.latest();
        log_.start(job_.trainer->progress().steps > 0 ? checkpoint_ : "");
        replicas_agreed_ = job_.trainer->progress().steps;
        if (config_.checkpoint.create_seed_checkpoint) {
            checkpoints_.at_end(Checkpointing::End::Stopped);
            return kDone;
        }
        std::optional<runtime::Capture> capture;
        if (!options_.watch.empty()) {
            capture.emplace(job_.trainer->ranks(), [this](const std::string& name) {
                return std::find(options_.watch.begin(), options_.watch.end(), name) != options_.watch.end();
            });
        }
        const bool logs_float8 = config_.metrics.log_float8 && config_.float8().has_value();
        if (logs_float8 && !capture) float8_.emplace(job_.trainer->ranks());
        if (logs_float8 && capture) telemetry::warn("metrics.log_float8 counts nothing in a run with --watch");
        observer_.emplace(options_.observe, *job_.trainer, job_.compiled, steps_ - job_.trainer->progress().steps);
        while (job_.trainer->progress().steps < steps_) {
            const bool stops = stopping_.asked(group_);
            if (stops && !job_.trainer->has_begun_next()) break;
            const bool counts = begin_counting();
            const bool more = !stops && !capture && !options_.on_step && !looks_after(job_.trainer->progress().steps + 1);
            const runtime::StepResult r = observer_->step(more);
            if (counts) log_.float8(r.step, float8_->take());
            if (capture) {
                const auto watched = capture->take();
                group_.together([&] { write_watched(r.step, watched); });
            }
            after(r);
            stopping_.after_step(r, checkpoints_.longest_save_s());
            if (options_.on_step && !options_.on_step(report_of(r))) stopping_.ask();
        }
        if (job_.trainer->progress().steps >= steps_) job_.trainer->admit_islands();  // they need not do the last steps alone
        return end();
    }

    // What became of the run, for those who read of it later.
    void say_end(const TrainSummary& summary) {
        note_checkpoint();
        const bool done = job_.trainer->progress().steps >= steps_, counted = counted_ || times_.empty();
        if (done) log_.end(counted ? "done" : "non_finite", counted ? "" : "no step of this run counted", to_json(summary));
        else log_.end(std::string(name_of(stopping_.reason())), stopping_.text(), to_json(summary));
    }
    // What is refused before the first step, such as a checkpoint, is no end of the run that the folder holds.
    void say_refused(const std::string& why) {
        if (times_.empty()) log_.refused(why);
        else say_failed(why);
    }
    void say_failed(const std::string& why) { log_.end("failed", why, nullptr); }

    std::optional<Profile> profile() { return observer_ ? observer_->finish() : std::nullopt; }

    TrainSummary summary() const {
        TrainSummary s;
        s.resident_bytes = 0;  // of all processes
        for (const std::string& bytes : group_.exchange(std::to_string(log_.resident_bytes())))
            s.resident_bytes += std::stoll(bytes);
        s.step_time_s = time_of_a_step(times_, job_.compiled.layout.mesh.islands() > 1);
        s.steps = job_.trainer->progress().steps;
        s.final_loss = last_loss_;
        if (s.step_time_s > 0) s.tokens_per_s = static_cast<double>(job_.trainer->tokens_per_step()) / s.step_time_s;
        s.planned_bytes = job_.compiled.all_arena_bytes();
        s.checkpoint = checkpoints_.latest();
        s.checkpoints_written = checkpoints_.written();
        s.checkpoint_stall_s = checkpoints_.stall_s();
        if (s.steps < steps_) s.stopped = name_of(stopping_.reason());
        s.start_up_s = job_.start_up_s;
        s.dump_folder = dump_;
        s.heldout = heldout_;
        s.unigram_entropy_nats = job_.data.unigram_entropy_nats;
        return s;
    }

private:
    StepReport report_of(const runtime::StepResult& r) const {
        StepReport report{r, steps_, job_.trainer->tokens_per_step(), checkpoints_.latest(), std::nullopt};
        if (validated_) report.heldout_loss = heldout_->loss;
        return report;
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
        if (done && steps_ == 0) telemetry::warn("training.steps = 0: nothing was trained");
        if (done) return kDone;
        telemetry::warn(fmt::format("{} after step {}: {}", stopping_.text(), job_.trainer->progress().steps,
                                    checkpoints_.saves()
                                        ? "checkpoint written: " + checkpoints_.latest() + "; go on with the same command"
                                        : "nothing was saved, since checkpoint.enable is false"));
        return checkpoints_.saves() ? kStopped : kFailed;
    }

    bool validates_after(int64_t step) const {
        return !job_.data.heldout.empty() && (step % config_.validation.freq == 0 || step == steps_);
    }
    bool compares_after(int64_t step) const { return replica_check_freq_ > 0 && step % replica_check_freq_ == 0; }
    // Is the state that a step leaves wanted by anything but the next step?
    bool looks_after(int64_t step) const {
        return step >= steps_ || validates_after(step) || compares_after(step) || checkpoints_.saves_after(step) ||
               (float8_ && (log_.logs(step) || log_.logs(step + 1)));
    }
    // Of the next step, if it is one that is counted: what its casts lose.
    bool begin_counting() {
        const bool counts = float8_ && log_.logs(job_.trainer->progress().steps + 1);
        if (float8_) float8_->watch(counts);
        return counts;
    }

    void after(const runtime::StepResult& r) {
        last_loss_ = r.loss;
        times_.push_back(r.step_time_s);
        counted_ |= r.committed;
        const bool validate = validates_after(r.step);
        if (validate) heldout_ = evaluate();
        validated_ = validate;
        log_.step(r, validate ? heldout_ : std::nullopt);
        if (compares_after(r.step)) check_replicas(r.step);
        checkpoints_.after_step(r);  // after the log: a step that need not be done again must be in it
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
        for (const planning::RunData::Heldout& set : job_.data.heldout) {
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
            if (!group_.is_first()) break;
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
        group_.together([&] {
            if (!group_.is_first()) return;
            const std::string now = recipe_.toml(), file = dump_ + "/recipe.toml";
            if (std::filesystem::exists(file) && read_text_file(file, Pipes::Refused).text == now) return;
            const std::string kept =
                fmt::format("{}/step-{:08}", make_folder(dump_ + "/recipes"), job_.trainer->progress().steps);
            std::string path = kept + ".toml";
            for (int again = 2; std::filesystem::exists(path); ++again) path = fmt::format("{}.{}.toml", kept, again);
            write_whole_file(path, now);
            write_whole_file(file, now);
        });
    }

    Job& job_;
    comm::ProcessGroup& group_;
    const compile::Config& config_;
    const compile::Recipe& recipe_;
    const std::string dump_;
    const std::unique_ptr<FolderLock> lock_;  // of dump_, held by the first process
    RunLog log_;
    Checkpointing checkpoints_;
    Stopping stopping_;
    const TrainOptions& options_;
    const int64_t steps_, replica_check_freq_;
    int64_t replicas_agreed_ = 0;  // after which step
    std::vector<double> times_;
    double last_loss_ = std::nan("");
    std::optional<HeldoutLoss> heldout_;  // the last one
    std::optional<Observer> observer_;
    std::optional<runtime::Float8Counter> float8_;
    std::string checkpoint_;  // the last one that the log knows of
    bool counted_ = false;    // any step of this run
    bool validated_ = false;  // after the last step
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
                                    "layer[0].forward.o{}",
                                    name, meant.empty() ? "" : fmt::format("; did you mean {}?", meant)));
    }
}

nlohmann::ordered_json or_null(const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
}

}  // namespace

nlohmann::ordered_json to_json(const TrainSummary& s) {
    nlohmann::ordered_json out = {{"steps", s.steps},
                                  {"final_loss", s.final_loss},
                                  {"tokens_per_s", s.tokens_per_s},
                                  {"step_time_s", s.step_time_s},
                                  {"peak_bytes_planned", s.planned_bytes},
                                  {"peak_bytes_resident", s.resident_bytes},
                                  {"checkpoint", or_null(s.checkpoint)},
                                  {"checkpoints_written", s.checkpoints_written},
                                  {"checkpoint_stall_s", s.checkpoint_stall_s},
                                  {"stopped", or_null(s.stopped)},
                                  {"start_up_s", s.start_up_s},
                                  {"dump_folder", s.dump_folder}};
    if (s.heldout) {
        out["heldout_loss"] = s.heldout->loss;
        for (const auto& [name, loss] : s.heldout->of_sets) out["heldout_loss_of"][name] = loss;
    }
    if (s.unigram_entropy_nats) out["unigram_entropy_nats"] = *s.unigram_entropy_nats;
    return out;
}

TrainResult train(compile::Recipe recipe, const TrainOptions& options, comm::ProcessGroup& group) {
    const auto begun = std::chrono::steady_clock::now();
    std::optional<SignalNotice> notice;
    if (options.announces_signals) notice.emplace();
    const std::unique_ptr<Job> job = start_job(std::move(recipe), &group,
                                               {{"--watch", fmt::format("{}", fmt::join(options.watch, " "))},
                                                {"--trace", options.observe.trace},
                                                {"--trace-step", std::to_string(options.observe.trace_step)},
                                                {"--profile", options.observe.profile ? "given" : "not given"}},
                                               options.invitation);
    require_watchable(options.watch, job->compiled);
    if (group.hosts() > 1)
        planning::warn_of_hosts(planning::described_cluster(job->config),
                                compile::traffic_of(job->compiled, job->trainer->ranks().host_of()), job->compiled.layout.ranks);
    const Watch watch(job->config, job->trainer->ranks());
    Run run(*job, options, begun);
    TrainResult result;
    try {
        group.guard([&] { result.code = run.run(); });
    } catch (const UserError& e) {
        run.say_refused(e.what());
        throw;
    } catch (const std::exception& e) {
        run.say_failed(e.what());
        throw;
    }
    result.summary = run.summary();
    run.say_end(result.summary);
    result.profile = run.profile();
    return result;
}

}  // namespace lockstep::job
