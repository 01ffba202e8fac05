// Every key of torchtitan v0.2.2's JobConfig is known, and has its default there, or says why not. torchtitan_keys.txt lists
// them.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "compile/recipe.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

std::map<std::string, std::string> theirs() {
    std::map<std::string, std::string> out;
    std::ifstream file(std::string(LOCKSTEP_SOURCE_DIR) + "/tests/compile/torchtitan_keys.txt");
    for (std::string line; std::getline(file, line);) {
        const size_t equals = line.find(" = ");
        out[line.substr(0, equals)] = line.substr(equals + 3);
    }
    return out;
}

// None says there what 0, -1 or nothing says here.
bool same(const std::string& theirs, const compile::Value& ours) {
    const std::string text = compile::text_of(ours);
    if (theirs == "None") return text == "0" || text == "-1.0" || text == "-1" || text == "\"\"" || text == "[]";
    if (std::holds_alternative<double>(ours)) return std::stod(theirs) == std::get<double>(ours);
    return theirs == text;
}

TEST(TorchtitanKeys, AreKnownWithTheirDefaults) {
    const auto keys = theirs();
    EXPECT_EQ(keys.size(), 149u);
    std::set<std::string> differing;
    for (const auto& [name, value] : keys) {
        const compile::RecipeKey* key = compile::find_key(name);
        ASSERT_TRUE(key) << name;
        const std::string why = compile::default_difference(name);
        if (!same(value, key->default_value)) {
            differing.insert(name);
            EXPECT_NE(why, "") << name << " = " << compile::text_of(key->default_value) << ", there " << value;
        } else if (name != "debug.seed") {  // None draws a seed there
            EXPECT_EQ(why, "") << name;
        }
    }
    EXPECT_EQ(differing, (std::set<std::string>{"checkpoint.last_save_model_only", "fault_tolerance.replica_id",
                                                "model.hf_assets_path", "training.dataset", "validation.dataset",
                                                "validation.local_batch_size", "validation.seq_len"}));
}

TEST(TorchtitanKeys, TheDefaultsThatMatterMost) {
    const compile::Recipe r;
    EXPECT_EQ(r.text("training.mixed_precision_param"), "bfloat16");
    EXPECT_EQ(r.text("activation_checkpoint.mode"), "selective");
    EXPECT_EQ(r.text("activation_checkpoint.selective_ac_option"), "2");
    EXPECT_EQ(r.integer("parallelism.pipeline_parallel_first_stage_less_layers"), 1);
    EXPECT_EQ(r.integer("parallelism.pipeline_parallel_last_stage_less_layers"), 1);
    EXPECT_EQ(r.text("checkpoint.export_dtype"), "float32");
}

// A run can be continued, unless its file was written for torchtitan, where the last checkpoint is the model alone.
TEST(TorchtitanKeys, TheLastCheckpointIsTheModelAloneInTheirFiles) {
    const auto is_model_only = [](const std::string& text) {
        const compile::Recipe r =
            text.starts_with('{') ? compile::Recipe::from_json(text, "f") : compile::Recipe::from_text(text, "f");
        const bool only = r.flag("checkpoint.last_save_model_only");
        EXPECT_EQ(compile::Recipe::from_text(r.toml(), "f").flag("checkpoint.last_save_model_only"), only) << text;
        return only;
    };
    const std::string theirs = "[training]\ndataset = \"c4\"\n";
    EXPECT_TRUE(is_model_only(theirs));
    EXPECT_TRUE(is_model_only("[profiling]\nenable_profiling = true\n"));
    EXPECT_TRUE(is_model_only("[compile]\nenable = false\n[model]\nname = \"llama3\"\nflavor = \"8B\"\n"));
    EXPECT_TRUE(is_model_only("{\"training\": {\"steps\": 3}}"));
    EXPECT_FALSE(is_model_only("{\"checkpoint\": {\"last_save_model_only\": false}}"));
    EXPECT_FALSE(is_model_only(theirs + "[checkpoint]\nlast_save_model_only = false\n"));
    for (const char* ours :
         {"[training]\nsteps = 3\n", "[training]\ndataset = \"synthetic\"\n[profiling]\nenable_profiling = true\n",
          "[training]\ndataset_path = \"d\"\n[compile]\nenable = true\n", "[training]\ndataset = \"c4\"\n[model]\ndim = 8\n",
          "[profiling]\nenable_profiling = true\n[partition]\npreset = \"zero3\"\n",
          "[profiling]\nenable_profiling = true\n[cluster]\nranks = 8\n"})
        EXPECT_FALSE(is_model_only(ours)) << ours;
    compile::Recipe flagged = compile::Recipe::from_text("[training]\nsteps = 3\n", "f");
    flagged.set("compile.enable", "true");
    EXPECT_FALSE(flagged.flag("checkpoint.last_save_model_only")) << "a flag makes no file torchtitan's";
    EXPECT_EQ(compile::Recipe::from_text(theirs, "f").where("checkpoint.last_save_model_only"), "f (torchtitan's default): ");
}

}  // namespace
}  // namespace lockstep::testing
