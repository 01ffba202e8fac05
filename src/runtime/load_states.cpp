#include "runtime/load_states.h"

#include <fmt/format.h>

#include <exception>
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

void require_same_model(const std::vector<ir::Program>& programs, const TensorSource& source, const WhichStates& which,
                        const std::string& path) {
    for_each_saved(programs, [&](const ir::State& state, const ir::Parameter& param, int64_t i) {
        if (!which(state)) return;
        const std::string name = saved_name(state, param, i);
        const TensorSpec spec = source.contains(name) ? source.spec(name) : TensorSpec{name, "absent", {}};
        if (is_float(spec.dtype) && spec.shape == global_shape(param)) return;
        if (!state.is_weights() && !source.contains(name))
            throw UserError(
                "checkpoint.other_optimizer", "optimizer.name",
                fmt::format("{}: it has no {}, which the recipe's optimizer keeps: resume with the optimizer.name that "
                            "made it, or begin the optimizer's states at zero with "
                            "checkpoint.exclude_from_loading = [\"optimizer\"]",
                            path, name));
        throw UserError("checkpoint.other_model", path,
                        fmt::format("{}: {} is {} [{}], but the recipe's model has [{}]: resume with the recipe that made it",
                                    path, name, spec.dtype, fmt::join(spec.shape, ", "), fmt::join(global_shape(param), ", ")));
    });
}

void load_states(Executor& e, const TensorSource& source, const WhichStates& which) {
    TensorSource::Cursor cursor;
    write_states(e, which, [&](const Run& run, const ir::State& state, char* data) {
        source.read_as(saved_name(state, *run.param, run.instance), run.global_begin, run.count, file_type(state.dtype), data,
                       cursor);
    });
}

// A rank's error is kept until all have ended, as it would end the job otherwise, and another checkpoint may be whole.
void load_states(Ranks& ranks, const TensorSource& source, const std::string& origin, const WhichStates& which) {
    require_same_model(ranks.programs(), source, which, origin);
    std::vector<std::exception_ptr> errors(ranks.here().size());
    ranks.parallel([&](Executor& e) {
        try {
            load_states(e, source, which);
        } catch (const UserError&) {
            errors[ranks.place(e.rank())] = std::current_exception();
        }
    });
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

bool is_of_optimizer(const ir::State& s) { return !s.saved.empty() && !s.is_weights(); }

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

void load_weights(Ranks& ranks, const TensorSource& source, const std::string& origin) {
    ranks.group().together([&] { load_states(ranks, source, origin, &ir::State::is_weights); });
}

namespace {

void load_weights_here(Ranks& ranks, const std::string& folder, const checkpoint::Manifest& manifest) {
    load_states(ranks, *open_weights(folder, manifest), folder + "/" + checkpoint::kModelFile, &ir::State::is_weights);
}

checkpoint::Manifest load_here(Trainer& trainer, const std::string& folder, const LoadParts& parts) {
    const checkpoint::Manifest m = checkpoint::read_manifest(folder);
    load_weights_here(trainer.ranks(), folder, m);
    const bool imported = m.steps == 0 && !m.has_optimizer();  // from elsewhere: moments are zero
    if (parts.optimizer && !imported) {
        const std::string& file = checkpoint::kOptimizerFile;
        load_states(trainer.ranks(), checkpoint::open_file(folder, m, file), folder + "/" + file, is_of_optimizer);
        for (const auto& e : trainer.ranks().here()) set_saved_values(*e, m.values);
    }
    return m;
}

}  // namespace

void load_weights(Ranks& ranks, const std::string& folder) {
    ranks.group().together([&] { load_weights_here(ranks, folder, checkpoint::read_manifest(folder)); });
}

checkpoint::Manifest load(Trainer& trainer, const std::string& folder, const LoadParts& parts) {
    checkpoint::Manifest m;
    trainer.ranks().group().together([&] { m = load_here(trainer, folder, parts); });
    Progress progress = trainer.progress();
    if (parts.dataloader) progress.samples_seen = m.samples_seen;
    if (parts.train_state) progress.steps = m.steps, progress.tokens_seen = m.tokens_seen;
    trainer.set_progress(progress);
    return m;
}

}  // namespace lockstep::runtime
