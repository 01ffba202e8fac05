#include "compile/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "compile/conversion.h"
#include "compile/types.h"
#include "models/hugging_face_config.h"
#include "ops/rule.h"

namespace lockstep::compile {
namespace {

void check_checkpoints(const Recipe& r, const Config& config) {
    const Config::Checkpoint& c = config.checkpoint;
    const auto require = [&](const char* key, bool asked, bool possible, const char* also) {
        if (asked && !possible)
            throw UserError(
                "recipe.checkpoint_off", "checkpoint.enable",
                fmt::format("{}{} is set, but checkpoints are off: set checkpoint.enable = true{}", r.where(key), key, also));
    };
    require("checkpoint.initial_load_path", !c.initial_load_path.empty(), c.enable, "");
    require("checkpoint.initial_load_in_hf", c.initial_load_in_hf, c.enable, "");
    require("checkpoint.load_step", c.load_step >= 0, c.enable, "");
    const char* const also = " and checkpoint.load_only = false";
    require("checkpoint.create_seed_checkpoint", c.create_seed_checkpoint, c.saves(), also);
    require("checkpoint.last_save_in_hf", c.last_save_in_hf, c.saves(), also);
    if (c.initial_load_in_hf && !c.initial_load_model_only)
        throw UserError("recipe.initial_load_in_hf", "checkpoint.initial_load_model_only",
                        "checkpoint.initial_load_in_hf = true, but checkpoint.initial_load_model_only = false: a folder of "
                        "transformers holds only weights; leave initial_load_model_only at true");
    if (!c.last_save_in_hf) return;
    if (r.is_set("checkpoint.last_save_model_only") && !c.last_save_model_only)
        throw UserError(
            "recipe.last_save_in_hf", "checkpoint.last_save_model_only",
            "checkpoint.last_save_in_hf = true, but checkpoint.last_save_model_only = false: a folder of transformers "
            "has no place for optimizer states; set last_save_model_only = true, or last_save_in_hf = false and use "
            "`lockstep convert` on the checkpoint");
    models::to_hugging_face({config.model.name, r.model_shape(), config.training.seq_len});
}

void check_loss_scale(const Config& c) {
    const double first = c.training.initial_loss_scale, least = c.training.min_loss_scale;
    if (first < least)
        throw UserError(
            "recipe.loss_scale", "training.initial_loss_scale",
            fmt::format("{}training.initial_loss_scale = {} is below training.min_loss_scale = {}: raise the first or "
                        "lower the second",
                        c.where("training.initial_loss_scale"), first, least));
    const bool is_scaled = types_of(c).loss_scaling.has_value();
    if (c.training.mixed_precision_reduce == Dtype::F16 && !is_scaled)
        throw UserError("recipe.loss_scale", "training.mixed_precision_reduce",
                        fmt::format("{}training.mixed_precision_reduce = \"float16\", but the loss is not scaled, so that small "
                                    "gradients vanish: set training.mixed_precision_param = \"float16\" or training.loss_scale, "
                                    "or leave it at \"float32\"",
                                    c.where("training.mixed_precision_reduce")));
}

// Moments in bfloat16 are those of AdamW and Adam.
void check_moments(const Config& c) {
    const passes::OptimizerName name = c.optimizer.name;
    const bool has_two = name == passes::OptimizerName::AdamW || name == passes::OptimizerName::Adam;
    if (has_two || c.optimizer.implementation != OptimizerImplementation::FusedOptStatesBf16) return;
    throw UserError(
        "recipe.opt_states_bf16", "optimizer.implementation",
        fmt::format("{}optimizer.implementation = \"fused_opt_states_bf16\" is for AdamW and Adam, whose exp_avg and "
                    "exp_avg_sq it keeps in bfloat16; {} keeps {}: leave it out, or say optimizer.name = \"AdamW\"",
                    c.where("optimizer.implementation"), word_of(name),
                    name == passes::OptimizerName::SGD && c.optimizer.momentum == 0 ? "no moments" : "a momentum buffer"));
}

void check_mixture(const Recipe& r, const Config::Training& t) {
    const size_t folders = t.dataset_path.size(), weights = t.dataset_weights.size();
    if (weights != 0 && weights != folders)
        throw UserError("recipe.dataset_weights", "training.dataset_weights",
                        fmt::format("{}training.dataset_weights = {}, but training.dataset_path = {}: give one number for each "
                                    "folder, in the same order, or leave the weights out",
                                    r.where("training.dataset_weights"), text_of(t.dataset_weights), text_of(t.dataset_path)));
}

// Validation runs the program of training, so its batches have the same shape.
void check_validation(const Config& c) {
    const auto require_same = [&](const char* key, int64_t asked, const char* of_training, int64_t given) {
        if (c.validation.enable && asked != -1 && asked != given)
            throw UserError("recipe.validation_shape", key,
                            fmt::format("{} = {}, but {} = {}: batches of validation have the shape of those of training; leave "
                                        "{} out",
                                        key, asked, of_training, given, key));
    };
    require_same("validation.local_batch_size", c.validation.local_batch_size, "training.local_batch_size",
                 c.training.local_batch_size);
    require_same("validation.seq_len", c.validation.seq_len, "training.seq_len", c.training.seq_len);
}

void check_processes(const Recipe& r, const Config::Cluster& c) {
    const int64_t of_host = c.ranks_per_host, of_process = c.ranks_per_process;
    if (of_host % of_process != 0)
        throw UserError("recipe.divides", "cluster.ranks_per_process",
                        fmt::format("{}cluster.ranks_per_process = {}: must divide cluster.ranks_per_host = {}",
                                    r.where("cluster.ranks_per_process"), of_process, of_host));
}

void check_kernels(const Recipe& r, const Config::Runtime& c) {
    std::vector<std::string_view> known;
    for (const ops::OpRule& rule : ops::all_rules()) {
        if (rule.expand) known.push_back(rule.name);
    }
    for (const std::string& op : c.disabled_kernels.names) {
        if (std::find(known.begin(), known.end(), op) == known.end())
            throw UserError(
                "recipe.disabled_kernels", "runtime.disabled_kernels",
                fmt::format("{}runtime.disabled_kernels = \"{}\": {} is no op that is made of parts; these are: {}",
                            r.where("runtime.disabled_kernels"), r.text("runtime.disabled_kernels"), op, fmt::join(known, ", ")));
    }
}

void check_order(const Recipe& r, const Config::Runtime& c) {
    if (!c.deterministic && r.flag("debug.deterministic"))
        throw UserError("recipe.deterministic", "runtime.deterministic",
                        fmt::format("{}runtime.deterministic = false, and {}debug.deterministic = true: leave one of them out",
                                    r.where("runtime.deterministic"), r.where("debug.deterministic")));
}

struct LrLengths {
    int64_t total = 0, warmup = 0, decay = 0;  // as the keys say
};

LrLengths lr_lengths(const Config& c) {
    LrLengths l;
    l.total = c.lr_scheduler.total_steps > 0 ? c.lr_scheduler.total_steps : c.training.steps;
    l.warmup = c.lr_scheduler.warmup_steps;
    const double ratio = c.lr_scheduler.decay_ratio;
    l.decay = ratio < 0 ? std::max<int64_t>(l.total - l.warmup, 0)
                        : static_cast<int64_t>(std::llround(static_cast<double>(l.total) * ratio));
    return l;
}

}  // namespace

LrPhases lr_phases(const Config& config) {
    const LrLengths l = lr_lengths(config);
    const int64_t warmup = std::min(l.warmup, l.total), decay = std::min(l.decay, l.total - warmup);
    return {warmup, l.total + 1 - warmup - decay, decay};
}

void require_consistent(const Recipe& recipe, const Config& config) {
    check_converters(config);
    recipe.require_available();
    recipe.model_shape();  // the model and its flavor are known
    if (config.training.dataset == Dataset::Synthetic && config.validation.enable)
        throw UserError("recipe.no_heldout", "validation.enable",
                        "validation.enable = true: synthetic data has no held-out split; use prepared data or switch it off");
    if (config.activation_checkpoint.mode == RecomputeMode::Budget && config.activation_checkpoint.budget_bytes == 0)
        throw UserError("recipe.budget_bytes", "activation_checkpoint.budget_bytes",
                        "activation_checkpoint.mode = \"budget\" needs activation_checkpoint.budget_bytes, the bytes that a "
                        "rank's arena may have");
    check_loss_scale(config);
    check_moments(config);
    check_checkpoints(recipe, config);
    check_mixture(recipe, config.training);
    check_validation(config);
    check_processes(recipe, config.cluster);
    check_kernels(recipe, config.runtime);
    check_order(recipe, config.runtime);
    if (const auto objection = objection_to_types(config)) throw *objection;
}

std::vector<std::string> warnings(const Recipe& recipe) {
    const Config config = values_of(recipe);
    std::vector<std::string> out;
    const LrLengths asked = lr_lengths(config);
    const LrPhases got = lr_phases(config);
    if (asked.warmup > got.warmup)
        out.push_back(
            fmt::format("lr_scheduler.warmup_steps = {} is more than the {} steps of the schedule: warm-up takes {} steps",
                        asked.warmup, asked.total, got.warmup));
    if (asked.decay > got.decay)
        out.push_back(
            fmt::format("lr_scheduler.decay_ratio = {} asks for {} steps of decay, and warm-up leaves {} of {}: decay "
                        "takes {} steps",
                        config.lr_scheduler.decay_ratio, asked.decay, got.decay, asked.total, got.decay));
    const Config::Parallelism& parallelism = config.parallelism;
    if (parallelism.enable_async_tensor_parallel && (parallelism.tensor_parallel_degree == 1 || !parallelism.sequence_parallel))
        out.push_back(
            fmt::format("parallelism.enable_async_tensor_parallel does nothing, as {}",
                        parallelism.tensor_parallel_degree == 1
                            ? "parallelism.tensor_parallel_degree = 1"
                            : "parallelism.sequence_parallel = false: it cuts all-gathers and reduce-scatters, and there "
                              "are none"));
    const Config::Parallelism usual;
    const std::pair<const char*, bool> of_context[] = {
        {"load_balancer", parallelism.context_parallel_load_balancer != usual.context_parallel_load_balancer},
        {"rotate_method", parallelism.context_parallel_rotate_method != usual.context_parallel_rotate_method},
        {"head_degree", parallelism.context_parallel_head_degree != usual.context_parallel_head_degree}};
    for (const auto& [key, is_changed] : of_context) {
        if (is_changed && parallelism.context_parallel_degree == 1)
            out.push_back(
                fmt::format("parallelism.context_parallel_{} does nothing, as parallelism.context_parallel_degree = 1", key));
    }
    if (config.metrics.log_float8 && !config.float8())
        out.push_back("metrics.log_float8 does nothing, as model.converters converts no linear layer");
    for (const char* key : {"quantize.scale_sequences", "quantize.scale_context_blocks"}) {
        const std::optional<Float8> float8 = config.float8();
        if (float8 && !has_token_groups(float8->recipe) && recipe.integer(key) != 0)
            out.push_back(fmt::format("{} does nothing, as only tensorwise and rowwise have scales for groups of tokens", key));
    }
    const OptimizerImplementation implementation = config.optimizer.implementation;
    if (implementation == OptimizerImplementation::FusedOptStatesBf16 && config.training.dtype == Dtype::BF16)
        out.push_back(
            "optimizer.implementation = fused_opt_states_bf16 does nothing, as training.dtype = bfloat16 keeps moments in "
            "bfloat16, and no master weights");
    else if (implementation == OptimizerImplementation::ForLoop || implementation == OptimizerImplementation::Foreach)
        out.push_back(
            fmt::format("optimizer.implementation = {} does nothing, as the update is always fused", word_of(implementation)));
    const double scale = config.training.loss_scale;
    const bool is_dynamic = scale == 0 && config.training.mixed_precision_param == Dtype::F16;
    for (const char* key : {"training.initial_loss_scale", "training.min_loss_scale", "training.loss_scale_window"}) {
        if (!recipe.is_set(key) || is_dynamic) continue;
        const std::string why = scale == 0 ? "training.mixed_precision_param is not \"float16\""
                                           : fmt::format("training.loss_scale = {} is fixed", scale);
        out.push_back(fmt::format("{} does nothing, as {}", key, why));
    }
    const std::string& dtype = config.checkpoint.export_dtype;
    const bool whole = !config.checkpoint.last_save_model_only && !config.checkpoint.last_save_in_hf;
    if (whole && recipe.is_set("checkpoint.export_dtype") && !dtype.empty() && dtype != recipe.text("training.dtype"))
        out.push_back(
            fmt::format("checkpoint.export_dtype = {} does nothing, as the last checkpoint is a whole one: "
                        "checkpoint.last_save_model_only = false",
                        dtype));
    return out;
}

}  // namespace lockstep::compile
