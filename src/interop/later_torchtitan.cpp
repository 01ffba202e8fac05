#include "interop/later_torchtitan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace lockstep::interop {
namespace {

using Json = nlohmann::json;

// Keys that have another name here.
constexpr std::pair<const char*, const char*> kRenamedInTitan[] = {
    {"training.max_context_length", "training.seq_len"},
    {"parallelism.enable_sequence_parallel", "parallelism.sequence_parallel"},
    {"compile.enable_async_tensor_parallel", "parallelism.enable_async_tensor_parallel"},
    {"hf_assets_path", "model.hf_assets_path"},
    {"dump_folder", "job.dump_folder"},
    {"validator.enable", "validation.enable"},
    {"validator.freq", "validation.freq"},
    {"validator.steps", "validation.steps"},
};

// What the program needs no word about.
constexpr const char* kNoEffectInTitan[] = {"compile.",
                                            "profiler.",
                                            "tokenizer.",
                                            "dataloader.",
                                            "metrics.",
                                            "comm.",
                                            "override.",
                                            "loss.",
                                            "validator.",
                                            "debug.",
                                            "training.gc_",
                                            "training.disable_cuda_graphs",
                                            "parallelism.spmd_backend",
                                            "parallelism.enable_fsdp_symm_mem",
                                            "checkpoint.",
                                            "optimizer.optimizer_factory_kwargs_by_name",
                                            "parallelism.context_parallel_",
                                            "activation_checkpoint.",
                                            "experimental."};

class LaterTitan {
public:
    LaterTitan(const Json& json, const std::string& path, Reading& reading) : json_(json), path_(path), r_(reading) {}

    void read() {
        read_model();
        for (const auto& [section, value] : json_.items()) {
            if (section == "model_spec") continue;
            if (section == "optimizer") read_optimizer(value);
            else if (section == "activation_checkpoint") read_recompute(value);
            else if (section == "model_converters") read_converters(value);
            else if (value.is_object()) read_section(section, value);
            else read_one(section, value);
        }
        read_batch();
        assume_no_converters();
    }

private:
    static std::string said(const std::string& key, const Json& value) {
        constexpr size_t kMost = 40;
        const std::string text = json_text(value);
        return fmt::format("{} = {}", key, text.size() > kMost ? text.substr(0, kMost) + " ..." : text);
    }
    [[noreturn]] void wrong(const std::string& key, const Json& value, const char* what) const {
        throw UserError("recipe.later_torchtitan", key, fmt::format("{}: {}: must be {}", path_, said(key, value), what));
    }
    int64_t whole(const std::string& key, const Json& value) const {
        if (!value.is_number_integer() || (value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX))
            wrong(key, value, "a whole number");
        return value.get<int64_t>();
    }

    void read_model() {
        const Json& spec = json_.at("model_spec");
        if (!spec.is_object() || !spec.contains("name") || !spec.at("name").is_string() || !spec.contains("flavor") ||
            !spec.at("flavor").is_string())
            wrong("model_spec", spec, "an object with a name and a flavor");
        r_.map(said("model_spec.name", spec.at("name")), path_, "model.name", spec.at("name").get<std::string>());
        r_.map(said("model_spec.flavor", spec.at("flavor")), path_, "model.flavor", spec.at("flavor").get<std::string>());
        if (!spec.contains("model")) return;
        if (json_text(spec.at("model")).find("precompute_float8_dynamic_scale_for_fsdp") != std::string::npos)
            return r_.left_out.push_back({"model_spec.model", path_,
                                          "has layers in float8, and does not say in which recipe: give --model.converters "
                                          "float8 and --quantize.linear.float8.recipe_name"});
        r_.no_effect.push_back({"model_spec.model", path_, "the layers of the flavor, which model.flavor names"});
    }

    // Since May 2026 layers are converted where Python makes the model.
    void assume_no_converters() {
        if (!json_.contains("model_converters") && r_.left_out.empty())
            r_.assume("quantization=None of model_registry, which the JSON leaves out", "model.converters",
                      std::vector<std::string>{});
    }
    // Those of January to April 2026: a list of objects. The fields of an object say which converter it is.
    void read_converters(const Json& value) {
        const std::string key = "model_converters.converters";
        if (value.is_null()) return;
        if (!value.is_object()) wrong("model_converters", value, "an object");
        const Json list = value.contains("converters") ? value.at("converters") : Json::array();
        if (!list.is_array()) wrong(key, list, "a list");
        for (size_t i = 0; i < list.size(); ++i) read_converter(fmt::format("{}[{}]", key, i), list[i]);
    }
    void read_converter(const std::string& key, const Json& converter) {
        const auto leave_out = [&](const char* why) { r_.left_out.push_back({said(key, converter), path_, why}); };
        if (!converter.is_object()) return leave_out("a converter that is not known here");
        const auto text = [&](const char* name) {
            return converter.contains(name) && converter.at(name).is_string() ? converter.at(name).get<std::string>() : "";
        };
        const std::string recipe = text("recipe_name");
        if (converter.contains("fqns")) {
            if (converter.at("fqns").empty() || converter.at("fqns") == "")
                return r_.no_effect.push_back({said(key, converter), path_, "names no modules"});
            return leave_out(
                "converts products of experts, or only the modules that it names; model.converters converts all "
                "linear layers but those of filter_fqns");
        }
        if (!converter.contains("filter_fqns")) return leave_out("a converter that is not known here");
        const bool is_mx = recipe.starts_with("mx") || converter.contains("mxfp8_dim1_cast_kernel_choice");
        const std::string family = is_mx ? "quantize.linear.mx" : "quantize.linear.float8";
        const compile::RecipeKey* names = compile::find_key(family + ".recipe_name");
        if (recipe.starts_with("mxfp4") || !names->allowed.objection(recipe).empty())
            return leave_out("no converter here has this recipe_name");
        r_.map(said(key, converter), path_, "model.converters", std::vector<std::string>{family});
        for (const auto& [name, v] : converter.items()) {
            if (name == "enable_fsdp_float8_all_gather" && recipe.starts_with("rowwise"))
                r_.no_effect.push_back({said(key + "." + name, v), path_, "acts only with tensorwise"});
            else read_as(family + "." + name, key + "." + name, v);
        }
    }

    void read_section(const std::string& section, const Json& value) {
        for (const auto& [name, v] : value.items()) {
            const std::string key = section + "." + name;
            if (section == "training" && name.starts_with("num_tokens_per_")) continue;
            if (key == "parallelism.num_pp_microbatches") continue;
            read_one(key, v);
        }
    }
    void read_one(const std::string& key, const Json& value) {
        const auto* renamed = std::find_if(std::begin(kRenamedInTitan), std::end(kRenamedInTitan),
                                           [&](const auto& row) { return key == row.first; });
        read_as(renamed == std::end(kRenamedInTitan) ? key : renamed->second, key, value);
    }
    void read_as(const std::string& here, const std::string& key, const Json& value) {
        const compile::RecipeKey* known = compile::find_key(here);
        if (known && value.is_null()) return;
        if (known && known->status == compile::KeyStatus::Acts && put(key, here, value, known->default_value)) return;
        const auto begins = [&](const char* p) { return key.starts_with(p); };
        const bool is_off = value.is_null() || value == false || value == "" || (value.is_array() && value.empty());
        if (known || is_off || std::any_of(std::begin(kNoEffectInTitan), std::end(kNoEffectInTitan), begins))
            return r_.no_effect.push_back({said(key, value), path_, known ? known->help : "is off, or says nothing of the step"});
        r_.unmapped.push_back({said(key, value), path_, "a key that is not known here"});
    }
    static bool is_list_of_strings(const Json& value) {
        return value.is_array() && !value.empty() &&
               std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); });
    }
    // False: the value has another type than the key.
    bool put(const std::string& key, const std::string& here, const Json& value, const compile::Value& type) {
        const std::string text = said(key, value);
        if (std::holds_alternative<bool>(type) && value.is_boolean()) r_.map(text, path_, here, value.get<bool>());
        else if (std::holds_alternative<int64_t>(type) && value.is_number_integer()) r_.map(text, path_, here, whole(key, value));
        else if (std::holds_alternative<double>(type) && value.is_number()) r_.map(text, path_, here, value.get<double>());
        else if (std::holds_alternative<std::string>(type) && value.is_string())
            r_.map(text, path_, here, value.get<std::string>());
        else if (std::holds_alternative<std::vector<std::string>>(type) && is_list_of_strings(value))
            r_.map(text, path_, here, value.get<std::vector<std::string>>());
        else return false;
        return true;
    }

    void read_optimizer(const Json& value) {
        if (!value.is_object()) wrong("optimizer", value, "an object");
        if (!value.contains("param_groups")) return read_section("optimizer", value);
        const Json& groups = value.at("param_groups");
        if (!groups.is_array() || groups.empty() || !groups.back().is_object()) return;
        const Json& group = groups.back();  // the last pattern is that of all others
        const std::string key = "optimizer.param_groups";
        if (value.contains("implementation")) read_one("optimizer.implementation", value.at("implementation"));
        for (const char* name : {"optimizer_name", "name"}) {
            if (group.contains(name) && group.at(name).is_string())
                r_.map(said(key + "." + name, group.at(name)), path_, "optimizer.name",
                       group.at(name) == "DistMuon" ? std::string("Muon") : group.at(name).get<std::string>());
        }
        const Json kwargs = group.contains("optimizer_kwargs") ? group.at("optimizer_kwargs") : Json::object();
        for (const auto& [name, v] : kwargs.items()) {
            const std::string full = key + "." + name;
            if (name == "betas" && v.is_array() && v.size() == 2 && v[0].is_number() && v[1].is_number()) {
                r_.map(said(full, v), path_, "optimizer.beta1", v[0].get<double>());
                r_.map(said(full, v), path_, "optimizer.beta2", v[1].get<double>());
            } else if ((name == "lr" || name == "eps" || name == "weight_decay") && v.is_number()) {
                r_.map(said(full, v), path_, "optimizer." + name, v.get<double>());
            } else {
                r_.no_effect.push_back({said(full, v), path_, "the update is always fused"});
            }
        }
        if (groups.size() > 1)
            r_.unmapped.push_back({fmt::format("{} groups of parameters", groups.size()), path_,
                                   "matrices and embeddings decay, norms and biases do not; one learning rate for all"});
    }

    // The JSON has no name of the policy: its fields tell.
    void read_recompute(const Json& value) {
        const std::string key = "activation_checkpoint", mode = "activation_checkpoint.mode";
        if (value.is_null()) return r_.map(said(key, value), path_, mode, std::string("none"));
        if (!value.is_object()) wrong(key, value, "an object");
        if (value.contains("mode")) return read_section(key, value);
        if (value.contains("memory_budget") && value.at("memory_budget").is_number()) {
            r_.map(key, path_, mode, std::string("memory_budget"));
            return r_.map(said(key + ".memory_budget", value.at("memory_budget")), path_, key + ".memory_budget",
                          value.at("memory_budget").get<double>());
        }
        if (value.contains("force_recompute_mm_shapes_by_fqns") ||
            value.contains("per_op_sac_force_recompute_mm_shapes_by_fqns")) {
            r_.map(key + " (selective: the operators whose results are saved)", path_, mode, std::string("selective"));
            return r_.map(key + " (selective)", path_, "activation_checkpoint.selective_ac_option", std::string("op"));
        }
        r_.map(key + " (full)", path_, mode, std::string("full"));
    }

    void read_batch() {
        const Json training =
            json_.contains("training") && json_.at("training").is_object() ? json_.at("training") : Json::object();
        const char *micro = "num_tokens_per_microbatch_per_dp_rank", *step = "num_tokens_per_train_step";
        if (!training.contains(micro)) return;
        const int64_t seq = r_.recipe.integer("training.seq_len");
        const Json parallelism =
            json_.contains("parallelism") && json_.at("parallelism").is_object() ? json_.at("parallelism") : Json::object();
        const bool pipelined = r_.recipe.integer("parallelism.pipeline_parallel_degree") > 1;
        const int64_t parts =
            pipelined && parallelism.contains("num_pp_microbatches")
                ? std::clamp<int64_t>(whole("parallelism.num_pp_microbatches", parallelism.at("num_pp_microbatches")), 1, 1 << 20)
                : 1;
        const int64_t tokens = whole(micro, training.at(micro));
        if (tokens < seq || tokens % seq != 0)
            throw UserError(
                "recipe.later_torchtitan", "training." + std::string(micro),
                fmt::format("{}: training.{}: must be a multiple of training.max_context_length = {}: here a microbatch has "
                            "whole sequences",
                            path_, said(micro, training.at(micro)), seq));
        const std::string said_micro = said("training." + std::string(micro), training.at(micro));
        r_.map(said_micro, path_, "training.local_batch_size", std::min<int64_t>(tokens / seq, INT64_MAX / parts) * parts);
        if (pipelined) r_.map(said_micro, path_, "parallelism.pipeline_parallel_microbatch_size", tokens / seq);
        if (!training.contains(step) || training.at(step) == -1) return;
        const int64_t all = whole(step, training.at(step));
        if (all < seq || all % seq != 0)
            wrong("training." + std::string(step), training.at(step), "a multiple of training.max_context_length");
        r_.map(said("training." + std::string(step), training.at(step)), path_, "training.global_batch_size", all / seq);
    }

    const Json& json_;
    const std::string& path_;
    Reading& r_;
};

}  // namespace

bool is_later_torchtitan(const nlohmann::json& json) { return json.is_object() && json.contains("model_spec"); }

Reading read_later_torchtitan(const nlohmann::json& json, const std::string& path) {
    Reading r;
    r.kind = Reading::Kind::Torchtitan;
    LaterTitan(json, path, r).read();
    return r;
}

}  // namespace lockstep::interop
