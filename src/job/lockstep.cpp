// lockstep.h on top of the folders: values in, values out.
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/build_info.h"
#include "base/elements.h"
#include "base/shipped.h"
#include "checkpoint/folder.h"
#include "compile/effective.h"
#include "job/evaluation.h"
#include "job/stored.h"
#include "job/training.h"
#include "planning/check.h"
#include "planning/plan.h"
#include "planning/program.h"
#include "plugins/gpu_module.h"
#include "report/run_files.h"
#include "runtime/parameters.h"
#include "telemetry/console.h"

namespace lockstep {

struct Access {
    static Recipe wrap(compile::Recipe recipe) {
        Recipe out;
        out.recipe_ = std::make_shared<compile::Recipe>(std::move(recipe));
        return out;
    }
    static const compile::Recipe& of(const Recipe& recipe) { return *static_cast<const compile::Recipe*>(recipe.recipe_.get()); }
};

namespace {

Recipe with(compile::Recipe recipe, const Settings& settings) {
    for (const auto& [key, value] : settings) recipe.set(key, value);
    compile::config_of(recipe);  // refuses what contradicts itself
    return Access::wrap(std::move(recipe));
}

void fill(Stage& stage, int64_t pipeline_rank, const compile::StageReport& report) {
    stage.pipeline_rank = pipeline_rank;
    stage.total_bytes = report.total_bytes, stage.host_bytes = report.host_bytes;
    for (int k = 0; k < ir::kMemoryKinds; ++k)
        stage.bytes[std::string(ir::name_of(static_cast<ir::MemoryKind>(k)))] = report.bytes[static_cast<size_t>(k)];
    stage.flops_model = report.flops_model, stage.flops_executed = report.flops_executed;
}

std::vector<PlannedOp> ops_of(const std::map<std::string, compile::TimeSpent>& spent) {
    std::vector<PlannedOp> out;
    for (const auto& [name, s] : spent) out.push_back({name, s.count, s.time_s, s.flops, s.bytes});
    std::stable_sort(out.begin(), out.end(), [](const PlannedOp& a, const PlannedOp& b) { return a.time_s > b.time_s; });
    return out;
}

std::string text_of(const compile::Recipe& recipe, const std::string& key) {
    for (const auto& [name, value] : compile::effective(recipe)) {
        if (name == key) return value;
    }
    return compile::text_of(recipe.value(key));
}

}  // namespace

std::string version() { return build_info().version; }

void set_messages(std::function<void(MessageLevel, std::string_view)> take) {
    telemetry::set_listener([take = std::move(take)](telemetry::Level level, std::string_view text) {
        if (take) take(static_cast<MessageLevel>(level), text);
    });
}

void print_messages() {
    telemetry::set_listener(nullptr);
    telemetry::set_up_console({});
}

void use_gpu_module(const std::string& file) { plugins::use_gpu_module(file); }

Recipe Recipe::read(const std::string& path, const Settings& settings) {
    return with(compile::Recipe::from_file(file_or_shipped(Shipped::Recipes, path)), settings);
}
Recipe Recipe::parse(const std::string& toml, const Settings& settings) {
    return with(compile::Recipe::from_text(toml, "recipe"), settings);
}
void Recipe::set(const std::string& key, const std::string& value) {
    *this = with(Access::of(*this), {{key, value}});  // copies of this recipe keep theirs
}
std::string Recipe::get(const std::string& key) const { return text_of(Access::of(*this), key); }
std::string Recipe::toml() const { return Access::of(*this).toml(); }
Settings Recipe::config() const { return compile::effective(Access::of(*this)); }

Program Recipe::compile(const ProgramOptions& options) const {
    const planning::MachineProgram p = planning::program_of(Access::of(*this), {options.after, options.skip, false});
    Program out;
    const compile::Layout& layout = p.compiled.layout;
    out.ranks = layout.ranks, out.microbatches = layout.microbatches;
    out.global_batch = layout.global_batch, out.seq_len = layout.seq_len;
    if (options.after.empty()) {
        out.parameters = runtime::parameter_count(p.compiled.programs);
        out.bytes_of_a_rank = p.compiled.arena_bytes(), out.bytes_of_all_ranks = p.compiled.all_arena_bytes();
        out.host_bytes_of_a_rank = p.compiled.host_bytes();
    }
    for (const compile::PassReport& pass : p.compiled.passes) out.passes.push_back({pass.name, pass.time_s});
    out.text = planning::text_of(p.compiled);
    return out;
}

Check Recipe::check(const std::string& cluster) const {
    planning::Checked c = planning::check(Access::of(*this), cluster);
    Check out{!c.refusal, planning::machine_text(c.machine), c.compiled.layout.ranks, c.machine.capacity.bytes, {}, c.refusal};
    for (size_t k = 0; k < c.reports.size(); ++k) fill(out.stages.emplace_back(), static_cast<int64_t>(k), c.reports[k]);
    return out;
}

Plan Recipe::plan(const std::string& cluster) const {
    const planning::Plan p = planning::make_plan(Access::of(*this), cluster);
    Plan out;
    out.step_time_s = p.step_s(), out.tokens_per_s = p.tokens_per_s();
    out.mfu = p.utilization(compile::flops_model_of_a_rank(p.reports));
    out.hfu = p.utilization(compile::flops_executed_of_a_rank(p.reports));
    out.bubble_fraction = p.simulated.bubble_s / out.step_time_s;
    out.exposed_communication_s = p.simulated.exposed_communication_s;
    out.hidden_communication_s = p.simulated.hidden_communication_s;
    out.fits = p.fits, out.ranks = p.compiled.layout.ranks;
    out.cluster = p.cluster.name, out.machine = planning::machine_text(p.machine), out.declared = p.cluster.declared;
    for (size_t k = 0; k < p.reports.size(); ++k) {
        PlannedStage& stage = out.stages.emplace_back();
        fill(stage, static_cast<int64_t>(k), p.reports[k]);
        stage.waiting_s = p.breakdowns[k].waiting_s;
        stage.compute = ops_of(p.breakdowns[k].ops), stage.communication = ops_of(p.breakdowns[k].beside);
    }
    return out;
}

TrainResult train(const Recipe& recipe, const TrainOptions& options) {
    job::TrainOptions of_job;
    of_job.watch = options.watch;
    of_job.observe.cluster = options.cluster;
    if (options.on_step) {
        of_job.on_step = [&](const job::StepReport& r) {
            const runtime::StepResult& s = r.result;
            return options.on_step({s.step, r.steps, s.loss, s.grad_norm, s.lr, s.committed, s.step_time_s,
                                    static_cast<double>(r.tokens_per_step) / s.step_time_s, r.heldout_loss, r.checkpoint});
        };
    }
    comm::ProcessGroup alone;
    planning::announce(Access::of(recipe));
    const job::TrainSummary s = job::train(Access::of(recipe), of_job, alone).summary;
    TrainResult out{s.stopped.empty(), s.stopped,       s.steps,          s.final_loss, s.tokens_per_s, s.step_time_s,
                    std::nullopt,      s.planned_bytes, s.resident_bytes, s.checkpoint, s.dump_folder};
    if (s.heldout) out.heldout_loss = s.heldout->loss;
    return out;
}

Evaluation evaluate(const std::string& checkpoint, const EvaluateOptions& options) {
    comm::ProcessGroup alone;
    job::EvaluationOptions of_job;
    of_job.data = options.data, of_job.tokens = options.tokens, of_job.split = options.split, of_job.steps = options.steps;
    const job::Evaluation e = job::evaluate({checkpoint, options.settings, 0}, of_job, alone);
    Evaluation out{e.step, e.whole.result.loss(), std::exp(e.whole.result.loss()), std::nullopt, e.whole.result.targets};
    if (e.whole.bytes > 0) out.bits_per_byte = e.whole.bits_per_byte();
    return out;
}

struct Checkpoint::Files {
    job::Stored stored;
    std::vector<std::unique_ptr<checkpoint::SafetensorsReader>> readers;

    const checkpoint::SafetensorsReader& with(const std::string& name) const {
        for (const auto& reader : readers) {
            if (reader->contains(name)) return *reader;
        }
        throw UserError("checkpoint.no_such_tensor", stored.folder, stored.folder + " has no tensor " + name);
    }
};

Checkpoint::Checkpoint(const std::string& path) {
    auto files = std::make_shared<Files>();
    files->stored = job::stored_at(job::find_checkpoint(path));
    for (const auto& [name, sums] : files->stored.manifest.files) {
        if (!name.ends_with(".safetensors")) continue;
        const std::string file = (std::filesystem::path(files->stored.folder) / name).string();
        const auto at = name == checkpoint::kModelFile ? files->readers.begin() : files->readers.end();
        files->readers.insert(at, std::make_unique<checkpoint::SafetensorsReader>(file, sums));
    }
    files_ = std::move(files);
}

const std::string& Checkpoint::folder() const { return files_->stored.folder; }
int64_t Checkpoint::step() const { return files_->stored.manifest.steps; }
Recipe Checkpoint::recipe() const { return Access::wrap(files_->stored.recipe); }

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> out;
    for (const auto& reader : files_->readers) {
        for (const checkpoint::TensorEntry& t : reader->tensors()) out.push_back(t.spec.name);
    }
    return out;
}

TensorInfo Checkpoint::info(const std::string& name) const {
    const checkpoint::TensorEntry& t = files_->with(name).find(name);
    return {t.spec.dtype, t.spec.shape, t.bytes};
}

void Checkpoint::read(const std::string& name, void* to) const {
    const checkpoint::SafetensorsReader& reader = files_->with(name);
    reader.read(name, 0, reader.find(name).elements, to);
}

std::vector<float> Checkpoint::read_as_float(const std::string& name) const {
    const checkpoint::SafetensorsReader& reader = files_->with(name);
    std::vector<float> out(static_cast<size_t>(reader.find(name).elements));
    checkpoint::TensorSource::Cursor cursor;
    reader.read_as(name, 0, static_cast<int64_t>(out.size()), "F32", out.data(), cursor);
    return out;
}

std::map<std::string, std::vector<double>> read_metrics(const std::string& path) { return report::metrics_columns(path); }

}  // namespace lockstep
