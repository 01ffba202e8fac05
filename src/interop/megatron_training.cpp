// Batch, sequence, precision, optimizer, schedule of the learning rate, recompute and data of a Megatron-LM run.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "interop/megatron_job.h"

namespace lockstep::interop {
namespace {

void read_batch(MegatronJob& j) {
    j.map_integer({"seq-length", "encoder-seq-length"}, "training.seq_len", j.required({"seq-length", "encoder-seq-length"}));
    const std::vector<std::string> micro = {"micro-batch-size", "batch-size"};
    j.required(micro);
    j.map_integer(micro, "training.local_batch_size");
    j.map_integer(micro, "parallelism.pipeline_parallel_microbatch_size");
    if (j.args.has("global-batch-size")) j.required({"global-batch-size"});
    if (j.take({"global-batch-size"})) j.map_integer({"global-batch-size"}, "training.global_batch_size");
    else if (!j.reading.recipe.is_set("training.global_batch_size"))
        j.reading.assumed.push_back({"no --global-batch-size", "", "one microbatch on every data rank"});
    for (const char* name : {"rampup-batch-size", "step-batch-size-schedule"}) {
        if (const Argument* a = j.take({name})) j.unmapped(*a, "the recipe has the full batch from the first step");
    }
}

// DeepSpeed scales the loss as its own file says, and by its own defaults.
void read_deepspeed_loss_scale(MegatronJob& j) {
    j.reading.assume("no fp16.initial_scale_power: 16", "training.initial_loss_scale", 65536.0);
    j.reading.assume("no fp16.loss_scale_window: 1000", "training.loss_scale_window", int64_t{1000});
    j.reading.assume("no fp16.min_loss_scale: 1", "training.min_loss_scale", 1.0);
}

void read_float16(MegatronJob& j, const Argument& fp16) {
    j.map(fp16, "training.mixed_precision_param", std::string("float16"));
    const Argument* in_fp32 = j.args.find({"accumulate-allreduce-grads-in-fp32"});
    if (in_fp32) j.map(*in_fp32, "training.mixed_precision_reduce", std::string("float32"));
    else j.reading.assume("no --accumulate-allreduce-grads-in-fp32", "training.mixed_precision_reduce", std::string("float16"));
    if (j.deepspeed) return read_deepspeed_loss_scale(j);
    j.map_number({"loss-scale"}, "training.loss_scale");
    if (j.take({"loss-scale"})) return;
    j.map_number({"initial-loss-scale"}, "training.initial_loss_scale", 4294967296.0);
    j.map_number({"min-loss-scale"}, "training.min_loss_scale", 1.0);
    if (const Argument* a = j.take({"loss-scale-window"}))
        j.map(*a, "training.loss_scale_window", static_cast<int64_t>(std::clamp(j.args.number(*a), 0.0, 1e15)));
    else j.reading.assume("--loss-scale-window 1000", "training.loss_scale_window", int64_t{1000});
    if (const Argument* a = j.take({"hysteresis"})) j.unmapped(*a, "each overflow halves the loss scale");
}

void read_precision(MegatronJob& j) {
    const Argument *bf16 = j.take({"bf16"}), *fp16 = j.take({"fp16"});
    const Argument* in_fp32 = j.take({"accumulate-allreduce-grads-in-fp32"});
    const Argument* in_bf16 = j.take({"grad-reduce-in-bf16"});
    for (const Argument* a : {bf16, fp16, in_fp32, in_bf16}) {
        if (a) j.args.require_no_value(*a);
    }
    if (bf16 && fp16) return j.refuse(*fp16, fmt::format("contradicts {}: give one of them", bf16->text()));
    if (bf16) {
        j.map(*bf16, "training.mixed_precision_param", std::string("bfloat16"));
        if (in_bf16) {
            j.map(*in_bf16, "training.mixed_precision_reduce", std::string("bfloat16"));
            j.reading.unmapped.push_back({"gradients kept in bfloat16", in_bf16->where,
                                          "gradients add up in float32 here: 4 bytes of a parameter's gradient on a rank, where "
                                          "Megatron-LM has 2"});
        } else if (in_fp32) j.map(*in_fp32, "training.mixed_precision_reduce", std::string("float32"));
        else j.reading.assume("gradients in fp32, which --bf16 sets", "training.mixed_precision_reduce", std::string("float32"));
    } else if (fp16) {
        read_float16(j, *fp16);
    } else {
        j.reading.assume("neither --bf16 nor --fp16", "training.mixed_precision_param", std::string("float32"));
        if (in_fp32) j.no_effect(*in_fp32, "everything is float32");
    }
    if (const Argument* a = j.take({"fp32-residual-connection"})) {
        j.args.require_no_value(*a);
        j.map(*a, "training.fp32_residual_connection", true);
    }
    for (const char* name : {"loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis"}) {
        const bool was_taken = j.taken.contains(name);
        const Argument* a = j.take({name});
        const char* why = !fp16 ? "acts only with --fp16" : j.deepspeed ? "DeepSpeed's file decides" : "the loss scale is fixed";
        if (a && !was_taken) j.no_effect(*a, why);
    }
}

// --exp-avg-dtype and --exp-avg-sq-dtype: both moments are float32 or both bfloat16 here.
void read_moments(MegatronJob& j) {
    const Argument *mean = j.take({"exp-avg-dtype"}), *square = j.take({"exp-avg-sq-dtype"});
    const auto type_of = [&](const Argument* a) {
        return a ? j.args.word(*a, {"fp32", "fp16", "bf16", "fp8"}) : std::string("fp32");
    };
    const std::string of_mean = type_of(mean), of_square = type_of(square);
    for (const Argument* a : {mean, square}) {
        if (!a) continue;
        const std::string type = type_of(a);
        if (type == "fp32") j.no_effect(*a, "is off with this value");
        else if (type != "bf16") j.refuse(*a, "moments are float32 or bfloat16 here: say bf16 for both, or leave it out");
        else if (of_mean != of_square)
            j.refuse(*a,
                     fmt::format("both moments have one type here, and the other one is {}: say bf16 for both, or leave it out",
                                 a == mean ? of_square : of_mean));
        else j.map(*a, "optimizer.implementation", std::string("fused_opt_states_bf16"));
    }
}

void read_optimizer(MegatronJob& j) {
    const Argument* optimizer = j.take({"optimizer"});
    const std::string name = optimizer ? j.args.text(*optimizer) : "adam";
    const std::string here = name == "sgd" ? "SGD" : "AdamW";
    if (name != "adam" && name != "sgd")
        j.reading.questions.push_back({{"optimizer.name"},
                                       fmt::format("{}: {}: adam and sgd are known here: choose one of Lockstep's as "
                                                   "--optimizer.name (AdamW, Adam, SGD, Muon)",
                                                   optimizer->where, optimizer->text())});
    else if (optimizer) j.map(*optimizer, "optimizer.name", here);
    else j.reading.assume("--optimizer adam", "optimizer.name", here);
    if (name == "sgd") j.map_number({"sgd-momentum"}, "optimizer.momentum", 0.9);
    if (name == "sgd") j.reading.assume("SGD without Nesterov", "optimizer.nesterov", false);
    j.map_number({"lr"}, "optimizer.lr");
    if (!j.reading.recipe.is_set("optimizer.lr"))
        j.reading.assumed.push_back({"no --lr", "", "optimizer.lr is Lockstep's default; no plan depends on it"});
    j.map_number({"adam-beta1"}, "optimizer.beta1", 0.9);
    j.map_number({"adam-beta2"}, "optimizer.beta2", 0.999);
    j.map_number({"adam-eps"}, "optimizer.eps", 1e-8);
    j.map_number({"weight-decay"}, "optimizer.weight_decay", 0.01);
    read_moments(j);
    if (j.deepspeed) {
        if (const Argument* a = j.take({"clip-grad"})) j.no_effect(*a, "DeepSpeed clips only by gradient_clipping");
        j.reading.assume("no gradient_clipping", "training.max_norm", 0.0);
    } else {
        j.map_number({"clip-grad"}, "training.max_norm", 1.0);
    }
    j.map_integer({"seed"}, "debug.seed", 1234);
}

// A length of the run or of its schedule, in steps, whether it is given in steps, samples or tokens.
struct Length {
    const Argument* said = nullptr;
    int64_t steps = 0;
};

Length length(MegatronJob& j, const std::vector<std::string>& iters, const std::string& samples, const std::string& tokens) {
    const Argument *in_steps = j.take(iters), *in_samples = j.take({samples}),
                   *in_tokens = tokens.empty() ? nullptr : j.take({tokens});
    if (in_steps) return {in_steps, j.args.integer(*in_steps)};
    const double batch = static_cast<double>(std::max<int64_t>(j.integer({"global-batch-size"}, 1), 1));
    const double seq = static_cast<double>(std::max<int64_t>(j.integer({"seq-length"}, 1), 1));
    const auto steps = [](double n) { return static_cast<int64_t>(std::clamp(n, 0.0, 1e15)); };
    if (in_samples) return {in_samples, steps(j.args.number(*in_samples) / batch)};
    if (in_tokens) return {in_tokens, steps(j.args.number(*in_tokens) / batch / seq)};
    return {};
}

void read_decay(MegatronJob& j, int64_t total) {
    const Argument* style = j.take({"lr-decay-style"});
    const std::string name = style ? j.args.text(*style) : "linear";
    const Argument* wsd_style = j.take({"lr-wsd-decay-style"});
    const Length wsd = length(j, {"lr-wsd-decay-iters"}, "lr-wsd-decay-samples", "");
    const std::string key = "lr_scheduler.decay_type";
    const auto ask = [&](const std::string& said) {
        j.reading.questions.push_back(
            {{key},
             fmt::format("{}: {}: no schedule here decays in this way: choose one as --{} (linear, sqrt, "
                         "cosine)",
                         style->where, said, key),
             true});
    };
    if (name != "WSD") {
        if (wsd_style) j.no_effect(*wsd_style, "acts only with --lr-decay-style WSD");
        if (wsd.said) j.no_effect(*wsd.said, "acts only with --lr-decay-style WSD");
    }
    if (name == "constant") return j.map(*style, "lr_scheduler.decay_ratio", 0.0);
    if (name == "linear" && !style) return j.reading.assume("--lr-decay-style linear", key, name);
    if (name == "linear" || name == "cosine") return j.map(*style, key, name);
    if (name != "WSD") return ask(style->text());
    const std::string shape = wsd_style ? j.args.text(*wsd_style) : "exponential";
    if (shape != "linear" && shape != "cosine" && shape != "minus_sqrt") return ask("--lr-wsd-decay-style " + shape);
    j.map(*wsd_style, key, shape == "minus_sqrt" ? std::string("sqrt") : shape);
    if (wsd.said && total > 0)
        j.map(*wsd.said, "lr_scheduler.decay_ratio",
              std::clamp(static_cast<double>(wsd.steps) / static_cast<double>(total), 0.0, 1.0));
}

void read_schedule(MegatronJob& j) {
    const Length train = length(j, {"train-iters"}, "train-samples", "train-tokens");
    if (train.said) j.map(*train.said, "training.steps", train.steps);
    else j.reading.assumed.push_back({"no --train-iters", "", "training.steps is Lockstep's default; no plan depends on it"});
    const Length decay = length(j, {"lr-decay-iters"}, "lr-decay-samples", "lr-decay-tokens");
    if (decay.said) j.map(*decay.said, "lr_scheduler.total_steps", decay.steps);
    const int64_t total = decay.said ? decay.steps : train.steps;
    const Length warmup = length(j, {"lr-warmup-iters", "warmup"}, "lr-warmup-samples", "lr-warmup-tokens");
    const std::string key = "lr_scheduler.warmup_steps";
    if (const Argument* a = j.take({"lr-warmup-fraction"})) {
        const double steps = std::clamp(j.args.number(*a), 0.0, 1.0) * static_cast<double>(total);
        j.map(*a, key, static_cast<int64_t>(std::llround(steps)));
    } else if (warmup.said) {
        j.map(*warmup.said, key, warmup.steps);
    } else {
        j.reading.assume("--lr-warmup-iters 0", key, int64_t{0});
    }
    read_decay(j, total);
    const Argument* least = j.take({"min-lr"});
    const double peak = j.reading.recipe.number("optimizer.lr");
    if (least && peak > 0) j.map(*least, "lr_scheduler.min_lr_factor", j.args.number(*least) / peak);
    else if (!least) j.reading.assume("--min-lr 0", "lr_scheduler.min_lr_factor", 0.0);
}

const char* const kRecompute = "activation_checkpoint.mode";

void ask_recompute(MegatronJob& j, const Argument& a, const std::string& why) {
    j.reading.questions.push_back(
        {{kRecompute},
         fmt::format("{}: {}: {}: choose what is computed again as --{} (none, full, selective, memory_budget)", a.where,
                     a.text(), why, kRecompute)});
}

// Each layer's forward is computed again, in chunks of several layers (uniform) or in the first layers of a stage (block).
void read_full_recompute(MegatronJob& j, const Argument& full, const Argument* method, const Argument* count) {
    const int64_t layers = count ? j.args.integer(*count) : 1;
    const std::string name = method ? j.args.text(*method) : "uniform";
    const std::string everything = "full", nothing = "none";
    if (name == "block") {
        const int64_t of_stage =
            j.required({"num-layers"}) / std::max<int64_t>(j.integer({"pipeline-model-parallel-size"}, 1), 1);
        if (count && layers > 0 && layers < of_stage)
            return ask_recompute(
                j, *count, fmt::format("no recipe computes the first {} of {} layers of each stage again", layers, of_stage));
        j.map(full, kRecompute, layers > 0 ? everything : nothing);
    } else {
        j.map(full, kRecompute, everything);
        if (count && layers > 1) j.unmapped(*count, "the input of each layer is kept, not that of every group of layers");
    }
    if (method) j.no_effect(*method, "follows from --recompute-granularity full");
    if (count && (name == "block" || layers <= 1)) j.no_effect(*count, "every layer is computed again");
}

void read_recompute(MegatronJob& j) {
    const Argument *granularity = j.take({"recompute-granularity"}), *selective = j.take({"recompute-activations"});
    const Argument *method = j.take({"recompute-method"}),
                   *count = j.take({"recompute-num-layers", "checkpoint-num-layers", "activations-checkpoint-num-layers"});
    const Argument* old_method = j.take({"activations-checkpoint-method"});
    const Argument *old = j.take({"checkpoint-activations"}), *modules = j.take({"recompute-modules"});
    for (const Argument* a : {selective, old}) {
        if (a) j.args.require_no_value(*a);
    }
    const std::string name = granularity ? j.args.text(*granularity) : selective ? "selective" : "";
    if (granularity && name != "full" && name != "selective") return j.refuse(*granularity, "must be full or selective");
    if (name == "full") return read_full_recompute(j, *granularity, method, count);
    if (old) return read_full_recompute(j, *old, method, count);
    if (old_method) return read_full_recompute(j, *old_method, old_method, count);
    for (const Argument* a : {method, count}) {
        if (a) j.no_effect(*a, "acts only with --recompute-granularity full");
    }
    if (name.empty()) {
        if (modules) j.no_effect(*modules, "acts only with --recompute-granularity selective");
        return j.reading.assume("no recompute", kRecompute, std::string("none"));
    }
    if (modules && modules->values != std::vector<std::string>{"core_attn"})
        return ask_recompute(j, *modules, "no recipe computes these modules again");
    const Argument& said = granularity ? *granularity : *selective;
    j.reading.map(said.text() + " (attention's probabilities, which are never saved here)", said.where, kRecompute,
                  std::string("none"));
    if (modules) j.no_effect(*modules, "attention's probabilities are never saved here");
}

void read_data(MegatronJob& j) {
    if (const Argument* a = j.take({"mock-data"})) {
        j.args.require_no_value(*a);
        j.map(*a, "training.dataset", std::string("synthetic"));
    } else {
        j.reading.notes.push_back(
            {"training.dataset_path", "the folder that `lockstep data prepare` makes of --data-path's .bin and .idx files"});
    }
    const Argument *masks = j.take({"reset-attention-mask"}), *positions = j.take({"reset-position-ids"});
    if (masks && positions) {
        j.map(*masks, "training.document_mask", true);
        j.no_effect(*positions, "follows from --reset-attention-mask");
    } else if (masks || positions) {
        j.refuse(masks ? *masks : *positions,
                 "attention within documents and positions that restart come together here: give both or none");
    }
}

}  // namespace

void read_megatron_training(MegatronJob& j) {
    read_batch(j);
    read_precision(j);
    read_optimizer(j);
    read_schedule(j);
    read_recompute(j);
    read_data(j);
}

}  // namespace lockstep::interop
