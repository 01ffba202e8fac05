// The published numbers of parameters hold every dimension of a flavor.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "models/model.h"
#include "tests/base/plain.h"

namespace lockstep::testing {
namespace {

struct Published {
    const char *model, *flavor;
    int64_t parameters;
};
void PrintTo(const Published& p, std::ostream* stream) { *stream << p.model << " " << p.flavor; }

constexpr Published kPublished[] = {
    {"llama3", "8B", 8'030'261'248},         {"llama3", "70B", 70'553'706'496},       {"llama3", "405B", 405'853'388'800},
    {"llama3", "mistral-7B", 7'241'732'096}, {"llama3", "qwen2.5-0.5B", 494'032'768}, {"llama3", "qwen2.5-7B", 7'615'616'512},
    {"llama3", "qwen3-0.6B", 596'049'920},   {"gpt2", "124M", 124'439'808},           {"gpt2", "355M", 354'823'168},
    {"gpt2", "774M", 774'030'080},           {"gpt2", "1558M", 1'557'611'200},        {"qwen3", "0.6B", 596'049'920},
    {"qwen3", "1.7B", 1'720'574'976},        {"qwen3", "4B", 4'022'468'096},          {"qwen3", "8B", 8'190'735'360},
    {"qwen3", "14B", 14'768'307'200},        {"qwen3", "32B", 32'762'123'264},
};

int64_t parameters(const char* model, const std::string& flavor) {
    compile::Recipe recipe = plain();
    recipe.set("model.name", model);
    recipe.set("model.flavor", flavor);
    recipe.set("training.seq_len", "64");
    compile::CompileOptions options;
    options.stop_after = "build_blocks";
    const ir::Program program = compile::compile(recipe, options).programs[0];
    int64_t sum = 0;
    for (const ir::Parameter& p : program.params) {
        int64_t n = 1;
        for (const ir::Dim& d : p.dims) n *= d.valid;
        for (const ir::Block& b : program.blocks) sum += b.name == p.block ? n * b.count : 0;
    }
    return sum;
}

class FlavorsAsPublished : public ::testing::TestWithParam<Published> {};

TEST_P(FlavorsAsPublished, HaveThatManyParameters) {
    EXPECT_EQ(parameters(GetParam().model, GetParam().flavor), GetParam().parameters);
}

INSTANTIATE_TEST_SUITE_P(Models, FlavorsAsPublished, ::testing::ValuesIn(kPublished));

TEST(Flavors, EveryOneIsAsPublishedOrForTests) {
    for (const models::ModelSpec& m : models::all_models()) {
        for (const models::Flavor& f : m.flavors) {
            const bool known = std::any_of(std::begin(kPublished), std::end(kPublished),
                                           [&](const Published& p) { return m.name == p.model && f.name == p.flavor; });
            EXPECT_TRUE(known || f.name == "debugmodel") << m.name << " " << f.name;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
