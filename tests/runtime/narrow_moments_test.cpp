// Moments in bfloat16 in whole trainings: for which elements they are drawn, that no layout changes them, and checkpoints.
// optimizer_test.cpp holds each step to the formula.
#include <gtest/gtest.h>

#include <cmath>

#include "base/bfloat16.h"
#include "base/random_rounding.h"
#include "checkpoint/safetensors.h"
#include "kernels/rank_draws.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"
#include "tests/base/plain.h"
#include "tests/base/scratch_folder.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe narrow_recipe(const Settings& more, bool gpt2 = false) {
    compile::Recipe r = plain(compile::Recipe::from_text(
        std::string("[model]\n") + (gpt2 ? "name = \"gpt2\"\nn_positions = 8\n" : "n_kv_heads = 6\nrope_scaling_factor = 1.0\n") +
            "dim = 12\nn_layers = 2\nn_heads = 12\nhead_dim = 4\nffn_dim = 24\nvocab_size = 17\n"
            "[training]\nseq_len = 8\nlocal_batch_size = 1\nglobal_batch_size = 4\nsteps = 10\n"
            "[lr_scheduler]\nwarmup_steps = 0\nmin_lr_factor = 1.0\n[checkpoint]\nenable = true\nasync_mode = \"disabled\"\n"
            "[optimizer]\nimplementation = \"fused_opt_states_bf16\"\nbeta2 = 0.999\nlr = 3e-2\neps = 1e-5\n[debug]\nseed = 5\n",
        "test"));
    for (const auto& [key, value] : more) r.set(key, value);
    return r;
}

const std::vector<NamedSettings>& narrow_layouts() {
    const char *tp = "parallelism.tensor_parallel_degree", *pp = "parallelism.pipeline_parallel_degree",
               *shard = "parallelism.data_parallel_shard_degree", *preset = "partition.preset";
    static const std::vector<NamedSettings> all = {
        {"one", {}},
        {"ddp", {{shard, "2"}, {preset, "ddp"}}},
        {"zero1", {{shard, "2"}, {preset, "zero1"}}},
        {"zero2", {{shard, "2"}, {preset, "zero2"}}},
        {"zero3", {{shard, "4"}, {preset, "zero3"}}},
        {"hsdp", {{shard, "2"}, {"parallelism.data_parallel_replicate_degree", "2"}}},
        {"tp2", {{tp, "2"}}},
        {"tp3_zero3", {{tp, "3"}, {shard, "2"}, {"parallelism.sequence_parallel", "false"}}},
        {"tp4", {{tp, "4"}}},  // each rank has 3 of 6 key-value heads, and half of their queries
        {"pp2", {{pp, "2"}}},
        {"tp2_pp2_tied", {{tp, "2"}, {pp, "2"}, {"model.tie_embeddings", "1"}}},
        {"cp2", {{"parallelism.context_parallel_degree", "2"}}},
    };
    return all;
}

struct NarrowTraining {
    explicit NarrowTraining(const compile::Recipe& recipe, Backend backend)
        : r(recipe),
          compiled(compile_recipe(r, backend)),
          data(synthetic_data(r, compiled)),
          trainer(compile::config_of(r), compiled, data) {}
    runtime::GlobalTensors saved(const char* name) { return trainer.state(runtime::saved_as(name)); }
    void steps(int count) {
        for (int i = 0; i < count; ++i) trainer.step();
    }

    compile::Recipe r;
    compile::Compiled compiled;
    data::SyntheticSource data;
    runtime::Trainer trainer;
};

int64_t segment_of(const ir::Routine& r, const ir::Op& op) { return r.tensors[op.in[0]].dims[0]; }

// Of one op of a rank: it draws for each element of its segment that the rank has as for one of the whole parameter.
int64_t expect_draws(const ir::Program& p, const ir::Unit& unit, const ir::Routine& update, const ir::Op& op, int64_t rank) {
    const kernels::ElementDraws draws = kernels::rank_draws({p.mesh, update, op, rank, 1});
    const ir::Tensor& squares = update.tensors[op.out[2]];
    const ir::State& state = p.state_of(update.ports[squares.port]);
    EXPECT_EQ(squares.dtype, Dtype::BF16);
    const int64_t begin = squares.offset_bytes / bytes_of(squares.dtype), instance = p.instances(unit)[0];
    const auto& members = unit.segments[static_cast<size_t>(segment_of(update, op))].members;
    const uint32_t noise = rounding_noise(5, 2);
    int64_t elements = 0;
    runtime::for_each_run(p, state, instance, rank, [&](const runtime::Run& run) {
        if (std::none_of(members.begin(), members.end(), [&](const ir::Member& m) { return m.param == run.param->key; })) return;
        for (int64_t i = 0; i < run.count; ++i) {
            const kernels::ElementDraws::Row got =
                draws.row_at(run.local_begin - begin + i, noise, static_cast<uint64_t>(instance));
            const uint64_t row =
                rounding_row(noise, hash_name(run.param->name) >> 1, static_cast<uint64_t>(instance), run.global_begin + i);
            ASSERT_EQ(got.row, row) << run.param->key;
            ASSERT_EQ(got.index, run.global_begin + i) << run.param->key;
        }
        elements += run.count;
    });
    return elements;
}

class NarrowMomentLayouts : public ::testing::TestWithParam<NamedSettings> {};

// Against the one place that knows which elements of which parameter a rank has (runtime/parameters.h).
TEST_P(NarrowMomentLayouts, DrawForTheElementsThatRanksHave) {
    for (const bool gpt2 : {false, true}) {
        int64_t elements = 0;
        for (const ir::Program& p : compile_recipe(narrow_recipe(GetParam().settings, gpt2), Backend::Cpu).programs) {
            for (const ir::Unit& unit : p.units) {
                if (unit.mirror) continue;
                const ir::Routine& update = *p.routine("update." + unit.name);
                for (const ir::Op& op : update.ops) {
                    for (int64_t rank = 0; op.kind == "adamw" && rank < p.mesh.world_ranks(); ++rank) {
                        EXPECT_EQ(op.kernel, "cpu.adamw");
                        if (p.mesh.pipeline_rank_of(rank) == p.pipeline_rank) elements += expect_draws(p, unit, update, op, rank);
                    }
                }
            }
        }
        EXPECT_GT(elements, 1000);
    }
}

// In float64 no difference between layouts is as large as the distance of a value from where its draw decides.
TEST_P(NarrowMomentLayouts, HaveTheMomentsOfOneRankBitByBit) {
    for (const bool gpt2 : {false, true}) {
        const Settings exact = {{"training.dtype", "float64"}};
        Settings one_rank = exact;
        for (const auto& [key, value] : GetParam().settings) {
            if (key.starts_with("model.")) one_rank.emplace_back(key, value);
        }
        compile::Recipe layout = narrow_recipe(exact, gpt2);
        for (const auto& [key, value] : GetParam().settings) layout.set(key, value);
        NarrowTraining one(narrow_recipe(one_rank, gpt2), Backend::Reference), many(layout, Backend::Reference);
        one.steps(3), many.steps(3);
        for (const char* state : {"{}", "exp_avg.{}", "exp_avg_sq.{}"}) {
            const runtime::GlobalTensors want = one.saved(state);
            for (const auto& [name, values] : many.saved(state)) {
                // A softmax does not see the bias of keys: its gradient is nothing but rounding.
                const bool is_rounded = std::string_view(state) != "{}" && name.find(".k.bias") == std::string::npos;
                for (size_t i = 0; i < values.size(); ++i)
                    ASSERT_NEAR(values[i], want.at(name)[i], is_rounded ? 0 : 1e-10) << state << " " << name << " " << i;
            }
        }
    }
}
INSTANTIATE_TEST_SUITE_P(All, NarrowMomentLayouts, ::testing::ValuesIn(narrow_layouts()),
                         [](const auto& info) { return info.param.name; });

const Settings kMixedLayout = {{"parallelism.tensor_parallel_degree", "2"},
                               {"parallelism.data_parallel_shard_degree", "2"},
                               {"training.mixed_precision_param", "bfloat16"}};

constexpr const char* kSavedStates[] = {"{}", "exp_avg.{}", "exp_avg_sq.{}"};

void save(NarrowTraining& t, const std::string& root) { runtime::Saver(t.trainer, t.r, root).save(runtime::SaveContents::All); }

TEST(NarrowMoments, ARunThatStopsGoesOnBitByBit) {
    const ScratchFolder s;
    const compile::Recipe r = narrow_recipe(kMixedLayout);
    NarrowTraining undisturbed(r, Backend::Cpu), first(r, Backend::Cpu), second(r, Backend::Cpu);
    undisturbed.steps(6);
    first.steps(3);
    save(first, s.path("c"));
    runtime::load(second.trainer, checkpoint::folder_of(s.path("c"), 3));
    second.steps(3);
    for (const char* state : kSavedStates) EXPECT_EQ(second.saved(state), undisturbed.saved(state)) << state;
    const checkpoint::Manifest m = checkpoint::read_manifest(checkpoint::folder_of(s.path("c"), 3));
    const auto file = checkpoint::open_file(checkpoint::folder_of(s.path("c"), 3), m, checkpoint::kOptimizerFile);
    EXPECT_EQ(file.spec("exp_avg.model.norm.weight").dtype, "BF16");
    EXPECT_EQ(file.spec("exp_avg_sq.model.norm.weight").dtype, "BF16");
    EXPECT_EQ(m.dtype, "F32");
}

TEST(NarrowMoments, BeginWithThoseOfAFloat32CheckpointToNearestAndBack) {
    const ScratchFolder s;
    compile::Recipe wide = narrow_recipe(kMixedLayout);
    wide.set("optimizer.implementation", "fused");
    NarrowTraining before(wide, Backend::Cpu), narrow(narrow_recipe({}), Backend::Cpu), after(wide, Backend::Cpu);
    before.steps(2);
    save(before, s.path("wide"));
    runtime::load(narrow.trainer, checkpoint::folder_of(s.path("wide"), 2));
    EXPECT_EQ(narrow.saved("{}"), before.saved("{}"));
    for (const char* state : {"exp_avg.{}", "exp_avg_sq.{}"}) {
        const runtime::GlobalTensors got = narrow.saved(state);
        for (const auto& [name, values] : before.saved(state)) {
            for (size_t i = 0; i < values.size(); ++i)
                EXPECT_EQ(got.at(name)[i], static_cast<double>(static_cast<float>(Bf16(static_cast<float>(values[i]))))) << name;
        }
    }
    narrow.steps(1);
    save(narrow, s.path("narrow"));
    runtime::load(after.trainer, checkpoint::folder_of(s.path("narrow"), 3));
    for (const char* state : kSavedStates) EXPECT_EQ(after.saved(state), narrow.saved(state)) << state;
    after.steps(1);
}

TEST(NarrowMoments, TakeHalfTheBytes) {
    const auto bytes_of_moments = [](const char* implementation) {
        compile::Recipe r = narrow_recipe(kMixedLayout);
        r.set("optimizer.implementation", implementation);
        int64_t bytes = 0;
        const ir::Program p = compile_recipe(r, Backend::Cpu).programs[0];
        for (const ir::Buffer& b : p.buffers) {
            if (b.state >= 0 && p.states[static_cast<size_t>(b.state)].role == ir::StateRole::Moment) bytes += b.bytes;
        }
        return bytes;
    };
    EXPECT_EQ(2 * bytes_of_moments("fused_opt_states_bf16"), bytes_of_moments("fused"));
}

}  // namespace
}  // namespace lockstep::testing
