#include "tests/equivalence/run.h"

#include <cmath>
#include <optional>

#include "base/processors.h"
#include "base/random.h"
#include "data/token_file.h"
#include "kernels/kernel.h"
#include "runtime/parameters.h"
#include "tests/base/scratch_folder.h"
#include "tests/kernels/emulated_gpu.h"

namespace lockstep::testing {
namespace {

// Training starts so close to zero that attention is even and branches hardly count. Here matrices start wider and norms
// apart from one, so that every path matters from the first step.
runtime::Values wide_values(const ir::Parameter& p, int64_t instance, uint64_t seed) {
    const runtime::InitialValues initial(p, instance, seed);
    if (p.init.kind == ir::InitKind::Normal)
        return [initial, scale = p.init.std < 0.1 ? 0.3 / p.init.std : 1](int64_t i) { return scale * initial(i); };
    const uint64_t stream = splitmix64(seed) ^ hash_name(runtime::global_name(p, instance));
    return [initial, stream](int64_t i) { return initial(i) + 0.2 * normal_draw(stream, static_cast<uint64_t>(i)); };
}

ops::KernelCatalog catalog_of(Backend backend, int threads) {
    switch (backend) {
        case Backend::Reference: return kernels::reference_catalog();
        case Backend::Cpu: return kernels::cpu_catalog(threads);
        case Backend::EmulatedGpu: break;
    }
    return emulated_gpu_catalog(kernels::cpu_kernels(), threads);
}

}  // namespace

compile::Compiled compile_recipe(const compile::Recipe& recipe, Backend backend, const std::vector<std::string>& skip,
                                 const passes::RouteOptions& route) {
    // Enough workspace for as many threads as any placement may give a rank.
    const int64_t set = recipe.integer("runtime.threads_per_rank");
    const int threads = static_cast<int>(set > 0 ? set : static_cast<int64_t>(usable_cpus().size()));
    compile::CompileOptions options;
    options.catalog = catalog_of(backend, threads);
    options.skip = skip;
    options.route = route;
    return compile::compile(recipe, options);
}

data::SyntheticSource synthetic_data(const compile::Recipe& recipe, const compile::Compiled& compiled) {
    data::SyntheticOptions data;
    data.seed = static_cast<uint64_t>(recipe.integer("debug.seed"));
    data.vocab_size = static_cast<int>(std::get<int64_t>(recipe.model_shape().at("vocab_size")));
    data.seq_len = static_cast<int>(compiled.layout.seq_len);
    data.masked_target_fraction = recipe.number("debug.synthetic_masked");
    data.mean_document_tokens = recipe.flag("training.document_mask") ? data.seq_len / 2 : 0;
    return data::SyntheticSource(data);
}

runtime::ValuesOf values_in(const runtime::GlobalTensors& tensors) {
    return [&tensors](const ir::Parameter& p, int64_t instance) {
        const std::vector<double>& values = tensors.at(runtime::global_name(p, instance));
        return [&values](int64_t i) { return values[static_cast<size_t>(i)]; };
    };
}

void start(runtime::Trainer& trainer, const compile::Recipe& recipe) {
    const auto seed = static_cast<uint64_t>(recipe.integer("debug.seed"));
    trainer.fill_weights([seed](const ir::Parameter& p, int64_t instance) { return wide_values(p, instance, seed); });
}

void go_on(runtime::Trainer& trainer, int steps, Outcome& outcome, const data::Dataset* heldout) {
    for (int s = 0; s < steps; ++s) {
        const runtime::StepResult r = trainer.step();
        outcome.losses.push_back(r.loss);
        outcome.grad_norms.push_back(r.grad_norm);
        if (!heldout || (s > 0 && s + 1 < steps)) continue;
        runtime::Evaluator& e = trainer.evaluator();
        outcome.heldout_losses.push_back(e.evaluate(*heldout, e.batches(*heldout)).loss());
    }
    outcome.weights = trainer.state(runtime::saved_as("{}"));
}

namespace {

// Five windows of documents of a few tokens each.
data::Dataset heldout_data(const ScratchFolder& folder, const compile::Recipe& recipe, const compile::Compiled& compiled) {
    const auto vocab = static_cast<uint64_t>(std::get<int64_t>(recipe.model_shape().at("vocab_size")));
    const std::string file = folder.path("heldout.bin");
    data::TokenFileWriter writer(file, static_cast<int>(vocab), 0);
    uint64_t draw = 1;
    while (writer.tokens() < 5 * compiled.layout.seq_len + 1) {
        std::vector<int32_t> document;
        for (uint64_t length = 1 + draw % 5; length > 0; --length) {
            draw = splitmix64(draw);
            document.push_back(static_cast<int32_t>(1 + draw % (vocab - 1)));
        }
        writer.append(document);
        writer.end_document();
    }
    writer.finish();
    writer.publish();
    data::DatasetOptions options;
    options.seq_len = static_cast<int>(compiled.layout.seq_len);
    options.mode = recipe.flag("training.document_mask") ? data::SampleMode::packed : data::SampleMode::windows;
    return {data::TokenFile::open(file), options};
}

Outcome run_on(const compile::Recipe& recipe, const compile::Config& config, const compile::Compiled& compiled,
               const data::Source& source, int steps) {
    runtime::Trainer trainer(config, compiled, source);
    start(trainer, recipe);
    const ScratchFolder folder;
    std::optional<data::Dataset> heldout;
    if (compiled.programs[0].entry(ir::EntryKind::Eval)) heldout = heldout_data(folder, recipe, compiled);
    Outcome out;
    go_on(trainer, steps, out, heldout ? &*heldout : nullptr);
    return out;
}

}  // namespace

Outcome run(const compile::Recipe& recipe, const compile::Compiled& compiled, const data::Source& source, int steps) {
    return run_on(recipe, compile::config_of(recipe), compiled, source, steps);
}

Outcome run(const compile::Recipe& recipe, const compile::Compiled& compiled, int steps) {
    return run(recipe, compiled, synthetic_data(recipe, compiled), steps);
}

Outcome run(const compile::Recipe& recipe, const compile::Config& config, const compile::Compiled& compiled, int steps) {
    return run_on(recipe, config, compiled, synthetic_data(recipe, compiled), steps);
}

Outcome run(const compile::Recipe& recipe, Backend backend, int steps) {
    const compile::Compiled compiled = compile_recipe(recipe, backend);
    return run(recipe, compiled, steps);
}

double difference(const Outcome& a, const Outcome& b, std::string* where) {
    double worst = 0;
    const auto note = [&](double d, double scale, const std::string& place) {
        const double relative = d / scale;
        if (!(relative <= worst)) {  // NaN counts as the worst
            worst = std::isnan(relative) ? INFINITY : relative;
            if (where) *where = place;
        }
    };
    for (size_t s = 0; s < a.losses.size(); ++s) {
        note(std::abs(a.losses[s] - b.losses[s]), std::max(1.0, std::abs(a.losses[s])), "loss of step " + std::to_string(s + 1));
        note(std::abs(a.grad_norms[s] - b.grad_norms[s]), std::max(1.0, std::abs(a.grad_norms[s])),
             "gradient norm of step " + std::to_string(s + 1));
    }
    const bool both_validate = !a.heldout_losses.empty() && !b.heldout_losses.empty();
    for (size_t i = 0; both_validate && i < a.heldout_losses.size(); ++i) {
        const double loss = a.heldout_losses[i];
        note(std::abs(loss - b.heldout_losses.at(i)), std::max(1.0, std::abs(loss)),
             "loss of validation " + std::to_string(i + 1));
    }
    for (const auto& [name, x] : a.weights) {
        const std::vector<double>& y = b.weights.at(name);
        double scale = 0, most = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            scale = std::max(scale, std::abs(x[i]));
            most = std::max(most, std::abs(x[i] - y[i]));
            if (std::isnan(x[i]) || std::isnan(y[i])) most = INFINITY;
        }
        note(most, std::max(scale, 1e-30), name);
    }
    return worst;
}

}  // namespace lockstep::testing
