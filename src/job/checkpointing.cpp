#include "job/checkpointing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "base/elements.h"
#include "base/error.h"
#include "base/output_file.h"
#include "checkpoint/folder.h"
#include "checkpoint/hugging_face_folder.h"
#include "data/data_sets.h"
#include "job/agreement.h"
#include "job/carried.h"
#include "job/stored.h"
#include "telemetry/console.h"

namespace lockstep::job {
namespace {

runtime::LoadParts parts_of(const compile::Config& config) {
    runtime::LoadParts parts;
    for (const compile::LoadPart excluded : config.checkpoint.exclude_from_loading) {
        switch (excluded) {
            case compile::LoadPart::Optimizer: parts.optimizer = false; break;
            case compile::LoadPart::Dataloader: parts.dataloader = false; break;
            case compile::LoadPart::TrainState: parts.train_state = false; break;
        }
    }
    return parts;
}

// Safetensors of transformers hold nothing else.
bool last_is_model_only(const compile::Config& config) {
    return config.checkpoint.last_save_model_only || config.checkpoint.last_save_in_hf;
}

std::optional<checkpoint::HuggingFaceForm> hugging_face_form(const compile::Config& config) {
    if (!config.checkpoint.last_save_in_hf) return std::nullopt;
    checkpoint::HuggingFaceForm form{{config.model.name, config.model.shape, config.training.seq_len},
                                     find_tokenizer(config.training.dataset_path)};
    return form;
}

// From a checkpoint that is only the model.
std::string how_to_go_on(const std::string& folder) {
    return fmt::format(
        ", as checkpoint.last_save_model_only or last_save_in_hf asked for. A run goes on from the last checkpoint of one with "
        "checkpoint.last_save_model_only = false; a new run (another job.dump_folder) begins with these weights: "
        "checkpoint.initial_load_path = \"{}\"",
        folder);
}

// A recipe may ask for a larger vocabulary than the model `held`, which then gets as many rows. Returns the new ones.
int64_t add_rows(models::HuggingFaceModel& held, const compile::Recipe& recipe) {
    const models::HuggingFaceModel wanted = hugging_face_model(recipe);
    if (wanted.name != held.name) return 0;
    int64_t& rows = std::get<int64_t>(held.shape.at("vocab_size"));
    const int64_t more = std::max<int64_t>(0, std::get<int64_t>(wanted.shape.at("vocab_size")) - rows);
    rows += more;
    return more;
}

void say_new_rows(int64_t rows, const std::string& origin) {
    if (rows == 0) return;
    telemetry::info(
        fmt::format("model.vocab_size is {} larger than that of {}: as many rows of the embedding and of the output "
                    "projection are new, and begin as in a new model",
                    rows, origin));
}

// The checkpoint is whole, and another run wrote it or it is under another name.
bool is_of_another_run(const UserError& e) {
    constexpr ErrorId ids[] = {checkpoint::kOtherStep, runtime::kOtherModel, runtime::kOtherOptimizer, kOtherArchitecture,
                               kOtherTokenizer};
    return std::any_of(std::begin(ids), std::end(ids), [&](ErrorId id) { return e.is(id); });
}

std::string export_dtype(const compile::Config& config) { return std::string(file_type_of(config.checkpoint.export_dtype)); }

}  // namespace

Checkpointing::Checkpointing(Job& job, std::string root)
    : job_(job),
      config_(job.config),
      recipe_(job.recipe),
      root_(std::move(root)),
      parts_(parts_of(config_)),
      last_is_model_only_(last_is_model_only(config_)),
      hugging_face_(hugging_face_form(config_)),
      form_{export_dtype(config_), hugging_face_ ? &*hugging_face_ : nullptr} {
    if (config_.checkpoint.saves()) {
        lock_root();
        saver_ = std::make_unique<runtime::Saver>(*job_.trainer, recipe_, root_, tokenizer_sum(job_.data.tokenizer));
    }
}

// False, with the reason in why_not_, where the checkpoint is damaged or lacks what is wanted; throws where it is of another
// model.
bool Checkpointing::load(const std::string& folder, const runtime::LoadParts& parts) {
    try {
        runtime::LoadParts wanted = parts;
        const Stored stored = stored_at(folder);
        models::HuggingFaceModel held = hugging_face_model(stored.recipe);
        const int64_t new_rows = begins_ ? add_rows(held, recipe_) : 0;
        require_same_model(held, folder, recipe_);
        const UsedTokenizer used{job_.data.tokenizer, "training.dataset_path", ""};
        if (!used.file.empty() && !(new_rows > 0 && extends_tokenizer(stored, used))) require_same_tokenizer(stored, used);
        if (!stored.manifest.has_optimizer() && stored.manifest.steps >= config_.training.steps)
            wanted.optimizer = false;  // only to look at
        const auto vocabulary = new_rows > 0 ? runtime::Vocabulary::MayBeLarger : runtime::Vocabulary::Same;
        const checkpoint::Manifest m = runtime::load(*job_.trainer, folder, wanted, vocabulary);
        const bool bitwise = m.program_hash == runtime::program_hash(job_.compiled.programs);
        telemetry::info(fmt::format("resumed from {} at step {}{}", folder, job_.trainer->progress().steps,
                                    bitwise ? "" : "; the program is another one, so the run goes on, but not bitwise"));
        const std::vector<std::string> changed = parts.train_state ? changes(stored.recipe, recipe_) : std::vector<std::string>();
        if (!changed.empty()) telemetry::info(fmt::format("changed since step {}: {}", m.steps, fmt::join(changed, ", ")));
        say_new_rows(new_rows, folder);
        carry(folder);
    } catch (const UserError& e) {
        const bool of_files = e.area() == "checkpoint" || e.area() == "convert";
        if (!of_files || is_of_another_run(e)) throw;
        why_not_ = e.what();
        if (e.is(checkpoint::kNoSuchFile) && parts.optimizer) why_not_ += how_to_go_on(folder);
        return false;
    }
    loaded_ = folder;
    return true;
}

void Checkpointing::load_step(int64_t wanted, const std::vector<int64_t>& complete) {
    if (std::find(complete.begin(), complete.end(), wanted) == complete.end()) {
        throw UserError("checkpoint.no_such_step", "checkpoint.load_step",
                        fmt::format("checkpoint.load_step = {}: {} has complete checkpoints of the steps {}", wanted, root_,
                                    complete.empty() ? "(none)" : fmt::format("{}", fmt::join(complete, ", "))));
    }
    if (load(checkpoint::folder_of(root_, wanted), parts_)) return;
    std::string advice = "no other checkpoint here is whole";
    for (auto step = complete.rbegin(); step != complete.rend(); ++step) {
        if (*step == wanted || checkpoint::what_is_wrong(checkpoint::folder_of(root_, *step))) continue;
        advice = fmt::format("the last good checkpoint is that of step {}: checkpoint.load_step = {}", *step, *step);
        break;
    }
    throw UserError("checkpoint.cannot_resume", "checkpoint.load_step",
                    fmt::format("checkpoint.load_step = {}: {}; {}", wanted, why_not_, advice));
}

void Checkpointing::load_hugging_face(const std::string& path) {
    if (!checkpoint::HuggingFaceFolder::is_at(path))
        throw UserError("checkpoint.no_hugging_face", "checkpoint.initial_load_path",
                        fmt::format("checkpoint.initial_load_in_hf = true, but {}: give checkpoint.initial_load_path = a folder "
                                    "with config.json and safetensors, as transformers' save_pretrained makes it",
                                    path.empty() ? "neither checkpoint.initial_load_path nor model.hf_assets_path is set"
                                                 : path + " holds no config.json"));
    const checkpoint::HuggingFaceFolder folder(path);
    for (const std::string& note : folder.notes()) telemetry::info(note);
    models::HuggingFaceModel held = folder.model();
    const int64_t new_rows = add_rows(held, recipe_);
    require_same_model(held, path, recipe_);
    runtime::load_weights(job_.trainer->ranks(), folder, path,
                          new_rows > 0 ? runtime::Vocabulary::MayBeLarger : runtime::Vocabulary::Same);
    telemetry::info(fmt::format("weights from {}", path));
    say_new_rows(new_rows, path);
    carry(path);
}

// Checkpoints of this run hold what serving needs, as the folder has it. It is of no use to tokens of another tokenizer.
void Checkpointing::carry(const std::string& folder) {
    checkpoint::ServingFiles files = checkpoint::read_serving_files(folder);
    const std::string theirs = tokenizer_file({folder}), &ours = job_.data.tokenizer;
    if (!files.empty() && !theirs.empty() && !ours.empty() && !data::is_same_tokenizer(theirs, ours) &&
        !is_extended_tokenizer(theirs, ours)) {
        std::vector<std::string> names;
        for (const auto& [name, content] : files) names.push_back(name);
        telemetry::warn(
            fmt::format("{} is another tokenizer than that of {}: what the folder says of its own tokens is not "
                        "carried along ({})",
                        ours, folder, fmt::join(names, ", ")));
        files.clear();
    }
    if (hugging_face_) hugging_face_->serving = files;
    if (saver_) saver_->carry(std::move(files));
}

namespace {

// find_checkpoint, with the key that named the path.
std::string named_checkpoint(const std::string& path) {
    try {
        return find_checkpoint(path);
    } catch (const UserError& e) {
        throw UserError(e.id(), "checkpoint.initial_load_path", fmt::format("checkpoint.initial_load_path: {}", e.what()));
    }
}

}  // namespace

void Checkpointing::load_initial() {
    const std::string& path = config_.checkpoint.initial_load_path;
    if (config_.checkpoint.initial_load_in_hf) return load_hugging_face(path.empty() ? config_.model.hf_assets_path : path);
    if (path.empty()) return;
    if (checkpoint::HuggingFaceFolder::is_at(path) && !std::filesystem::exists(path + "/manifest.json"))
        throw UserError("checkpoint.is_hugging_face", "checkpoint.initial_load_in_hf",
                        fmt::format("checkpoint.initial_load_path: {} is a folder of transformers: set "
                                    "checkpoint.initial_load_in_hf = true",
                                    path));
    const std::string folder = named_checkpoint(path);
    const bool model_only = config_.checkpoint.initial_load_model_only;
    begins_ = model_only;
    const bool is_loaded = load(folder, model_only ? runtime::LoadParts{false, false, false} : parts_);
    begins_ = false;
    if (!is_loaded) {
        throw UserError("checkpoint.initial_load", "checkpoint.initial_load_path",
                        fmt::format("checkpoint.initial_load_path: {}", why_not_));
    }
    loaded_.clear();  // of another run: not a checkpoint of this one
}

// Refused now, not after the first steps. Another run may name the same folder.
void Checkpointing::lock_root() {
    comm::ProcessGroup& group = job_.trainer->ranks().group();
    group.together([&] {
        make_folder(root_);
        const std::filesystem::path locked = config_.job.dump_folder;
        if (group.is_first() && !std::filesystem::equivalent(root_, locked)) lock_.emplace(root_);
    });
}

void Checkpointing::resume() {
    if (!config_.checkpoint.enable) return;
    const std::vector<int64_t> complete = checkpoint::complete_steps(root_);
    if (const int64_t wanted = config_.checkpoint.load_step; wanted >= 0) {
        load_step(wanted, complete);
    } else if (complete.empty()) {
        load_initial();
    } else {
        auto step = complete.rbegin();
        for (; step != complete.rend() && !load(checkpoint::folder_of(root_, *step), parts_); ++step)
            telemetry::warn(fmt::format("{} is left aside: {}", checkpoint::folder_of(root_, *step), why_not_));
        if (step == complete.rend()) {
            throw UserError("checkpoint.none_whole", "checkpoint.folder",
                            fmt::format("{} has {} checkpoints, and training can go on from none of them ({}). Choose another "
                                        "checkpoint.folder to begin anew",
                                        root_, complete.size(), why_not_));
        }
    }
    require_same_step();
    if (const int64_t at = job_.trainer->progress().steps, steps = config_.training.steps; at >= steps && at > 0)
        telemetry::info(fmt::format("no step is left: the checkpoint is of step {}, and training.steps = {}", at, steps));
    if (!loaded_.empty()) last_saved_ = job_.trainer->progress().steps;
    if (saver_) saver_->set_latest(loaded_);
}

// Each process has looked for checkpoints by itself.
void Checkpointing::require_same_step() {
    comm::ProcessGroup& group = job_.trainer->ranks().group();
    const std::vector<std::string> steps = group.exchange(std::to_string(job_.trainer->progress().steps));
    const size_t other = dissenter(steps);
    if (other == 0) return;
    throw UserError(
        "checkpoint.not_shared", "job.dump_folder",
        fmt::format("process {} would go on from step {}, the first from step {}: {} must be on a file system that all "
                    "hosts of the job share",
                    other, steps[other], steps[0], root_));
}

void Checkpointing::save_now(runtime::SaveContents contents) {
    saver_->save(contents, contents == runtime::SaveContents::ModelOnly ? form_ : runtime::ModelForm{});
    last_saved_ = job_.trainer->progress().steps;
    telemetry::info(fmt::format("checkpoint of step {}{}", last_saved_,
                                job_.compiled.layout.partition.snapshot ? " is being written" : " in " + saver_->latest()));
}

void Checkpointing::after_step(const runtime::StepResult& r) {
    if (!saver_) return;
    saver_->check();
    if (saves_after(r.step) && (r.committed || r.overflowed())) save_now(runtime::SaveContents::All);
}

bool Checkpointing::saves_after(int64_t step) const {
    const bool wanted = step % config_.checkpoint.interval == 0 || (step == 1 && config_.checkpoint.enable_first_step_checkpoint);
    const bool last_differs = step == config_.training.steps && last_is_model_only_;
    return saver_ && wanted && !last_differs;
}

void Checkpointing::at_end(End end) {
    if (!saver_) return;
    const bool model_only = end == End::LastStep && last_is_model_only_;
    if (last_saved_ != job_.trainer->progress().steps)
        save_now(model_only ? runtime::SaveContents::ModelOnly : runtime::SaveContents::All);
    wait();
    if (!model_only || latest().empty()) return;
    const char* const key = config_.checkpoint.last_save_in_hf ? "checkpoint.last_save_in_hf" : "checkpoint.last_save_model_only";
    telemetry::info(
        fmt::format("the last checkpoint is only the model ({}{} = true): this run cannot go on from it with more "
                    "steps; a new run begins with its weights: checkpoint.initial_load_path = \"{}\"",
                    recipe_.where(key), key, latest()));
}

void Checkpointing::wait() {
    if (saver_) saver_->finish();
}

}  // namespace lockstep::job
