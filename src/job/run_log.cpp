#include "job/run_log.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>

#include "base/build_info.h"
#include "base/error.h"
#include "base/json.h"
#include "base/processors.h"
#include "compile/memory_report.h"
#include "compile/rank_threads.h"
#include "measure/roofs.h"
#include "planning/machine.h"
#include "planning/types.h"
#include "plugins/gpu_module.h"
#include "runtime/parameters.h"
#include "telemetry/machine.h"
#include "telemetry/wrap.h"

namespace lockstep::job {
namespace {

using OrderedJson = nlohmann::ordered_json;
using telemetry::grouped, telemetry::plural;

constexpr size_t kLineColumns = 69;  // of 80, the time of day takes the rest

// Joined with commas, as many on a line as fit.
std::vector<std::string> packed(const std::vector<std::string>& items) {
    std::vector<std::string> lines;
    for (const std::string& item : items) {
        if (item.empty()) continue;
        if (!lines.empty() && lines.back().size() + 2 + item.size() <= kLineColumns) lines.back() += ", " + item;
        else lines.push_back(item);
    }
    return lines;
}

std::string now_text() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

// The step in the name of a checkpoint's folder; -1: none.
int64_t step_of(const std::string& folder) {
    const size_t dash = folder.rfind('-');
    const std::string digits = dash == std::string::npos ? "" : folder.substr(dash + 1);
    const bool is_number = !digits.empty() && digits.size() < 18 && digits.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? std::stoll(digits) : -1;
}

std::string flops_text(double flops_per_s) { return telemetry::short_count(flops_per_s / 1e9) + " GFLOP/s"; }

}  // namespace

RunLog::RunLog(Job& job, const std::string& dump, const std::string& cluster)
    : job_(job),
      group_(job.trainer->ranks().group()),
      config_(job.config),
      recipe_(job.recipe),
      steps_(config_.training.steps),
      parameters_(runtime::parameter_count(job.compiled.programs)),
      flops_model_(compile::flops_model_of_a_rank(compile::reports_of(job.compiled))),
      dump_(dump),
      table_(steps_),
      resident_(memory_in_use(job.config)) {
    group_.together([&] {
        if (!group_.is_first()) return;
        metrics_.emplace(dump + "/metrics.jsonl");
        events_.emplace(dump + "/events.jsonl");
        find_peak(cluster);
    });
}

// Measured only where one process has all ranks: what others do at this moment would be measured with it.
void RunLog::find_peak(const std::string& cluster) {
    const std::string dtype = compile::main_dtype(job_.compiled.programs[0]);
    if (!cluster.empty()) planned_ = planning::planned_step(config_, cluster, "--cluster");
    else if (!config_.cluster.file.empty()) planned_ = planning::planned_step(config_, config_.cluster.file, "cluster.file");
    if (planned_) {
        peak_flops_per_s_ = planned_->peak_flops_per_s;
        peak_text_ = fmt::format("{} a rank ({}, {})", flops_text(peak_flops_per_s_), dtype, planned_->cluster);
    } else if (config_.on_gpu()) {
        const plugins::GpuModule& gpu = plugins::gpu_module();
        const double all = gpu.peak_flops_per_s(dtype);
        peak_flops_per_s_ = all / static_cast<double>(job_.trainer->ranks().here().size());
        if (all > 0) peak_text_ = fmt::format("{} of {} ({}, its data sheet)", flops_text(all), gpu.name, dtype);
    } else if (group_.is_alone() && (dtype == "f32" || dtype == "bf16")) {
        std::vector<int> cpus = usable_cpus();
        const int64_t ranks = job_.compiled.layout.ranks, threads = ranks * job_.trainer->rank_threads().threads_per_rank;
        cpus.resize(std::min(cpus.size(), static_cast<size_t>(threads)));
        const double all = measure::flops_roof(cpus, dtype);
        peak_flops_per_s_ = all / static_cast<double>(ranks);
        peak_text_ =
            fmt::format("{} of {} ({}, measured now)", flops_text(all), plural(static_cast<int64_t>(cpus.size()), "core"), dtype);
    }
}

void RunLog::event(const char* name, int64_t step, OrderedJson values) {
    if (!events_) return;
    OrderedJson line = {{"time", now_text()}, {"event", name}, {"step", step}};
    line.update(values);
    keep_on([&] { events_->write(line); });
}

void RunLog::keep_on(FunctionRef<void()> write) {
    try {
        write();
    } catch (const UserError& e) {
        if (!lost_.insert(e.what()).second) return;
        bar_.clear();
        telemetry::warn(fmt::format("{}: training goes on without these lines", e.what()));
    }
}

// "data: books 70 % (2.1 epochs)": what the whole run reads of each data set.
std::vector<std::string> RunLog::data_texts() const {
    std::vector<std::string> out;
    const double samples = static_cast<double>(steps_) * static_cast<double>(job_.compiled.layout.global_batch);
    for (const planning::RunData::Part& part : job_.data.parts) {
        const double epochs = samples * part.share / static_cast<double>(part.windows);
        const std::string share = job_.data.parts.size() > 1 ? fmt::format(" {:.3g} %", 100 * part.share) : "";
        out.push_back(fmt::format("{}{}{} ({:.3g} epochs)", out.empty() ? "data: " : "", part.name, share, epochs));
    }
    return out;
}

void RunLog::print_start() const {
    const compile::Layout& layout = job_.compiled.layout;
    const runtime::Trainer& trainer = *job_.trainer;
    const int threads = trainer.rank_threads().threads_per_rank;
    const bool on_gpu = config_.on_gpu();
    const int64_t sequences = layout.local_batch * layout.data_ranks;
    const std::vector<std::vector<std::string>> lines = {
        {fmt::format("{} {}", config_.model.name, config_.model.flavor), fmt::format("{} parameters", grouped(parameters_)),
         fmt::format("{} tokens a step", grouped(job_.trainer->tokens_per_step()))},
        {fmt::format("{} ({})", plural(layout.ranks, "rank"), mesh::text(layout.mesh.degrees)),
         on_gpu ? "on " + plugins::gpu_module().name
                : fmt::format("{} each{}", plural(threads, "thread"),
                              trainer.rank_threads().comm_thread ? " and one to communicate" : ""),
         group_.is_alone() ? ""
                           : fmt::format("in {} on {}", plural(group_.processes(), "process"), plural(group_.hosts(), "host"))},
        {fmt::format("{} of {}", plural(layout.microbatches, "microbatch"), plural(sequences, "sequence"))},
        data_texts(),
        {fmt::format("memory planned: {} a rank", telemetry::gib(job_.compiled.arena_bytes())),
         layout.ranks > 1 ? fmt::format("{} in all", telemetry::gib(job_.compiled.all_arena_bytes())) : "",
         job_.compiled.host_bytes() > 0 ? fmt::format("and {} of the host's, pinned", telemetry::gib(job_.compiled.host_bytes()))
                                        : ""},
        {peak_text_.empty() ? "" : "peak for MFU: " + peak_text_},
        {planned_ ? fmt::format("step time planned: {}", telemetry::short_duration(planned_->step_time_s)) : ""},
        {fmt::format("ready after {:.2f} s", job_.start_up_s)},
    };
    for (const std::vector<std::string>& items : lines) {
        for (const std::string& line : packed(items)) telemetry::info(line);
    }
    if (const std::string why = compile::hides_nothing(config_, trainer.rank_threads()); !why.empty()) telemetry::warn(why);
    if (const std::string gpu = telemetry::gpu_device(); !gpu.empty() && !on_gpu)
        telemetry::warn(fmt::format("a GPU is there ({}) and is not used: runtime.kernels = \"cuda\" uses it", gpu));
}

OrderedJson RunLog::facts() const {
    const compile::Layout& layout = job_.compiled.layout;
    const telemetry::Machine machine = telemetry::this_machine();
    const BuildInfo& build = build_info();
    OrderedJson mesh, kinds;
    for (mesh::Axis a : mesh::kAxes) mesh[std::string(mesh::name_of(a))] = layout.mesh.degree(a);
    const std::vector<compile::StageReport> reports = compile::reports_of(job_.compiled);
    const auto fullest = std::max_element(reports.begin(), reports.end(),
                                          [](const auto& a, const auto& b) { return a.total_bytes < b.total_bytes; });
    for (int k = 0; k < ir::kMemoryKinds; ++k)
        kinds[std::string(ir::name_of(static_cast<ir::MemoryKind>(k)))] = fullest->bytes[static_cast<size_t>(k)];
    OrderedJson data = OrderedJson::array();
    for (const planning::RunData::Part& part : job_.data.parts)
        data.push_back({{"name", part.name}, {"share", part.share}, {"sequences", part.windows}});
    OrderedJson plan = {{"bytes_of_a_rank", job_.compiled.arena_bytes()},
                        {"bytes_of_all_ranks", job_.compiled.all_arena_bytes()},
                        {"host_bytes_of_a_rank", job_.compiled.host_bytes()},
                        {"bytes_by_kind", kinds},
                        {"flops_model_of_a_rank", flops_model_}};
    if (planned_) plan["step_time_s"] = planned_->step_time_s, plan["cluster"] = planned_->cluster;
    if (peak_flops_per_s_ > 0) plan["peak_flops_per_s_of_a_rank"] = peak_flops_per_s_, plan["peak"] = peak_text_;
    return {{"steps", steps_},
            {"description", config_.job.description},
            {"build", {{"version", build.version}, {"commit", build.commit}, {"compiler", build.compiler}}},
            {"model", {{"name", config_.model.name}, {"flavor", config_.model.flavor}, {"parameters", parameters_}}},
            {"job",
             {{"ranks", layout.ranks},
              {"mesh", mesh},
              {"threads_per_rank", job_.trainer->rank_threads().threads_per_rank},
              {"processes", group_.processes()},
              {"hosts", group_.hosts()},
              {"microbatches", layout.microbatches},
              {"global_batch_size", layout.global_batch},
              {"seq_len", layout.seq_len},
              {"tokens_per_step", job_.trainer->tokens_per_step()}}},
            {"machine",
             {{"host", machine.host},
              {"processor", machine.processor},
              {"system", machine.system},
              {"cores", machine.cores},
              {"memory_bytes", machine.memory_bytes},
              {"gpu", machine.gpu}}},
            {"data", data},
            {"plan", plan},
            {"recipe", recipe_.toml()}};
}

void RunLog::start(const std::string& resumed_from) {
    const int64_t step = job_.trainer->progress().steps;
    if (group_.is_first()) {
        print_start();
        OrderedJson values = facts();
        values["resumed_from"] = resumed_from.empty() ? OrderedJson() : OrderedJson(resumed_from);
        event("start", step, std::move(values));
        if (config_.metrics.enable_tensorboard) open_tensorboard();
    }
    first_end_ = window_start_ = Clock::now();
}

void RunLog::open_tensorboard() {
    const int64_t step = job_.trainer->progress().steps;
    tensorboard_.emplace(std::filesystem::path(dump_) / config_.metrics.save_tb_folder, step);
    tensorboard_->text(step, "recipe", "```toml\n" + recipe_.toml() + "```");
    tensorboard_->text(step, "plan", "```json\n" + json_text(facts().at("plan"), 1) + "\n```");
}

void RunLog::step(const runtime::StepResult& r, const std::optional<HeldoutLoss>& heldout) {
    window_data_s_ += r.data_time_s;
    ++window_steps_;
    if (++taken_ == 1) first_end_ = Clock::now();
    if (!r.committed) {
        bar_.clear();
        std::string text =
            fmt::format("step {}: loss {}, gradient norm {}: not finite, so the step does not count and no state has changed",
                        r.step, r.loss, r.grad_norm);
        OrderedJson values = {{"loss", fmt::format("{}", r.loss)}, {"grad_norm", fmt::format("{}", r.grad_norm)}};
        if (r.loss_scale > 0) values["loss_scale"] = r.loss_scale;
        if (r.overflowed())
            text =
                fmt::format("step {}: float16 overflows with a loss scale of {}: the step does not count; the next scale is {}",
                            r.step, r.loss_scale, r.next_loss_scale);
        telemetry::warn(text);
        event("not_counted", r.step, std::move(values));
    }
    const double tokens_per_s = static_cast<double>(job_.trainer->tokens_per_step()) / r.step_time_s;
    bar_.show(r.step, steps_,
              fmt::format("loss {:.4f}  {} tok/s  {} left", r.loss, telemetry::short_count(tokens_per_s),
                          telemetry::short_duration(left_s(r))));
    if (logs(r.step) || heldout) write(r, heldout);
}

// At the mean pace since the first step of this run, which is slower than others.
double RunLog::left_s(const runtime::StepResult& r) const {
    const double since_first_s = std::chrono::duration<double>(Clock::now() - first_end_).count();
    const double pace_s = taken_ > 1 ? since_first_s / static_cast<double>(taken_ - 1) : r.step_time_s;
    return pace_s * static_cast<double>(steps_ - r.step);
}

void RunLog::write(const runtime::StepResult& r, const std::optional<HeldoutLoss>& heldout) {
    const Clock::time_point now = Clock::now();
    const auto seconds = [](Clock::duration d) { return std::chrono::duration<double>(d).count(); };
    const double window_s = seconds(now - window_start_), steps = static_cast<double>(window_steps_);
    const auto ranks = static_cast<double>(job_.compiled.layout.ranks);
    const double tokens = steps * static_cast<double>(job_.trainer->tokens_per_step());
    const double flops_per_s = flops_model_ * steps / window_s;  // of a rank
    resident_ = std::max(resident_, memory_in_use(config_));
    const double gib = 1 << 30, arena_gib = static_cast<double>(job_.compiled.arena_bytes()) / gib;
    const auto capacity = static_cast<double>(*planning::capacity_here(config_, job_.compiled.layout.ranks, &group_).bytes);
    telemetry::Metrics m = {{"loss_metrics/global_avg_loss", r.loss},
                            {"grad_norm", r.grad_norm},
                            {"lr", r.lr},
                            {"n_tokens_seen", static_cast<double>(job_.trainer->progress().tokens_seen)},
                            {"throughput(tps)", tokens / window_s / ranks},
                            {"tokens_per_s", tokens / window_s},
                            {"tflops", flops_per_s / 1e12}};
    const double mfu = peak_flops_per_s_ > 0 ? flops_per_s / peak_flops_per_s_ : -1;
    if (mfu >= 0) m.emplace_back("mfu(%)", 100 * mfu);
    const telemetry::Metrics times = {{"time_metrics/end_to_end(s)", window_s / steps},
                                      {"time_metrics/data_loading(s)", window_data_s_ / steps},
                                      {"time_metrics/data_loading(%)", 100 * window_data_s_ / window_s},
                                      {"memory/max_active(GiB)", arena_gib},
                                      {"memory/max_active(%)", 100 * arena_gib * gib / capacity},
                                      {"memory/resident(GiB)", static_cast<double>(resident_bytes()) / gib}};
    m.insert(m.end(), times.begin(), times.end());
    if (r.loss_scale > 0) m.emplace_back("loss_scale", r.loss_scale);
    if (heldout) {
        m.emplace_back("validation_metrics/loss", heldout->loss);
        for (const auto& [name, loss] : heldout->of_sets) m.emplace_back(fmt::format("validation_metrics/{}/loss", name), loss);
    }
    if (metrics_) keep_on([&] { metrics_->write(r.step, m); });
    if (tensorboard_) {
        const auto here = static_cast<double>(job_.trainer->ranks().here().size());
        m.emplace_back("plan/resident(GiB)", here * arena_gib);
        if (planned_) m.emplace_back("plan/step_time(s)", planned_->step_time_s);
        keep_on([&] { tensorboard_->scalars(r.step, m); });
    }
    bar_.clear();
    if (group_.is_first())
        table_.print({r.step, r.loss, r.grad_norm, r.lr, tokens / window_s, flops_per_s * ranks, mfu,
                      static_cast<double>(resident_bytes()), left_s(r)});
    if (heldout) {
        telemetry::info(fmt::format("held-out loss {:.4f} after step {} (perplexity {:.4g})", heldout->loss, r.step,
                                    std::exp(heldout->loss)));
        std::vector<std::string> of_sets;
        for (const auto& [name, loss] : heldout->of_sets) of_sets.push_back(fmt::format("{} {:.4f}", name, loss));
        for (const std::string& line : packed(of_sets)) telemetry::info("  of " + line);
    }
    window_start_ = Clock::now();
    window_steps_ = 0;
    window_data_s_ = 0;
}

void RunLog::float8(int64_t step, const runtime::Float8Shares& shares) {
    if (!group_.is_first()) return;
    if (!float8_) keep_on([&] { float8_.emplace(dump_ + "/float8.jsonl"); });
    OrderedJson line = {{"step", step}, {"shares", OrderedJson::array()}};
    for (const auto& [at, s] : shares)
        line["shares"].push_back({{"layer", at.first},
                                  {"operand", at.second},
                                  {"amax", s.amax},
                                  {"elements", s.elements},
                                  {"flushed", s.flushed},
                                  {"clipped", s.clipped}});
    if (float8_) keep_on([&] { float8_->write(line); });
}

void RunLog::checkpoint(const std::string& folder) { event("checkpoint", step_of(folder), {{"folder", folder}}); }

void RunLog::end(const std::string& reason, const std::string& text, const OrderedJson& summary) {
    bar_.clear();
    OrderedJson values = {{"reason", reason}, {"text", text}};
    if (summary.is_object()) values["summary"] = summary;
    event("end", job_.trainer->progress().steps, std::move(values));
}

void RunLog::refused(const std::string& text) {
    bar_.clear();
    event("refused", job_.trainer->progress().steps, {{"text", text}});
}

}  // namespace lockstep::job
