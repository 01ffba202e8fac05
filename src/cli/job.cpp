#include "cli/job.h"

#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "cli/agreement.h"
#include "cli/machine.h"
#include "cli/types.h"
#include "data/synthetic_source.h"
#include "telemetry/console.h"
#include "telemetry/metrics.h"

namespace lockstep::cli {

std::unique_ptr<Job> start_job(const RecipeArgs& args, comm::Crew* crew, const Facts& flags) {
    const auto start = std::chrono::steady_clock::now();
    auto job = std::make_unique<Job>();
    job->recipe = read_recipe(args);
    if (crew) {
        take_ranks(job->recipe, *crew);
        require_same_job(job->recipe, flags, *crew);
    }
    const compile::Recipe& r = job->recipe;
    if (const std::string slow = slow_types_warning(r); !slow.empty()) telemetry::warn(slow);
    const auto seq_len = static_cast<int>(r.integer("training.seq_len"));
    const auto seed = static_cast<uint64_t>(r.integer("debug.seed"));
    const bool mask = r.flag("training.document_mask");
    take_vocabulary(job->recipe, MissingData::Refuse);
    if (r.text("training.dataset") != "synthetic") {
        job->prepared = data::PreparedData::open(r.text("training.dataset_path"));
        job->tokenizer = r.text("training.dataset_path") + "/" + data::kTokenizerFile;
        const data::DatasetOptions options{seq_len, mask ? data::SampleMode::packed : data::SampleMode::windows, seed};
        job->source = std::make_unique<data::Dataset>(std::move(job->prepared->train), options);
        if (r.flag("validation.enable")) {
            const std::string& other = r.text("validation.dataset_path");
            data::TokenStream heldout =
                other.empty() ? std::move(job->prepared->heldout) : data::PreparedData::open(other).heldout;
            if (heldout.empty())
                throw UserError("recipe.no_heldout", "validation.enable",
                                fmt::format("validation.enable = true: {} has no held-out documents (it was prepared with "
                                            "--heldout 0); set validation.dataset_path to data that has some, or switch "
                                            "validation off",
                                            other.empty() ? r.text("training.dataset_path") : other));
            job->heldout.emplace(std::move(heldout), options);
        }
    } else {
        data::SyntheticOptions options;
        options.seed = seed;
        options.vocab_size = static_cast<int>(std::get<int64_t>(r.model_shape().at("vocab_size")));
        options.seq_len = seq_len;
        options.masked_target_fraction = r.number("debug.synthetic_masked");
        options.mean_document_tokens = mask ? std::max(1, seq_len / 2) : 0;
        job->source = std::make_unique<data::SyntheticSource>(options);
    }
    const compile::CompileOptions options = compile_options(r, crew);
    job->compiled = compile::compile(r, options);
    require_runnable(r, options, job->compiled, capacity_here(r, job->compiled.layout.ranks, crew));
    if (crew) require_same_programs(job->compiled, *crew);
    job->anonymous_bytes_before = telemetry::anonymous_resident_bytes();
    job->trainer = std::make_unique<runtime::Trainer>(r, job->compiled, *job->source, crew);
    job->start_up_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return job;
}

}  // namespace lockstep::cli
