#include "runtime/saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "base/elements.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "compile/effective.h"
#include "runtime/load_states.h"

namespace lockstep::runtime {

namespace {

std::string with_its_model(compile::Recipe recipe) {
    compile::state_model(recipe);
    return recipe.toml();
}

}  // namespace

Saver::Saver(Trainer& trainer, const compile::Recipe& recipe, std::string root, std::string tokenizer)
    : trainer_(trainer),
      root_(std::move(root)),
      recipe_(with_its_model(recipe)),
      tokenizer_(std::move(tokenizer)),
      program_hash_(runtime::program_hash(trainer.ranks().programs())),
      keep_(compile::values_of(recipe).checkpoint.keep_latest_k),
      async_(trainer.ranks().first().program().entry(ir::EntryKind::Snapshot) != nullptr),
      writers_{&trainer.ranks().group(), async_ ? 1 : 0} {
    writers_.together([&] {
        if (writers_.is_first()) remove_partial(root_);
    });
}

Saver::~Saver() {
    if (writer_.joinable()) writer_.join();
}

// `dtype` empty: as the states are.
void Saver::write_file(checkpoint::NewCheckpoint& folder, const std::string& file, const std::string& dtype) const {
    std::vector<checkpoint::TensorSpec> specs = states_->specs(file);
    for (checkpoint::TensorSpec& spec : specs) spec.dtype = dtype.empty() ? spec.dtype : dtype;
    const checkpoint::SafetensorsLayout layout(specs, {{"format", "pt"}});
    StateTensors::Cursor cursor;
    folder.write(
        file, layout,
        [&](const checkpoint::TensorEntry& e, int64_t begin, int64_t count, char* to) {
            states_->read_as(e.spec.name, begin, count, e.spec.dtype, to, cursor);
        },
        [&](const checkpoint::TensorEntry& e, int64_t begin, int64_t count, checkpoint::OfStretch f) {
            states_->for_each_here(e.spec.name, begin, count, f);
        });
}

void Saver::write(checkpoint::Manifest manifest, SaveContents contents, const ModelForm& form) {
    const auto start = std::chrono::steady_clock::now();
    try {
        if (async_) {
            for (const auto& e : trainer_.ranks().here()) e->snapshot();
        }
        checkpoint::NewCheckpoint folder(root_, manifest.steps, writers_);
        writers_.together([&] {
            if (!writers_.is_first() || form.hugging_face) return;  // which writes its own
            checkpoint::write_serving_files(folder.temporary(), serving_, checkpoint::ServingFolder::Checkpoint);
        });
        if (form.hugging_face)
            folder.add(
                checkpoint::write_hugging_face(folder.temporary(), *form.hugging_face, manifest.dtype, *states_, writers_));
        else write_file(folder, checkpoint::kModelFile, form.dtype);
        if (contents == SaveContents::All) write_file(folder, checkpoint::kOptimizerFile, "");
        set_latest(folder.publish(std::move(manifest)));
        if (writers_.is_first()) checkpoint::remove_old(root_, keep_);
        longest_write_s_ =
            std::max(longest_write_s_.load(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    } catch (...) {
        error_ = std::current_exception();
        failed_ = true;
    }
}

namespace {

// Of all islands.
std::map<std::string, double> values_of(Ranks& ranks) {
    if (ranks.programs()[0].mesh.islands() == 1) return saved_values(ranks.first());
    using Json = nlohmann::json;
    std::map<std::string, double> out;
    for (const auto& e : ranks.here()) out.merge(saved_values(*e));
    for (const std::string& text : ranks.group().exchange(cbor_of(Json(out))))
        out.merge(json_of_cbor<Json>(text).get<std::map<std::string, double>>());
    return out;
}

}  // namespace

void Saver::save(SaveContents contents, const ModelForm& form) {
    const auto start = std::chrono::steady_clock::now();
    finish();
    if (!states_) states_.emplace(trainer_.ranks(), async_ ? StateBytes::Snapshot : StateBytes::Live);
    const ir::Program& p = trainer_.ranks().first().program();
    checkpoint::Manifest m;
    m.steps = trainer_.progress().steps;
    m.samples_seen = trainer_.progress().samples_seen;
    m.tokens_seen = trainer_.progress().tokens_seen;
    m.values = values_of(trainer_.ranks());
    m.dtype = form.dtype.empty() ? file_type(p.units.front().master) : form.dtype;
    m.program_hash = program_hash_;
    m.recipe = recipe_;
    m.tokenizer = tokenizer_;
    if (async_) {
        for (const auto& e : trainer_.ranks().here()) e->begin_snapshot();
        writer_ = std::thread([this, m, contents, form] { write(m, contents, form); });
    } else {
        write(m, contents, form);
        check();
    }
    ++saves_;
    held_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void Saver::check() {
    if (!failed_) return;
    if (writer_.joinable()) writer_.join();
    failed_ = false;
    try {
        std::rethrow_exception(error_);
    } catch (const UserError& e) {
        const std::string last = latest();
        throw UserError(
            e.id(), e.key(),
            fmt::format("{} {}", e.what(),
                        last.empty() ? "There is no complete checkpoint yet." : "The last complete checkpoint is " + last + "."));
    }
}

void Saver::finish() {
    if (writer_.joinable()) writer_.join();
    check();
}

std::string Saver::latest() {
    std::lock_guard lock(mutex_);
    return latest_;
}

void Saver::set_latest(const std::string& folder) {
    std::lock_guard lock(mutex_);
    latest_ = folder;
}

double Saver::stall_s() const {
    double waited = 0;
    for (const auto& e : trainer_.ranks().here()) waited = std::max(waited, e->snapshot_wait_s());
    return held_s_ + waited;
}

}  // namespace lockstep::runtime
