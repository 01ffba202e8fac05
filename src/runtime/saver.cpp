#include "runtime/saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/output_file.h"
#include "runtime/snapshot.h"

namespace lockstep::runtime {

Saver::Saver(Trainer& trainer, const compile::Recipe& recipe, std::string root)
    : trainer_(trainer),
      root_(std::move(root)),
      recipe_(recipe.toml()),
      program_hash_(runtime::program_hash(trainer.ranks().executor(0).program())),
      keep_(recipe.integer("checkpoint.keep_latest_k")),
      async_(trainer.ranks().executor(0).program().entry("snapshot") != nullptr) {
    remove_partial(root_);
}

Saver::~Saver() {
    if (writer_.joinable()) writer_.join();
}

// Where the elements of every tensor stand: in the copies, or in the states themselves. Of replicas the owner's counts.
void Saver::find_parts() {
    if (!parts_.empty()) return;
    const StateBytes bytes = async_ ? StateBytes::Snapshot : StateBytes::Live;
    for (int r = 0; r < trainer_.ranks().count(); ++r) {
        Executor& e = trainer_.ranks().executor(r);
        const ir::Program& p = e.program();
        for (StateKind kind : kSavedStates) {
            for_each_state_run(e, kind, bytes, [&](const Run& run, const char* data, Dtype) {
                if (is_owner(p, *run.param, place_of(*p.unit(run.param->block), kind).split, r))
                    parts_[prefix_of(kind) + global_name(*run.param, run.instance)].push_back(
                        {run.global_begin, run.count, data});
            });
        }
    }
    for (auto& [name, parts] : parts_)
        std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
}

void Saver::write_file(checkpoint::NewCheckpoint& folder, const std::vector<StateKind>& kinds) const {
    std::vector<checkpoint::TensorSpec> specs;
    const ir::Program& p = trainer_.ranks().executor(0).program();
    for (StateKind kind : kinds) {
        const std::string type(file_type(place_of(p.units.front(), kind).type));
        for_each_parameter(p, [&](const ir::Parameter& param, int64_t i) {
            specs.push_back({prefix_of(kind) + global_name(param, i), type, global_shape(param)});
        });
    }
    const checkpoint::SafetensorsLayout layout(specs, {{"format", "pt"}});
    folder.write(
        file_of(kinds.front()), layout, [&](const checkpoint::TensorEntry& tensor, int64_t begin, int64_t count, char* to) {
            const std::vector<Part>& parts = parts_.find(tensor.spec.name)->second;
            const int64_t element_bytes = tensor.bytes / tensor.elements;
            auto part = std::prev(
                std::upper_bound(parts.begin(), parts.end(), begin, [](int64_t at, const Part& p) { return at < p.begin; }));
            for (const int64_t end = begin + count; begin < end; ++part) {
                ensure(part != parts.end() && part->begin <= begin && begin < part->begin + part->count,
                       fmt::format("saver: no rank holds element {} of {}", begin, tensor.spec.name));
                const int64_t n = std::min(end, part->begin + part->count) - begin;
                std::memcpy(to, part->data + (begin - part->begin) * element_bytes, static_cast<size_t>(n * element_bytes));
                begin += n;
                to += n * element_bytes;
            }
        });
}

void Saver::write(checkpoint::Manifest manifest, SaveContents contents) {
    const auto start = std::chrono::steady_clock::now();
    try {
        if (async_) {
            for (int r = 0; r < trainer_.ranks().count(); ++r) trainer_.ranks().executor(r).snapshot();
        }
        checkpoint::NewCheckpoint folder(root_, manifest.steps);
        write_file(folder, {StateKind::Weights});
        if (contents == SaveContents::All) write_file(folder, {StateKind::Moment1, StateKind::Moment2});
        set_latest(folder.publish(std::move(manifest)));
        checkpoint::remove_old(root_, keep_);
        longest_write_s_ =
            std::max(longest_write_s_.load(), std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    } catch (...) {
        error_ = std::current_exception();
        failed_ = true;
    }
}

void Saver::save(SaveContents contents) {
    const auto start = std::chrono::steady_clock::now();
    finish();
    find_parts();
    const ir::Program& p = trainer_.ranks().executor(0).program();
    checkpoint::Manifest m;
    m.steps = trainer_.progress().steps;
    m.samples_seen = trainer_.progress().samples_seen;
    m.tokens_seen = trainer_.progress().tokens_seen;
    m.optimizer_steps = static_cast<int64_t>(*trainer_.ranks().executor(0).scalar("steps"));
    m.dtype = file_type(p.units.front().master);
    m.program_hash = program_hash_;
    m.recipe = recipe_;
    if (async_) {
        for (int r = 0; r < trainer_.ranks().count(); ++r) trainer_.ranks().executor(r).begin_snapshot();
        writer_ = std::thread([this, m, contents] { write(m, contents); });
    } else {
        write(m, contents);
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
    for (int r = 0; r < trainer_.ranks().count(); ++r) waited = std::max(waited, trainer_.ranks().executor(r).snapshot_wait_s());
    return held_s_ + waited;
}

}  // namespace lockstep::runtime
