#include "tests/golden/golden_run.h"
#include "tests/base/plain.h"
#include "tests/paths.h"

#include <cmath>
#include <fstream>

#include "base/random.h"
#include "data/sampler.h"

namespace lockstep::testing {
namespace {

constexpr int kSeqLen = 64, kSequences = 8;

class FormulaSource : public data::Source {
public:
    explicit FormulaSource(const nlohmann::json& golden)
        : vocab_(golden["config"]["vocab_size"]),
          mod_(golden["formula"]["chain_mod"]),
          mul_(golden["formula"]["chain_mul"]),
          add_(golden["formula"]["chain_add"]),
          mask_mod_(golden["formula"]["mask_mod"]),
          mask_prefix_(golden["formula"]["mask_prefix"]) {}
    int seq_len() const override { return kSeqLen; }
    int vocab_size() const override { return static_cast<int>(vocab_); }

    // Sample number n is row n % 8 of step n / 8.
    void sample(int64_t n, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override {
        uint64_t token = 0;
        for (uint64_t t = 0; t <= kSeqLen; ++t) {
            const uint64_t h = splitmix64(hash_name("tokens") + static_cast<uint64_t>(n) * (kSeqLen + 1) + t);
            const bool starts_anew = t == 0 || h % 8 == 0;
            token = starts_anew ? (h >> 8) % vocab_ : (mul_ * token + add_ + (h >> 8) % 2) % mod_;
            if (t < kSeqLen) ids[t] = static_cast<int32_t>(token);
            if (t > 0) targets[t - 1] = static_cast<int32_t>(token);
        }
        for (uint64_t t = 0; t < kSeqLen; ++t) {
            const bool prefix = t < mask_prefix_ * static_cast<uint64_t>(n % kSequences);
            const uint64_t h = splitmix64(hash_name("mask") + static_cast<uint64_t>(n) * kSeqLen + t);
            if (prefix || h % mask_mod_ == 0) targets[t] = data::kNoTarget;
            positions[t] = static_cast<int32_t>(t);
            documents[t] = 0;
        }
    }

private:
    uint64_t vocab_, mod_, mul_, add_, mask_mod_, mask_prefix_;
};

std::vector<double> golden_weights(const nlohmann::json& formula, const std::string& name, const nlohmann::json& shape) {
    const bool is_bias = name.ends_with(".bias"), is_norm = shape.size() == 1 && !is_bias;
    double scale = formula[is_bias ? "bias_scale" : "norm_scale"];
    if (shape.size() > 1)
        scale = formula["matrix_numerator"].get<double>() / std::sqrt(shape.at(formula.value("in_axis", 1)).get<double>());
    for (const char* table : {"embed_tokens", "wte", "wpe"}) {
        if (name.find(table) != std::string::npos) scale = formula["embed_scale"];
    }
    uint64_t size = 1;
    for (const nlohmann::json& d : shape) size *= d.get<uint64_t>();
    const uint64_t stream = hash_name(name + formula.value("salt", ""));
    std::vector<double> out;
    for (uint64_t i = 0; i < size; ++i) {
        const double x = 2 * (static_cast<double>(splitmix64(stream + i) >> 11) * 0x1p-53) - 1;
        out.push_back(static_cast<float>((is_norm ? 1 : 0) + scale * x));
    }
    return out;
}

// Where an element of one of our parameters stands in Hugging Face's: the same place, but for GPT-2's queries, keys and values,
// which are the columns of one c_attn there (models/gpt2.cpp).
struct HuggingFace {
    std::string name;
    int64_t third = -1, width = 0;  // which of q, k, v, and their width
    explicit HuggingFace(const ir::Parameter& p, int64_t instance) : name(runtime::global_name(p, instance)) {
        const size_t at = name.find(".c_attn.");
        if (at == std::string::npos) return;
        third = std::string_view("qkv").find(name[at + 8]);
        name.erase(at + 8, 2);
        width = 1;
        for (const ir::Dim& d : p.dims) width *= d.name == "hidden" ? 1 : d.size;
    }
    int64_t index(int64_t i) const { return third < 0 ? i : i / width * 3 * width + third * width + i % width; }
};

// Under Hugging Face's names; the order of elements is ours.
runtime::GlobalTensors by_their_names(const ir::Program& program, const runtime::GlobalTensors& tensors) {
    runtime::GlobalTensors out;
    for (const ir::Parameter& p : program.params) {
        for (int64_t i = 0; tensors.contains(runtime::global_name(p, i)); ++i) {
            const std::vector<double>& values = tensors.at(runtime::global_name(p, i));
            std::vector<double>& whole = out[HuggingFace(p, i).name];
            whole.insert(whole.end(), values.begin(), values.end());
            if (p.name.find("{}") == std::string::npos) break;
        }
    }
    return out;
}

std::map<std::string, double> norms(const runtime::GlobalTensors& tensors) {
    std::map<std::string, double> out;
    for (const auto& [name, values] : tensors) {
        double sum = 0;
        for (double v : values) sum += v * v;
        out[name] = std::sqrt(sum);
    }
    return out;
}

std::string text(const nlohmann::json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

// A trainer with the golden weights.
struct Run {
    Run(const nlohmann::json& golden, Backend backend, const Settings& settings)
        : source(golden),
          recipe(golden_recipe(golden, settings)),
          compiled(compile_recipe(recipe, backend)),
          trainer(compile::config_of(recipe), compiled, source) {
        std::map<std::string, std::vector<double>> weights;
        for (const auto& [name, shape] : golden["checks"]["param_shapes"].items())
            weights[name] = golden_weights(golden["formula"], name, shape);
        trainer.fill_weights([&](const ir::Parameter& p, int64_t instance) {
            const HuggingFace there(p, instance);
            const std::vector<double>& values = weights.at(there.name);
            return [there, &values](int64_t i) { return values.at(static_cast<size_t>(there.index(i))); };
        });
    }
    FormulaSource source;
    compile::Recipe recipe = plain();
    compile::Compiled compiled;
    runtime::Trainer trainer;
};

}  // namespace

nlohmann::json golden_case(const std::string& name) {
    std::ifstream file(std::string(LOCKSTEP_SOURCE_DIR) + "/tests/golden/" + name + ".json");
    return nlohmann::json::parse(file);
}

GoldenFigures golden_figures(const nlohmann::json& golden, const std::string& precision) {
    const nlohmann::json& f = golden[precision];
    return {f["losses"], f["grad_norms"], f["step1_param_grad_norms"], f["final_param_norms"], f["final_loss"]};
}

compile::Recipe golden_recipe(const nlohmann::json& golden, const Settings& settings) {
    const nlohmann::json &config = golden["config"], &optimizer = golden["optimizer"];
    compile::Recipe recipe = plain();
    const auto set = [&](const std::string& key, const nlohmann::json& value) { recipe.set(key, text(value)); };
    // Ours, Hugging Face's (Llama's words, as make_golden.py writes them); a family that lacks one has no such key either.
    const std::pair<const char*, const char*> shape[] = {{"dim", "hidden_size"},
                                                         {"n_layers", "num_hidden_layers"},
                                                         {"n_heads", "num_attention_heads"},
                                                         {"n_kv_heads", "num_key_value_heads"},
                                                         {"head_dim", "head_dim"},
                                                         {"ffn_dim", "intermediate_size"},
                                                         {"vocab_size", "vocab_size"},
                                                         {"norm_eps", "rms_norm_eps"},
                                                         {"rope_theta", "rope_theta"},
                                                         {"tie_embeddings", "tie_word_embeddings"},
                                                         {"qkv_bias", "qkv_bias"},
                                                         {"qk_norm", "qk_norm"},
                                                         {"sliding_window", "sliding_window"}};
    const bool gpt2 = config.value("model_type", "llama") == "gpt2";
    set("model.name", gpt2 ? "gpt2" : "llama3");
    for (const auto& [key, theirs] : shape) {
        if (!config.contains(theirs)) continue;
        const nlohmann::json& value = config[theirs];
        set(std::string("model.") + key, value.is_boolean() ? nlohmann::json(value.get<bool>() ? 1 : 0) : value);
    }
    if (gpt2) set("model.n_positions", config["max_position_embeddings"]);
    else set("model.rope_scaling_factor", 1.0);
    if (const nlohmann::json scaling = config.value("rope_scaling", nlohmann::json()); !scaling.is_null()) {
        set("model.rope_scaling_factor", scaling["factor"]);
        set("model.rope_low_freq_factor", scaling["low_freq_factor"]);
        set("model.rope_high_freq_factor", scaling["high_freq_factor"]);
        set("model.rope_original_positions", scaling["original_max_position_embeddings"]);
    }
    for (const char* key : {"lr", "beta1", "beta2", "eps", "weight_decay"}) set(std::string("optimizer.") + key, optimizer[key]);
    set("training.max_norm", optimizer["max_grad_norm"]);
    set("training.steps", golden["batch"]["steps"]);
    set("training.seq_len", golden["batch"]["seq_len"]);
    set("training.global_batch_size", golden["batch"]["sequences"]);
    set("lr_scheduler.warmup_steps", 0);
    set("lr_scheduler.decay_ratio", 0.0);  // a constant rate
    for (const auto& [key, value] : settings) recipe.set(key, value);
    return recipe;
}

GoldenFigures run_golden(const nlohmann::json& golden, Backend backend, const Settings& settings) {
    GoldenFigures out;
    Run run(golden, backend, settings);
    for (int s = 0; s < golden["batch"]["steps"].get<int>(); ++s) {
        const runtime::StepResult r = run.trainer.step();
        out.losses.push_back(r.loss);
        out.grad_norms.push_back(r.grad_norm);
    }
    out.final_param_norms = norms(by_their_names(run.compiled.programs[0], run.trainer.state(runtime::saved_as("{}"))));
    out.final_loss = run.trainer.step().loss;
    out.step1_param_grad_norms = norms(first_gradients(golden, backend, settings));
    return out;
}

GoldenFigures run_steps(const nlohmann::json& golden, const Settings& settings, int steps, const Watcher& watcher) {
    GoldenFigures out;
    Run run(golden, Backend::Cpu, settings);
    run.trainer.ranks().parallel([&](runtime::Executor& e) { e.set_watcher(watcher); });
    for (int s = 0; s < steps; ++s) {
        const runtime::StepResult r = run.trainer.step();
        out.losses.push_back(r.loss);
        out.grad_norms.push_back(r.grad_norm);
    }
    return out;
}

// With beta1 = 0 and no clipping the first moment is the gradient.
runtime::GlobalTensors first_gradients(const nlohmann::json& golden, Backend backend, const Settings& settings,
                                       const Watcher& watcher) {
    Settings plain = settings;
    plain.emplace_back("optimizer.beta1", "0.0");
    plain.emplace_back("training.max_norm", "0.0");
    Run run(golden, backend, plain);
    run.trainer.ranks().parallel([&](runtime::Executor& e) { e.set_watcher(watcher); });
    run.trainer.step();
    return by_their_names(run.compiled.programs[0], run.trainer.state(runtime::saved_as("exp_avg.{}")));
}

Worst compare(const GoldenFigures& want, const GoldenFigures& got) {
    Worst worst;
    const auto note = [&](double a, double b, const std::string& where) {
        const double relative = std::abs(a - b) / std::abs(a);
        if (!(relative <= worst.relative)) worst = {std::isnan(relative) ? INFINITY : relative, where};
    };
    for (size_t s = 0; s < want.losses.size(); ++s) {
        note(want.losses[s], got.losses.at(s), "loss of step " + std::to_string(s + 1));
        note(want.grad_norms[s], got.grad_norms.at(s), "gradient norm of step " + std::to_string(s + 1));
    }
    note(want.final_loss, got.final_loss, "final loss");
    for (const auto& [name, norm] : want.step1_param_grad_norms)
        note(norm, got.step1_param_grad_norms.at(name), "gradient of " + name);
    for (const auto& [name, norm] : want.final_param_norms) note(norm, got.final_param_norms.at(name), "norm of " + name);
    return worst;
}

}  // namespace lockstep::testing
