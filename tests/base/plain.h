// Numbers that tests hold were made in the type of the weights, without recompute, with stages cut by cost, and with optimizer
// states in the last checkpoint. The defaults are others (torchtitan's), so tests say it, here once.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>

#include "compile/recipe.h"

namespace lockstep::testing {

struct PlainKey {
    const char *section, *name, *value;  // as TOML has them
};
inline constexpr PlainKey kPlain[] = {
    {"training", "mixed_precision_param", "\"\""},
    {"activation_checkpoint", "mode", "\"none\""},
    {"parallelism", "pipeline_parallel_first_stage_less_layers", "-1"},
    {"parallelism", "pipeline_parallel_last_stage_less_layers", "-1"},
    {"checkpoint", "last_save_model_only", "false"},
    {"checkpoint", "export_dtype", "\"\""},
    {"runtime", "pin_threads", "false"},  // several tests share the processors
};

// Sets those of the keys that the recipe leaves open. LOCKSTEP_TEST_DEVICE=late: tests that run recipes of one process run them
// on that device.
inline compile::Recipe plain(compile::Recipe recipe = {}) {
    if (const char* device = std::getenv("LOCKSTEP_TEST_DEVICE"); device && !recipe.is_set("debug.device"))
        recipe.set("debug.device", device);
    for (const PlainKey& k : kPlain) {
        const std::string key = std::string(k.section) + "." + k.name;
        if (!recipe.is_set(key)) recipe.set(key, k.value);
    }
    return recipe;
}

// The same for a recipe as text: each key at the end of its section, or in a new one.
inline std::string plain(std::string toml) {
    for (const PlainKey& k : kPlain) {
        const std::string line = std::string(k.name) + " = " + k.value + "\n", header = std::string("[") + k.section + "]\n";
        const size_t section = toml.find(header);
        if (toml.find(std::string("\n") + k.name + " ") != std::string::npos && section != std::string::npos) continue;
        if (section == std::string::npos) toml += (toml.empty() || toml.back() == '\n' ? "" : "\n") + header + line;
        else toml.insert(section + header.size(), line);
    }
    return toml;
}

}  // namespace lockstep::testing
