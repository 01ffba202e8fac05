#include "interop/deepspeed.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/nearest.h"
#include "interop/hjson.h"

namespace lockstep::interop {
namespace {

using Json = nlohmann::json;

// Sections that change nothing that a recipe says.
constexpr std::pair<const char*, const char*> kNoEffect[] = {
    {"steps_per_print", "logging"},
    {"wall_clock_breakdown", "logging"},
    {"memory_breakdown", "logging"},
    {"dump_state", "logging"},
    {"tensorboard", "logging"},
    {"wandb", "logging"},
    {"comet", "logging"},
    {"csv_monitor", "logging"},
    {"comms_logger", "logging"},
    {"flops_profiler", "profiling: see `lockstep plan`"},
    {"checkpoint", "checkpoints: see the keys of [checkpoint]"},
    {"data_types", "gradients add up in float32"},
    {"prescale_gradients", "the loss is normalized before backward"},
    {"gradient_predivide_factor", "the loss is normalized before backward"},
    {"disable_allgather", "how weights are gathered follows from the partition"},
    {"sparse_gradients", "gradients of embeddings are dense"},
    {"zero_allow_untested_optimizer", "every optimizer may be partitioned"},
    {"zero_force_ds_cpu_optimizer", "acts only with offload"},
    {"aio", "acts only with offload"},
    {"autotuning", "see `lockstep plan`"},
    {"activation_checkpointing", "says how DeepSpeed stores inputs of layers; which are computed again is the model's"},
    {"nebula", "checkpoints"},
    {"compile", "the whole step is always compiled"},
    {"seq_parallel_communication_data_type", "acts only with sequence parallelism of DeepSpeed"},
    {"graph_harvesting", "the whole step is always compiled"},
    {"use_data_before_expert_parallel_", "there are no experts"},
    {"train_steps", "the number of steps is training.steps"},
};

// Sections that ask for another computation if they are on.
constexpr std::pair<const char*, const char*> kRefused[] = {
    {"amp", "NVIDIA Apex: use bf16 or fp16"},
    {"sparse_attention", "attention here is dense"},
    {"compression_training", "weights here are not compressed"},
    {"quantize_training", "weights here are not quantized"},
    {"progressive_layer_drop", "every layer runs in every step"},
    {"curriculum_learning", "every step has the same sequences"},
    {"data_efficiency", "every step has the same sequences"},
    {"eigenvalue", "it belongs to quantization"},
    {"elasticity", "the batch is one number: give train_batch_size"},
    {"hybrid_engine", "it belongs to reinforcement learning"},
    {"moe", "there are no experts"},
};

class Config {
public:
    Config(const Json& json, const std::string& origin, Reading& reading, Refusals& refusals)
        : json_(json), origin_(origin), r_(reading), refusals_(refusals) {}

    // Returns the microbatches of a step on a data rank; 0: they are not said.
    int64_t read() {
        for (const auto& [key, value] : json_.items()) read_key(key, value);
        require_whole_ranks();
        return accumulated_;
    }

private:
    static std::string said(const std::string& key, const Json& value) {
        constexpr size_t kMost = 40;
        const std::string text = json_text(value);
        return fmt::format("{} = {}", key, text.size() > kMost ? text.substr(0, kMost) + " ..." : text);
    }
    void no_effect(const std::string& key, const Json& value, const std::string& why) {
        r_.no_effect.push_back({said(key, value), origin_, why});
    }
    void unmapped(const std::string& key, const Json& value, const std::string& why) {
        r_.unmapped.push_back({said(key, value), origin_, why});
    }
    void refuse(const std::string& key, const Json& value, const std::string& why) {
        refusals_.add(said(key, value), origin_, why);
    }
    void map(const std::string& key, const Json& value, const std::string& to, const compile::Value& as) {
        r_.map(said(key, value), origin_, to, as);
    }
    [[noreturn]] void wrong(const std::string& key, const Json& value, const std::string& what) const {
        throw UserError("recipe.deepspeed_config", key, fmt::format("{}: {}: must be {}", origin_, said(key, value), what));
    }

    // "auto": the program that calls DeepSpeed fills it in. Where a plan depends on the value, the user is asked for it.
    bool is_auto(const std::string& key, const Json& value) {
        if (value != "auto") return false;
        unmapped(key, value, "the program that calls DeepSpeed sets it");
        constexpr std::tuple<const char*, const char*, const char*> asks[] = {
            {"train_micro_batch_size_per_gpu", "training.local_batch_size", "4"},
            {"bf16.enabled", "training.mixed_precision_param", "bfloat16"},
            {"fp16.enabled", "training.mixed_precision_param", "float16"},
            {"zero_optimization.stage", "partition.preset", "zero3"}};
        for (const auto& [name, to, example] : asks) {
            if (key == name)
                r_.questions.push_back(
                    {{to},
                     fmt::format("{}: {}: the program that calls DeepSpeed sets it: give it as a flag, such as "
                                 "--{} {}",
                                 origin_, said(key, value), to, example)});
        }
        return true;
    }
    int64_t integer(const std::string& key, const Json& value) const {
        const bool whole = value.is_number_float() && value.get<double>() == std::floor(value.get<double>()) &&
                           std::abs(value.get<double>()) < 1e15;
        if (whole) return static_cast<int64_t>(value.get<double>());
        if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
            wrong(key, value, "a whole number");
        return value.get<int64_t>();
    }
    double number(const std::string& key, const Json& value) const {
        if (!value.is_number()) wrong(key, value, "a number");
        return value.get<double>();
    }
    std::string text(const std::string& key, const Json& value) const {
        if (!value.is_string()) wrong(key, value, "text");
        return value.get<std::string>();
    }
    const Json& section(const std::string& key, const Json& value) const {
        if (!value.is_object()) wrong(key, value, "an object");
        return value;
    }
    // "fp16": {"enabled": true}
    bool is_on(const std::string& key, const Json& value) {
        if (value.is_boolean()) return value.get<bool>();
        const Json& s = section(key, value);
        if (!s.contains("enabled")) return false;
        const Json& enabled = s.at("enabled");
        if (is_auto(key + ".enabled", enabled)) return false;
        if (!enabled.is_boolean()) wrong(key + ".enabled", enabled, "true or false");
        return enabled.get<bool>();
    }

    // Of a section that changes the training. Its switch may be nested: {"layer_reduction": {"enabled": true}}.
    static bool is_enabled(const std::string& key, const Json& value) {
        if (!value.is_object()) return !value.is_null() && value != false;
        if (const auto enabled = value.find("enabled"); enabled != value.end()) return *enabled == true;
        if (key == "sparse_attention") return !value.empty();  // it has no switch
        return std::any_of(value.begin(), value.end(), [](const Json& v) { return v.is_object() && is_enabled("", v); });
    }

    void read_key(const std::string& key, const Json& value) {
        const auto in = [&](const auto& list) {
            return std::find_if(std::begin(list), std::end(list), [&](const auto& row) { return row.first == key; });
        };
        if (const auto* row = in(kNoEffect); row != std::end(kNoEffect)) return no_effect(key, value, row->second);
        if (const auto* row = in(kRefused); row != std::end(kRefused)) {
            return is_enabled(key, value) ? refuse(key, value, row->second) : no_effect(key, value, "is off");
        }
        for (const Row& row : rows()) {
            if (row.key == key) return is_auto(key, value) ? void() : (this->*row.read)(key, value);
        }
        std::vector<std::string> names;
        for (const Row& row : rows()) names.push_back(row.key);
        for (const auto& row : kNoEffect) names.emplace_back(row.first);
        for (const auto& row : kRefused) names.emplace_back(row.first);
        const std::string close = nearest_if_close(key, names);
        throw UserError(
            "recipe.deepspeed_config", key,
            fmt::format("{}: {} is a key that is not known here, so that what it changes is not known; take it out if it "
                        "changes neither the batch nor the layout{}",
                        origin_, key, close.empty() ? "" : "; the nearest is " + close));
    }

    void micro_batch(const std::string& key, const Json& value) {
        map(key, value, "training.local_batch_size", integer(key, value));
        map(key, value, "parallelism.pipeline_parallel_microbatch_size", integer(key, value));
    }
    void batch(const std::string& key, const Json& value) {
        map(key, value, "training.global_batch_size", integer(key, value));
        if (json_.contains("train_micro_batch_size_per_gpu")) return;
        r_.questions.push_back({{"training.local_batch_size"},
                                fmt::format("{}: no train_micro_batch_size_per_gpu: DeepSpeed makes it of the batch and the data "
                                            "ranks: give --training.local_batch_size N",
                                            origin_)});
    }
    // train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data ranks.
    void require_whole_ranks() const {
        const auto number_of = [&](const char* key) {
            return json_.contains(key) && json_.at(key).is_number() ? integer(key, json_.at(key)) : int64_t{0};
        };
        const int64_t batch = number_of("train_batch_size"), micro = number_of("train_micro_batch_size_per_gpu");
        constexpr int64_t kMost = 1 << 30;
        if (batch < 1 || (micro < 1 && accumulated_ < 1)) return;
        const int64_t of_a_rank = std::clamp<int64_t>(micro, 1, kMost) * std::clamp<int64_t>(accumulated_, 1, kMost);
        if (batch % of_a_rank == 0) return;
        throw UserError("recipe.contradiction", "train_batch_size",
                        fmt::format("{}: train_batch_size = {} is train_micro_batch_size_per_gpu x gradient_accumulation_steps x "
                                    "data ranks, and no number of ranks makes it of {} x {}: change one of the three",
                                    origin_, batch, std::max<int64_t>(micro, 1), std::max<int64_t>(accumulated_, 1)));
    }
    void accumulation(const std::string& key, const Json& value) {
        accumulated_ = integer(key, value);
        if (integer(key, value) == 1 && !json_.contains("train_batch_size"))
            return no_effect(key, value, "one microbatch on every data rank");
        if (json_.contains("train_batch_size")) return no_effect(key, value, "follows from train_batch_size and the ranks");
        unmapped(key, value, "the batch of a step is training.global_batch_size");
        r_.questions.push_back(
            {{"training.global_batch_size"},
             fmt::format("{}: {} microbatches are added up, and the sequences of a step depend on the data ranks: "
                         "give train_batch_size, or --training.global_batch_size N",
                         origin_, integer(key, value))});
    }
    void clipping(const std::string& key, const Json& value) { map(key, value, "training.max_norm", number(key, value)); }

    void off(const std::string& key, const Json& value) {
        if (!value.is_object() || !value.contains("enabled") || value.at("enabled") != "auto") no_effect(key, value, "is off");
    }
    void bf16(const std::string& key, const Json& value) {
        if (!is_on(key, value)) return off(key, value);
        map(key + ".enabled", true, "training.mixed_precision_param", std::string("bfloat16"));
        for (const auto& [name, v] : value.items()) {
            if (is_narrow_state(key + "." + name, name, v) || name == "enabled") continue;
            no_effect(key + "." + name, v, "gradients add up in float32");
        }
    }
    // "bf16_master_weights_and_grads", "bf16_optimizer_states": states that DeepSpeed then keeps in 16 bits.
    bool is_narrow_state(const std::string& key, const std::string& name, const Json& value) {
        const bool is_one = name.ends_with("master_weights_and_grads") || name.ends_with("optimizer_states");
        if (is_one && value == true) unmapped(key, value, "these stay in float32 here, and need twice the memory");
        else if (is_one) no_effect(key, value, "is off");
        return is_one;
    }
    void fp16(const std::string& key, const Json& value) {
        if (!is_on(key, value)) return off(key, value);
        map(key + ".enabled", true, "training.mixed_precision_param", std::string("float16"));
        for (const auto& [name, v] : value.items()) read_fp16(key + "." + name, name, v);
    }
    void read_fp16(const std::string& key, const std::string& name, const Json& value) {
        if (name == "enabled" || is_auto(key, value) || is_narrow_state(key, name, value)) return;
        if (name == "loss_scale") map(key, value, "training.loss_scale", number(key, value));
        else if (name == "initial_scale_power")
            map(key, value, "training.initial_loss_scale", std::exp2(std::clamp(number(key, value), -50.0, 99.0)));
        else if (name == "loss_scale_window") map(key, value, "training.loss_scale_window", integer(key, value));
        else if (name == "min_loss_scale") map(key, value, "training.min_loss_scale", number(key, value));
        else unmapped(key, value, "each overflow halves the loss scale; gradients add up in float32");
    }

    void zero(const std::string& key, const Json& value) {
        for (const auto& [name, v] : section(key, value).items()) read_zero(key + "." + name, name, v);
    }
    void read_zero(const std::string& key, const std::string& name, const Json& value) {
        if (is_auto(key, value)) return;
        if (name == "stage") {
            const int64_t stage = integer(key, value);
            if (stage < 0 || stage > 3) wrong(key, value, "0, 1, 2 or 3");
            return map(key, value, "partition.preset", stage == 0 ? std::string("none") : fmt::format("zero{}", stage));
        }
        if (name == "offload_optimizer" || name == "offload_param") {
            const Json device = value.is_object() && value.contains("device") ? value.at("device") : Json("none");
            if (device == "none" || value.is_null()) return no_effect(key, value, "is off");
            return refuse(key, value, "offload to another memory is not in this version of Lockstep: leave it out");
        }
        if ((name == "cpu_offload" || name == "cpu_offload_params") && value != false)
            return refuse(key, value, "offload to another memory is not in this version of Lockstep: leave it out");
        if (name == "zero_hpz_partition_size" && value != 1)
            return map(key, value, "partition.secondary_weights", std::to_string(integer(key, value)));
        if (name == "zero_quantized_weights" && value != false)
            return map(key, value, "partition.quantized_weights", std::string("int8"));
        if (name == "zero_quantized_gradients" && value != false)
            return map(key, value, "partition.quantized_gradients", std::string("int4"));
        if (name.starts_with("zero_quantized") && value != false)
            return refuse(key, value, "weights that are not trained are not quantized here: leave it out");
        if (name == "mics_shard_size" && value != -1) {
            for (const char* state : {"partition.weights", "partition.gradients", "partition.optimizer"})
                map(key, value, state, std::to_string(integer(key, value)));
            return;
        }
        no_effect(key, value, "how weights are gathered and gradients reduced follows from the program");
    }

    void reduce_type(const std::string& key, const Json& value) {
        if (value.is_null() || value == "none") return no_effect(key, value, "is off");
        const std::string name = text(key, value);
        const std::string here = name == "fp16"                      ? "float16"
                                 : name == "bf16" || name == "bfp16" ? "bfloat16"
                                 : name == "fp32"                    ? "float32"
                                                                     : "";
        if (here.empty()) wrong(key, value, "fp16, bf16 or fp32");
        map(key, value, "training.mixed_precision_reduce", here);
    }

    void optimizer(const std::string& key, const Json& value) {
        const Json& s = section(key, value);
        const std::string type = s.contains("type") ? text(key + ".type", s.at("type")) : "";
        const Json params = s.contains("params") ? section(key + ".params", s.at("params")) : Json::object();
        const bool decoupled = params.value("adam_w_mode", Json(true)) != false;
        const std::string name = lower(type);
        const std::string here = name == "adamw" || (name == "adam" && decoupled) ? "AdamW"
                                 : name == "adam"                                 ? "Adam"
                                 : name == "sgd"                                  ? "SGD"
                                 : name == "muon"                                 ? "Muon"
                                                                                  : "";
        if (here.empty())
            r_.questions.push_back(
                {{"optimizer.name"},
                 fmt::format("{}: {} is no optimizer of Lockstep's: choose one as --optimizer.name (AdamW, Adam, "
                             "SGD, Muon)",
                             origin_, said(key + ".type", type))});
        else map(key + ".type", type, "optimizer.name", here);
        for (const auto& [param, v] : params.items()) read_optimizer(key + ".params." + param, param, v);
    }
    void read_optimizer(const std::string& key, const std::string& name, const Json& value) {
        if (is_auto(key, value)) return;
        const Json::json_pointer of_schedule("/scheduler/params/warmup_max_lr");
        if (name == "lr" && json_.contains(of_schedule) && json_.at(of_schedule).is_number())
            return no_effect(key, value, "the schedule's warmup_max_lr is the rate");
        if (name == "adam_w_mode") return no_effect(key, value, "is a part of optimizer.name");
        for (const char* same : {"lr", "eps", "weight_decay", "momentum"}) {
            if (name == same) return map(key, value, fmt::format("optimizer.{}", same), number(key, value));
        }
        if (name != "betas") return no_effect(key, value, "the update is always fused");
        if (!value.is_array() || value.size() != 2) wrong(key, value, "two numbers");
        map(key, value, "optimizer.beta1", number(key, value.at(0)));
        map(key, value, "optimizer.beta2", number(key, value.at(1)));
    }

    void scheduler(const std::string& key, const Json& value) {
        const Json& s = section(key, value);
        const std::string type = s.contains("type") ? text(key + ".type", s.at("type")) : "";
        if (type == "WarmupLR") map(key + ".type", type, "lr_scheduler.decay_ratio", 0.0);
        else if (type == "WarmupDecayLR") map(key + ".type", type, "lr_scheduler.decay_type", std::string("linear"));
        else if (type == "WarmupCosineLR") map(key + ".type", type, "lr_scheduler.decay_type", std::string("cosine"));
        else
            r_.questions.push_back({{"lr_scheduler.decay_type"},
                                    fmt::format("{}: {}: no schedule here is the same: choose one as --lr_scheduler.decay_type "
                                                "(linear, sqrt, cosine)",
                                                origin_, said(key + ".type", type)),
                                    true});
        const Json params = s.contains("params") ? section(key + ".params", s.at("params")) : Json::object();
        for (const auto& [name, v] : params.items()) {
            const std::string full = key + ".params." + name;
            if (!is_auto(full, v)) read_scheduler(full, name, v);
        }
        if (type.starts_with("Warmup")) assume_scheduler(type, params);
    }
    void read_scheduler(const std::string& full, const std::string& name, const Json& v) {
        if (name == "warmup_num_steps") map(full, v, "lr_scheduler.warmup_steps", integer(full, v));
        else if (name == "total_num_steps") map(full, v, "lr_scheduler.total_steps", integer(full, v));
        else if (name == "warmup_max_lr") map(full, v, "optimizer.lr", number(full, v));
        else if (name == "cos_min_ratio") map(full, v, "lr_scheduler.min_lr_factor", number(full, v));
        else if (name == "warmup_type" && v == "linear") no_effect(full, v, "the warm-up is linear here, too");
        else if (name == "warmup_type") unmapped(full, v, kLinear);
        else if ((name == "warmup_min_lr" || name == "warmup_min_ratio") && v == 0)
            no_effect(full, v, "the warm-up begins at 0 here, too");
        else if (name == "warmup_min_lr" || name == "warmup_min_ratio") unmapped(full, v, "the warm-up begins at 0");
        else if (name == "last_batch_iteration") no_effect(full, v, "a run goes on from its checkpoint");
        else unmapped(full, v, "a parameter that is not known here");
    }
    // What DeepSpeed's schedules do where the file says nothing.
    void assume_scheduler(const std::string& type, const Json& params) {
        const std::string before = "scheduler.params.";
        if (!params.contains("warmup_type"))
            r_.unmapped.push_back({before + "warmup_type = \"log\", DeepSpeed's default", "", kLinear});
        constexpr int64_t kSteps = 1000;
        if (!params.contains("warmup_num_steps"))
            r_.assume(before + "warmup_num_steps 1000", "lr_scheduler.warmup_steps", kSteps);
        constexpr double kLeast = 0.0001;
        if (type == "WarmupCosineLR" && !params.contains("cos_min_ratio"))
            r_.assume(before + "cos_min_ratio 0.0001", "lr_scheduler.min_lr_factor", kLeast);
        if (type == "WarmupDecayLR") r_.assume("a decay to 0", "lr_scheduler.min_lr_factor", 0.0);
    }
    static constexpr const char* kLinear = "the warm-up is linear here; DeepSpeed's logarithmic one rises faster at first";

    void pipeline(const std::string& key, const Json& value) {
        for (const auto& [name, v] : section(key, value).items()) {
            const std::string full = key + "." + name;
            if (is_auto(full, v)) continue;
            if (name == "stages") map(full, v, "parallelism.pipeline_parallel_degree", integer(full, v));
            else no_effect(full, v, "stages are cut by [parallelism]");
        }
    }
    void tensor_parallel(const std::string& key, const Json& value) {
        for (const auto& [name, v] : section(key, value).items()) {
            const std::string full = key + "." + name;
            if (name == "autotp_size" || name == "tp_size") map(full, v, "parallelism.tensor_parallel_degree", integer(full, v));
            else no_effect(full, v, "how layers are cut follows from the model");
        }
    }
    void sequence_parallel(const std::string& key, const Json& value) {
        if (integer(key, value) == 1) return no_effect(key, value, "is off");
        map(key, value, "parallelism.context_parallel_degree", integer(key, value));
        map(key, value, "parallelism.context_parallel_rotate_method", std::string("ulysses"));
    }

    static std::string lower(std::string text) {
        for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        return text;
    }

    struct Row {
        std::string key;
        void (Config::*read)(const std::string& key, const Json& value);
    };
    static const std::vector<Row>& rows() {
        static const std::vector<Row> all = {{"train_micro_batch_size_per_gpu", &Config::micro_batch},
                                             {"train_batch_size", &Config::batch},
                                             {"gradient_accumulation_steps", &Config::accumulation},
                                             {"gradient_clipping", &Config::clipping},
                                             {"bf16", &Config::bf16},
                                             {"bfloat16", &Config::bf16},
                                             {"fp16", &Config::fp16},
                                             {"zero_optimization", &Config::zero},
                                             {"communication_data_type", &Config::reduce_type},
                                             {"optimizer", &Config::optimizer},
                                             {"scheduler", &Config::scheduler},
                                             {"pipeline", &Config::pipeline},
                                             {"tensor_parallel", &Config::tensor_parallel},
                                             {"sequence_parallel_size", &Config::sequence_parallel}};
        return all;
    }

    const Json& json_;
    const std::string& origin_;
    int64_t accumulated_ = 0;
    Reading& r_;
    Refusals& refusals_;
};

}  // namespace

bool is_deepspeed(const Json& json) {
    if (!json.is_object()) return false;
    constexpr const char* own[] = {"train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization",
                                   "gradient_accumulation_steps", "steps_per_print"};
    return std::any_of(std::begin(own), std::end(own), [&](const char* key) { return json.contains(key); });
}

int64_t read_deepspeed(const std::string& text, const std::string& origin, Reading& reading, Refusals& refusals,
                       const ReadOptions& options, const std::vector<std::string>& of_caller) {
    Json json;
    try {
        json = parse_hjson(text);
    } catch (const std::exception& e) {
        throw UserError("recipe.deepspeed_config", origin, fmt::format("{}: not JSON: {}", origin, json_reason(e)));
    }
    if (!json.is_object()) throw UserError("recipe.deepspeed_config", origin, fmt::format("{}: holds no JSON object", origin));
    for (const std::string& name : options.leave_out) {
        if (!json.contains(name)) continue;
        reading.left_out.push_back(
            {fmt::format("{} = {}", name, json_text(json.at(name))), origin, "is left out, as --leave-out asks"});
        json.erase(name);
    }
    for (const std::string& name : of_caller) {
        if (json.erase(name) > 0) reading.no_effect.push_back({name, origin, "the program that calls DeepSpeed brings its own"});
    }
    reading.accumulated = Config(json, origin, reading, refusals).read();
    return reading.accumulated;
}

namespace {

// The defaults of DeepSpeed's Adam and SGD, of what the section "optimizer" does not say.
void assume_deepspeed_optimizer(const std::string& text, Reading& r) {
    const Json json = parse_hjson(text);
    if (!json.contains("optimizer")) {
        r.assumed.push_back(
            {"no optimizer", "", "the program that calls DeepSpeed has one; here it is Lockstep's default, AdamW"});
        return;
    }
    const Json optimizer = json.at("optimizer");
    const Json params = optimizer.is_object() && optimizer.contains("params") ? optimizer.at("params") : Json::object();
    const auto assume = [&](const char* said, const char* key, double value) {
        if (!params.contains(said)) r.assume(fmt::format("optimizer.params.{} {}", said, value), key, value);
    };
    assume("lr", "optimizer.lr", 1e-3);
    const std::string name = r.recipe.text("optimizer.name");
    if (name == "SGD") assume("momentum", "optimizer.momentum", 0.0);
    if (name == "SGD") assume("weight_decay", "optimizer.weight_decay", 0.0);
    if (name != "AdamW" && name != "Adam") return;
    constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kTorchDecay = 0.01;
    if (!params.contains("betas")) {
        r.assume("optimizer.params.betas [0.9, 0.999]", "optimizer.beta1", kBeta1);
        r.assume("optimizer.params.betas [0.9, 0.999]", "optimizer.beta2", kBeta2);
    }
    assume("eps", "optimizer.eps", kEps);
    const bool is_torch = params.contains("torch_adam") && params.at("torch_adam") == true;
    assume("weight_decay", "optimizer.weight_decay", is_torch && name == "AdamW" ? kTorchDecay : 0.0);
}

}  // namespace

Reading read_deepspeed_alone(const std::string& text, const std::string& path, const ReadOptions& options) {
    Reading r;
    r.kind = Reading::Kind::DeepSpeed;
    Refusals refusals;
    read_deepspeed(text, path, r, refusals, options);
    refusals.require_none(path);
    if (!r.asks("training.mixed_precision_param"))
        r.assume("neither bf16 nor fp16", "training.mixed_precision_param", std::string("float32"));
    if (!r.asks("partition.preset")) r.assume("no zero_optimization", "partition.preset", std::string("none"));
    const std::string narrow = r.recipe.text("training.mixed_precision_param");
    if (narrow != "float32" && !r.asks("training.mixed_precision_param"))
        r.assume("no communication_data_type", "training.mixed_precision_reduce", narrow);
    r.assume("no gradient_clipping", "training.max_norm", 0.0);
    assume_deepspeed_optimizer(text, r);
    r.assumed.push_back({"sequence length, recompute, parallel degrees", "",
                         "those of Lockstep's defaults: training.seq_len, activation_checkpoint.mode, [parallelism]"});
    r.questions.push_back(
        {{"model.flavor", "model.dim"},
         fmt::format("{}: is a configuration of DeepSpeed, which says nothing of the model: give --model.name and "
                     "--model.flavor (`lockstep recipe model.flavor`), or --model.dim, --model.n_layers, "
                     "--model.n_heads and --model.vocab_size; or give the script whose --deepspeed_config it is",
                     path)});
    r.notes.push_back({"training.dataset_path", "the folder that `lockstep data prepare` makes of your text"});
    return r;
}

}  // namespace lockstep::interop
