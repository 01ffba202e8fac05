#include "planning/run_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "data/mixture.h"
#include "data/synthetic_source.h"
#include "telemetry/console.h"

namespace lockstep::planning {
namespace {

// Nothing where the recipe's data can be opened.
std::optional<UserError> lack(const compile::Recipe& recipe, const compile::Config& config, MissingData missing) {
    const std::vector<std::string>& folders = config.training.dataset_path;
    const std::string& dataset = recipe.text("training.dataset");  // as it is written: prepared, or another name for it
    if (folders.empty() && dataset != "prepared")
        return UserError("recipe.no_data", "training.dataset_path",
                         fmt::format("{}training.dataset = \"{}\": Lockstep downloads no data set. Prepare its text with "
                                     "`lockstep data prepare` and set training.dataset_path to that folder, or set "
                                     "training.dataset = \"synthetic\"",
                                     recipe.where("training.dataset"), dataset));
    if (folders.empty())
        return UserError("recipe.no_data", "training.dataset_path",
                         "training.dataset_path is not set: give the folder that `lockstep data prepare` made, or set "
                         "training.dataset = \"synthetic\"");
    const auto absent = std::find_if(folders.begin(), folders.end(), [](const auto& f) { return !std::filesystem::exists(f); });
    if (missing == MissingData::Assume && absent != folders.end())
        return UserError("recipe.no_data", "training.dataset_path", fmt::format("{} is not prepared yet", *absent));
    return std::nullopt;
}

void take_vocabulary(compile::Recipe& recipe, const data::PreparedData& prepared) {
    const int64_t vocab_size = prepared.manifest.vocab_size;
    if (!recipe.is_set("model.vocab_size")) {
        recipe.set("model.vocab_size", std::to_string(vocab_size));
    } else if (const int64_t given = std::get<int64_t>(recipe.model_shape().at("vocab_size")); given < vocab_size) {
        throw UserError("recipe.vocabulary", "model.vocab_size",
                        fmt::format("model.vocab_size = {}, but the tokens of {} go up to {}: raise it, or leave it out{}", given,
                                    prepared.folder.string(), vocab_size,
                                    recipe.is_set("checkpoint.initial_load_path")
                                        ? "; the weights of checkpoint.initial_load_path then get new rows"
                                        : ""));
    }
}

std::unique_ptr<data::Source> synthetic(const compile::Config& config) {
    data::SyntheticOptions options;
    options.seed = static_cast<uint64_t>(config.debug.seed);
    options.vocab_size = static_cast<int>(config.model.size("vocab_size"));
    options.seq_len = static_cast<int>(config.training.seq_len);
    options.masked_target_fraction = config.debug.synthetic_masked;
    options.mean_document_tokens = config.training.document_mask ? std::max(1, options.seq_len / 2) : 0;
    return std::make_unique<data::SyntheticSource>(options);
}

std::vector<RunData::Heldout> heldout_of(const compile::Config& config, std::vector<data::DataSet>& sets) {
    std::vector<RunData::Heldout> out;
    std::vector<std::string> without;
    for (data::DataSet& set : sets) {
        if (set.prepared.heldout.empty()) without.push_back(set.prepared.folder.string());
        else out.push_back({set.name, data::Dataset(std::move(set.prepared.heldout), dataset_options(config))});
    }
    if (out.empty())
        throw UserError("recipe.no_heldout", "validation.enable",
                        fmt::format("validation.enable = true: {} has no held-out documents (it was prepared with "
                                    "--heldout 0); set validation.dataset_path to data that has some, or switch "
                                    "validation off",
                                    fmt::join(without, ", ")));
    if (!without.empty())
        telemetry::warn(fmt::format("validation leaves out {}, which has no held-out documents", fmt::join(without, ", ")));
    return out;
}

}  // namespace

data::DatasetOptions dataset_options(const compile::Config& config) {
    const bool mask = config.training.document_mask;
    return {static_cast<int>(config.training.seq_len), mask ? data::SampleMode::packed : data::SampleMode::windows,
            static_cast<uint64_t>(config.debug.seed)};
}

RunData open_run_data(compile::Recipe& recipe, MissingData missing) {
    RunData run;
    const compile::Config config = compile::config_of(recipe);  // but for the vocabulary
    if (config.training.dataset == compile::Dataset::Synthetic) {
        run.source = synthetic(config);
        return run;
    }
    if (const std::optional<UserError> lacks = lack(recipe, config, missing)) {
        if (missing == MissingData::Refuse) throw *lacks;
        telemetry::warn(fmt::format("{}. `train` will refuse this recipe until then; here a vocabulary of {} is assumed",
                                    lacks->what(), config.model.size("vocab_size")));
        return run;
    }
    std::vector<data::DataSet> sets = data::open_data_sets(config.training.dataset_path);
    const data::PreparedData& first = sets.front().prepared;
    take_vocabulary(recipe, first);
    run.tokenizer = (first.folder / data::kTokenizerFile).string();
    if (sets.size() == 1) run.unigram_entropy_nats = first.manifest.unigram_entropy_nats;
    if (config.validation.enable) {
        std::vector<data::DataSet> others = data::open_data_sets(config.validation.dataset_path);
        for (const data::DataSet& other : others) data::require_same_tokenizer(first, other.prepared);
        run.heldout = heldout_of(config, others.empty() ? sets : others);
    }
    data::DatasetOptions options = dataset_options(config);
    options.window_stride = config.training.window_stride;
    std::vector<data::Dataset> parts;
    std::vector<double> weights = config.training.dataset_weights;
    const bool by_size = weights.empty();
    for (data::DataSet& set : sets) {
        parts.emplace_back(std::move(set.prepared.train), options);
        if (by_size) weights.push_back(static_cast<double>(parts.back().windows()));
        run.parts.push_back({set.name, weights[run.parts.size()], parts.back().windows()});
    }
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    for (RunData::Part& part : run.parts) part.share /= sum;
    run.source = std::make_unique<data::Mixture>(std::move(parts), weights);
    return run;
}

}  // namespace lockstep::planning
