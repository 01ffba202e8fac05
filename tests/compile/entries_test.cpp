// A program holds the entries that are asked for, and only what they need.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "base/error.h"
#include "check/check.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

compile::Compiled compiled_for(const std::vector<ir::EntryKind>& entries, const Settings& settings) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.entries = entries;
    return compile::compile(small_recipe(settings), options);
}

std::string refusal_of(const compile::Compiled& c) {
    const auto refused = check::prove(c.of_ranks());
    return refused ? refused->reason + ": " + refused->message : "";
}

class Entries : public ::testing::TestWithParam<NamedSettings> {};
INSTANTIATE_TEST_SUITE_P(Sample, Entries, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

TEST_P(Entries, EvaluationAloneIsSoundAndHasNoStatesOfTraining) {
    const compile::Compiled c = compiled_for({ir::EntryKind::Eval}, GetParam().settings);
    EXPECT_EQ(refusal_of(c), "");
    ASSERT_EQ(c.programs[0].entries.size(), 1u);
    EXPECT_EQ(c.programs[0].entries[0].kind, ir::EntryKind::Eval);
    for (const ir::Buffer& b : c.programs[0].buffers) {
        EXPECT_NE(b.kind, ir::MemoryKind::Gradients) << b.name;
        EXPECT_NE(b.kind, ir::MemoryKind::Optimizer) << b.name;
    }
    for (const ir::Routine& r : c.programs[0].routines) {
        const bool reads =
            r.kind == ir::RoutineKind::Fetch || r.kind == ir::RoutineKind::Gather || r.kind == ir::RoutineKind::Free;
        EXPECT_TRUE(r.entry == ir::EntryKind::Eval || reads) << r.name;
    }
    EXPECT_LT(c.programs[0].arena_bytes[Place::Device],
              compiled_for({ir::EntryKind::Train}, GetParam().settings).programs[0].arena_bytes[Place::Device]);
}

TEST_P(Entries, GenerationIsSound) {
    Settings settings = GetParam().settings;
    settings.emplace_back("training.global_batch_size", "-1");
    settings.emplace_back("parallelism.pipeline_parallel_degree", "1");
    const compile::Compiled c = compiled_for({ir::EntryKind::Prefill, ir::EntryKind::Decode}, settings);
    EXPECT_EQ(refusal_of(c), "");
    ASSERT_EQ(c.programs[0].entries.size(), 2u);
    EXPECT_EQ(c.programs[0].routine("head.prefill"), nullptr);
    const ir::Routine& layer = *c.programs[0].routine("layer.decode");
    EXPECT_EQ(layer.dims[static_cast<size_t>(layer.dim("seq"))].size, 1);
    EXPECT_EQ(layer.dims[static_cast<size_t>(layer.dim("kv_seq"))].size, 8);
    for (const ir::Tensor& t : layer.tensors) {
        if (t.source != "k_all") continue;
        EXPECT_EQ(layer.ports[static_cast<size_t>(t.port)].name, "cache");
    }
    // Every call is the same in both entries but for the length of its sequences.
    EXPECT_EQ(ir::parse(ir::print(c.programs[0])), c.programs[0]);
}

TEST(Generation, IsOfOnePipelineRank) {
    try {
        compiled_for({ir::EntryKind::Prefill, ir::EntryKind::Decode}, {{"parallelism.pipeline_parallel_degree", "2"}});
        ADD_FAILURE() << "accepted";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "pipeline.generation");
        EXPECT_STREQ(e.what(),
                     "generation runs without a pipeline: set parallelism.pipeline_parallel_degree to 1, and use tensor "
                     "parallelism if the model does not fit");
    }
}

// Each damaged program must be refused for what is wrong with it.
TEST(Generation, CheckRefusesForeignOrUnfilledCaches) {
    const auto refusal_after = [](const std::function<void(ir::Program&)>& damage) {
        compile::Compiled c = compiled_for({ir::EntryKind::Prefill, ir::EntryKind::Decode}, {});
        damage(c.programs[0]);
        return refusal_of(c);
    };
    const auto cache_of = [](ir::Program& p, ir::Entry& e, int64_t instance) -> ir::Binding& {
        for (ir::Call& call : e.calls) {
            const int port = p.routines[static_cast<size_t>(call.routine)].port("cache");
            if (port >= 0 && call.instance == instance) return call.bindings[static_cast<size_t>(port)];
        }
        throw std::logic_error("no cache");
    };
    EXPECT_EQ(refusal_after([](ir::Program&) {}), "");
    for (size_t entry : {0u, 1u}) {  // layer 1 takes the cache of layer 0
        EXPECT_NE(refusal_after([&](ir::Program& p) {
                      cache_of(p, p.entries[entry], 1).buffer = cache_of(p, p.entries[entry], 0).buffer;
                  }).find("which holds another state"),
                  std::string::npos);
    }
    EXPECT_NE(refusal_after([&](ir::Program& p) {  // decode alone exchanges them
                  std::swap(cache_of(p, p.entries[1], 1).buffer, cache_of(p, p.entries[1], 0).buffer);
              })
                  .find("which holds another state"),
              std::string::npos);
    EXPECT_NE(refusal_after([](ir::Program& p) {
                  std::erase_if(p.routines[static_cast<size_t>(p.routine_index("layer.decode"))].ops,
                                [](const ir::Op& op) { return op.kind == "append"; });
              }).find("without having appended to it"),
              std::string::npos);
    EXPECT_NE(refusal_after([](ir::Program& p) {  // keys and values change places
                  ir::Routine& r = p.routines[static_cast<size_t>(p.routine_index("layer.decode"))];
                  const std::vector<ir::TensorId> cache = r.port_tensors(r.port("cache"));
                  std::swap(r.tensors[static_cast<size_t>(cache[0])].offset_bytes,
                            r.tensors[static_cast<size_t>(cache[1])].offset_bytes);
              })
                  .find("does not lie where layer.prefill has it"),
              std::string::npos);
    EXPECT_NE(refusal_after([&](ir::Program& p) {  // a cache on the bytes of another
                  p.buffers[static_cast<size_t>(cache_of(p, p.entries[0], 1).buffer)].offset_bytes =
                      p.buffers[static_cast<size_t>(cache_of(p, p.entries[0], 0).buffer)].offset_bytes;
              })
                  .find("both outlive a step"),
              std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
