#include "interop/other_systems.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace lockstep::interop {
namespace {

struct OtherSystem {
    const char* name;
    std::vector<const char*> keys;  // all of them are in its files
    const char* instead;            // what Lockstep reads of it; null: nothing of its own
};

const std::vector<OtherSystem>& yaml_systems() {
    static const char* const kMegatron =
        "the script or the arguments of the Megatron-LM run that it starts (its log prints them)";
    static const char* const kPrimus =
        "the arguments of the Megatron-LM run, or torchtitan's job file, that it starts (its log prints them)";
    static const char* const kFolder = "the config.json of the model that it writes for transformers";
    static const std::vector<OtherSystem> all = {
        {"nanotron", {"parallelism", "tokens", "pp"}, kFolder},
        {"nanotron", {"parallelism", "pp_engine"}, kFolder},
        {"GPT-NeoX", {"pipe-parallel-size"}, "its DeepSpeed configuration and the model's config.json for transformers"},
        {"GPT-NeoX",
         {"pipe_parallel_size", "num_layers"},
         "its DeepSpeed configuration and the model's config.json for transformers"},
        {"GPT-NeoX",
         {"model-parallel-size", "num-layers"},
         "its DeepSpeed configuration and the model's config.json for transformers"},
        {"Primus", {"work_group", "modules"}, kPrimus},
        {"Primus", {"modules", "pre_trainer"}, kPrimus},
        {"NeMo", {"exp_manager", "trainer"}, kMegatron},
        {"Megatron Bridge", {"model", "ddp", "rng"}, kMegatron},
        {"Megatron-LM's YAML form", {"language_model", "model_parallel"}, "the same arguments on a command line"},
        {"OLMo", {"d_model", "n_heads", "max_sequence_length"}, kFolder},
        {"OLMo", {"d_model", "n_heads", "mlp_ratio"}, kFolder},
        {"litgpt", {"out_dir", "train", "eval", "devices"}, kFolder},
        {"litgpt", {"model_name", "out_dir", "precision"}, kFolder},
        {"axolotl", {"base_model", "datasets"}, kFolder},
        {"LLaMA-Factory", {"model_name_or_path", "finetuning_type"}, kFolder},
        {"torchtune", {"_component_"}, kFolder},
        {"TRL or Transformers' Trainer", {"model_name_or_path", "per_device_train_batch_size"}, kFolder},
        {"llm-foundry", {"max_duration", "global_train_batch_size"}, kFolder},
        {"Accelerate", {"distributed_type", "num_processes"}, "the ds_config.json that it names"},
        {"lingua", {"dump_dir", "optim", "distributed"}, nullptr},
        {"MaxText", {"base_emb_dim"}, nullptr},
        {"Levanter", {"trainer", "optimizer", "mp"}, kFolder},
        {"verl", {"actor_rollout_ref"}, kFolder},
        {"Fairseq or metaseq", {"distributed_training", "optimization"}, nullptr},
        {"Cerebras Model Zoo", {"runconfig", "train_input"}, nullptr},
        {"Composer", {"fsdp_config", "max_duration"}, nullptr},
    };
    return all;
}

// All names that a colon follows, with and without quotes.
std::set<std::string> names_before_colons(const std::string& text) {
    std::set<std::string> out;
    const auto is_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.'; };
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        line.resize(std::min(line.find('#'), line.size()));
        for (size_t colon = line.find(':'); colon != std::string::npos; colon = line.find(':', colon + 1)) {
            size_t end = colon;
            while (end > 0 && std::string("\"' \t").find(line[end - 1]) != std::string::npos) --end;
            size_t begin = end;
            while (begin > 0 && is_name(line[begin - 1])) --begin;
            out.insert(line.substr(begin, end - begin));
        }
    }
    return out;
}

struct PythonSystem {
    const char *name, *holds, *instead;
};
constexpr PythonSystem kPython[] = {
    {"torchtitan's later form (since 2026)", "torchtitan",
     "the JSON that torchtitan prints with --debug.print_config, or writes with --debug.save_config_file"},
    {"Megatron Bridge", "megatron.bridge", "the arguments of the Megatron-LM run that it starts"},
    {"NeMo", "nemo", "the arguments of the Megatron-LM run that it starts"},
    {"OLMo-core", "olmo_core", "the config.json of the model that it writes for transformers"},
    {"InternLM", "micro_bsz", "the config.json of the model that it writes for transformers"},
};

[[noreturn]] void refuse_named(const std::string& path, const std::string& what, const std::string& instead) {
    throw UserError(
        "recipe.other_system", path,
        fmt::format("{}: is {}, which is not read. Read are a recipe (TOML; `lockstep recipe` lists its keys), a job of "
                    "torchtitan v0.2 (TOML, or JSON of --print_config), a script or the arguments of Megatron-LM, "
                    "ds_config.json, and config.json of transformers{}",
                    path, what, instead.empty() ? "" : ". Here: give " + instead));
}

}  // namespace

// Its first statement is one of Python's.
bool is_python(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (line.find_first_not_of(" \t\r") == std::string::npos || line.starts_with("#")) continue;
        const bool imports =
            line.starts_with("import ") || (line.starts_with("from ") && line.find(" import ") != std::string::npos);
        return imports || line.starts_with("class ") || (line.starts_with("def ") && line.find(':') != std::string::npos) ||
               line.starts_with("@dataclass") || (line.starts_with("\"\"\"") && text.find("\nimport ") != std::string::npos) ||
               (line.starts_with("\"\"\"") && text.find("\nfrom ") != std::string::npos);
    }
    return false;
}

bool is_neox(const std::string& text) {
    const std::set<std::string> names = names_before_colons(text);
    return names.contains("pipe-parallel-size") || names.contains("pipe_parallel_size") ||
           (names.contains("model-parallel-size") && names.contains("num-layers"));
}

// More lines are "name: value" than "name = value", and there is no [section].
bool is_yaml(const std::string& text) {
    if (text.starts_with("---") || text.starts_with("%YAML")) return true;
    int colons = 0, equals = 0;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const size_t begin = line.find_first_not_of(" \t\r");
        if (begin == std::string::npos || line[begin] == '#') continue;
        const size_t end = line.find_first_of(":=", begin);
        if (line[begin] == '[' && line.find(']') != std::string::npos) return false;
        if (end == std::string::npos) continue;
        const bool is_key = line.find_first_of("{}()", begin) > end;
        const bool ends = end + 1 >= line.size() || line[end + 1] == ' ' || line[end + 1] == '\r';
        colons += is_key && line[end] == ':' && ends;
        equals += line[end] == '=';
    }
    return colons > equals;
}

void refuse_other_system(const std::string& text, const std::string& path) {
    if (is_python(text) || path.ends_with(".py")) {
        for (const PythonSystem& p : kPython) {
            if (text.find(p.holds) != std::string::npos) refuse_named(path, fmt::format("Python, {}", p.name), p.instead);
        }
        refuse_named(path, "Python", "");
    }
    const std::set<std::string> names = names_before_colons(text);
    const char* kind = json_or_discarded<nlohmann::json>(text).is_object() ? "JSON" : "YAML";
    for (const OtherSystem& s : yaml_systems()) {
        const bool has_all = std::all_of(s.keys.begin(), s.keys.end(), [&](const char* k) { return names.contains(k); });
        if (has_all) refuse_named(path, fmt::format("a configuration of {} ({})", s.name, kind), s.instead ? s.instead : "");
    }
    refuse_named(path, kind, "");
}

}  // namespace lockstep::interop
