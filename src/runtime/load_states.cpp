#include "runtime/load_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <vector>

#include "base/checksum.h"
#include "base/elements.h"
#include "base/error.h"
#include "checkpoint/hugging_face_folder.h"
#include "checkpoint/safetensors.h"
#include "ir/text.h"

namespace lockstep::runtime {
namespace {

using checkpoint::TensorSource;
using checkpoint::TensorSpec;

// From which tensor of the source a state comes; "": from none, and it stays as it is.
using NameOf = std::function<std::string(const ir::State&, const ir::Parameter&, int64_t instance, int64_t island)>;

bool has_shape(const TensorSpec& spec, const ir::Parameter& param, Vocabulary vocabulary) {
    std::vector<int64_t> wanted = global_shape(param);
    const bool may_be_larger =
        vocabulary == Vocabulary::MayBeLarger && !param.dims.empty() && param.dims[0].role == ir::DimRole::Vocab;
    if (may_be_larger && !spec.shape.empty()) wanted[0] = std::min(wanted[0], spec.shape[0]);
    return spec.shape == wanted;
}

void require_same_model(const std::vector<ir::Program>& programs, const TensorSource& source, const WhichStates& which,
                        const NameOf& name_of, const std::string& path, Vocabulary vocabulary) {
    for_each_saved(programs, [&](const ir::State& state, const ir::Parameter& param, int64_t i) {
        if (!which(state)) return;
        const std::string name = name_of(state, param, i, 0);
        if (name.empty()) return;
        const TensorSpec spec = source.contains(name) ? source.spec(name) : TensorSpec{name, "absent", {}};
        if (is_float(spec.dtype) && has_shape(spec, param, vocabulary)) return;
        if (!state.is_weights() && !source.contains(name))
            throw UserError(
                kOtherOptimizer, "optimizer.name",
                fmt::format("{}: it has no {}, which the recipe's optimizer keeps: resume with the optimizer.name that "
                            "made it, or begin the optimizer's states at zero with "
                            "checkpoint.exclude_from_loading = [\"optimizer\"]",
                            path, name));
        throw UserError(kOtherModel, path,
                        fmt::format("{}: {} is {} [{}], but the recipe's model has [{}]: resume with the recipe that made it",
                                    path, name, spec.dtype, fmt::join(spec.shape, ", "), fmt::join(global_shape(param), ", ")));
    });
}

void load_states(Executor& e, const TensorSource& source, const WhichStates& which, const NameOf& name_of) {
    TensorSource::Cursor cursor;
    const int64_t island = e.program().mesh.island_of(e.rank());
    const auto read = [&](const Run& run, const ir::State& state, int buffer) {
        const std::string name = name_of(state, *run.param, run.instance, island);
        if (name.empty()) return;
        const int64_t each = bytes_of(state.dtype);
        const int64_t count = std::min(run.count, elements_of(source.spec(name)) - run.global_begin);  // rows may be missing
        if (count <= 0) return;
        e.write(buffer, run.local_begin * each, count * each,
                [&](char* data) { source.read_as(name, run.global_begin, count, file_type(state.dtype), data, cursor); });
    };
    for_each_state_run(e, which, read);
}

// A rank's error is kept until all have ended, as it would end the job otherwise, and another checkpoint may be whole.
void load_states(Ranks& ranks, const TensorSource& source, const std::string& origin, const WhichStates& which,
                 const NameOf& name_of, Vocabulary vocabulary) {
    require_same_model(ranks.programs(), source, which, name_of, origin, vocabulary);
    std::vector<std::exception_ptr> errors(ranks.here().size());
    ranks.parallel([&](Executor& e) {
        try {
            load_states(e, source, which, name_of);
        } catch (const UserError&) {
            errors[ranks.place(e.rank())] = std::current_exception();
        }
    });
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

// The model: every island has the same, and an anchor begins as the weights.
void load_model(Ranks& ranks, const TensorSource& source, const std::string& origin, Vocabulary vocabulary) {
    load_states(
        ranks, source, origin, &ir::State::begins_as_weights,
        [](const ir::State&, const ir::Parameter& param, int64_t i, int64_t) { return global_name(param, i); }, vocabulary);
}

// The state of training apart from it. What was saved by fewer islands is the first one's on the others; what was saved without
// any has the anchor that the model has become, and an outer optimizer that remembers nothing.
void load_training(Ranks& ranks, const TensorSource& source, const std::string& origin) {
    const auto which = [](const ir::State& s) { return !s.saved.empty() || s.is_weights(); };
    load_states(
        ranks, source, origin, which,
        [&](const ir::State& state, const ir::Parameter& param, int64_t i, int64_t island) -> std::string {
            const std::string own = saved_name(state, param, i, island);
            if (source.contains(own)) return own;
            if (state.is_weights() || state.is_of_all_islands()) return "";
            return saved_name(state, param, i);
        },
        Vocabulary::Same);
}

}  // namespace

std::string program_hash(const std::vector<ir::Program>& programs) {
    std::string text;
    for (const ir::Program& p : programs) text += ir::print(p);
    return hex_checksum(text);
}

std::unique_ptr<TensorSource> open_weights(const std::string& folder, const checkpoint::Manifest& m) {
    if (checkpoint::HuggingFaceFolder::is_at(folder)) return std::make_unique<checkpoint::HuggingFaceFolder>(folder, m.files);
    return std::make_unique<checkpoint::SafetensorsReader>(checkpoint::open_file(folder, m, checkpoint::kModelFile));
}

void load_weights(Ranks& ranks, const TensorSource& source, const std::string& origin, Vocabulary vocabulary) {
    ranks.group().together([&] { load_model(ranks, source, origin, vocabulary); });
}

namespace {

void load_weights_here(Ranks& ranks, const std::string& folder, const checkpoint::Manifest& manifest, Vocabulary vocabulary) {
    load_model(ranks, *open_weights(folder, manifest), folder + "/" + checkpoint::kModelFile, vocabulary);
}

checkpoint::Manifest load_here(Trainer& trainer, const std::string& folder, const LoadParts& parts, Vocabulary vocabulary) {
    const checkpoint::Manifest m = checkpoint::read_manifest(folder);
    load_weights_here(trainer.ranks(), folder, m, vocabulary);
    const bool imported = m.steps == 0 && !m.has_optimizer();  // from elsewhere: moments are zero
    if (parts.optimizer && !imported) {
        const std::string& file = checkpoint::kOptimizerFile;
        load_training(trainer.ranks(), checkpoint::open_file(folder, m, file), folder + "/" + file);
        for (const auto& e : trainer.ranks().here()) set_saved_values(*e, m.values);
    }
    return m;
}

}  // namespace

void load_weights(Ranks& ranks, const std::string& folder, const checkpoint::Manifest& manifest) {
    ranks.group().together([&] { load_weights_here(ranks, folder, manifest, Vocabulary::Same); });
}

checkpoint::Manifest load(Trainer& trainer, const std::string& folder, const LoadParts& parts, Vocabulary vocabulary) {
    checkpoint::Manifest m;
    trainer.ranks().group().together([&] { m = load_here(trainer, folder, parts, vocabulary); });
    Progress progress = trainer.progress();
    if (parts.dataloader) progress.samples_seen = m.samples_seen;
    if (parts.train_state) progress.steps = m.steps, progress.tokens_seen = m.tokens_seen;
    trainer.set_progress(progress);
    return m;
}

}  // namespace lockstep::runtime
