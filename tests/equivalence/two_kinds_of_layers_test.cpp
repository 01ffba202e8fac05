// A model with two kinds of layers: the first ones are a block of their own, the others go on counting. No model of this version
// is built so, so the layers of random ones are divided, and must train as before under the names that they had.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/sources.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/draw.h"

namespace lockstep::testing {
namespace {

constexpr const char* kFirst = "dense";

std::string key_of_first(const std::string& key) { return fmt::format("{}_{}", kFirst, key); }

std::string of_first(const ir::Tensor& t) {
    std::string out;
    for (const std::string_view param : ir::sources_of(t)) out += (out.empty() ? "" : "+") + key_of_first(std::string(param));
    return out;
}

ir::Routine as_first_layers(ir::Routine r) {
    r.name.replace(0, r.block.size(), kFirst);
    r.block = kFirst;
    for (ir::Tensor& t : r.tensors) {
        const ir::Port* port = t.port < 0 ? nullptr : &r.ports[static_cast<size_t>(t.port)];
        if (port && (port->kind == ir::PortKind::Params || port->kind == ir::PortKind::Gradients)) t.source = of_first(t);
    }
    return r;
}

// `first` layers before the others.
ir::Program divided(ir::Program p, int64_t first) {
    const auto layer = std::find_if(p.blocks.begin(), p.blocks.end(), [](const ir::Block& b) { return b.name == "layer"; });
    ir::Block dense = *layer;
    dense.name = kFirst, dense.count = first;
    layer->first = first, layer->count -= first;
    p.blocks.insert(layer, dense);
    std::vector<ir::Parameter> params;
    for (const ir::Parameter& x : p.params) {
        if (x.block != "layer") continue;
        params.push_back(x);
        params.back().block = kFirst, params.back().key = key_of_first(x.key);
    }
    p.params.insert(p.params.end(), params.begin(), params.end());
    std::vector<ir::Routine> routines;
    for (const ir::Routine& r : p.routines) {
        if (r.block == "layer") routines.push_back(as_first_layers(r));
        routines.push_back(r);
    }
    p.routines = routines;
    return p;
}

TEST(TwoKindsOfLayers, TrainUnderTheNumbersOfTheModel) {
    int runs = 0, in_pipelines = 0;
    for (uint64_t seed = 1; runs < 20; ++seed) {
        ASSERT_LT(seed, 400u);
        const auto drawn = draw(seed, Dtype::F64);
        if (!drawn) continue;
        const compile::Config config = compile::config_of(drawn->recipe);
        compile::CompileOptions options;
        options.catalog = kernels::reference_catalog();
        compile::Prefix prefix = compile::compile_prefix(config, options);
        const int64_t layers = prefix.program.block("layer")->count;
        if (layers < 2) continue;
        prefix.program = divided(std::move(prefix.program), 1 + static_cast<int64_t>(seed) % (layers - 1));
        SCOPED_TRACE(fmt::format("seed {}\n{}", seed, drawn->recipe.toml()));
        const auto result = compile::compile(prefix, config, options);
        if (compile::refusal_of(result)) continue;  // stages or budgets that name what the undivided model has
        const compile::Compiled compiled = compile::or_throw(result);
        ++runs;
        in_pipelines += compiled.programs.size() > 1;
        ASSERT_EQ(refusal(compiled), "");
        for (const ir::Program& p : compiled.programs) {
            const std::string text = ir::print(p);
            EXPECT_EQ(ir::print(ir::parse(text)), text);
        }
        constexpr int kSteps = 3;
        const Outcome one = run(one_rank(drawn->recipe), Backend::Reference, kSteps);
        std::string where;
        EXPECT_LT(difference(one, run(drawn->recipe, config, compiled, kSteps), &where), 1e-10) << where;
    }
    EXPECT_GE(in_pipelines, 3);
}

}  // namespace
}  // namespace lockstep::testing
