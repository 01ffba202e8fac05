// Schedules that nobody has a name for, on stages of any length: random legal tables, given as a user gives them, train as one
// rank does; and each damage to such a table is refused before anything is compiled. LOCKSTEP_DRAWS: how many
// tables.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <regex>

#include "base/error.h"
#include "schedules/csv.h"
#include "tests/base/from_environment.h"
#include "tests/base/plain.h"
#include "tests/base/scratch_folder.h"
#include "tests/equivalence/draw.h"
#include "tests/schedules/random_tables.h"

namespace lockstep::testing {
namespace {

using schedules::Table;

constexpr const char* kCsv = "parallelism.pipeline_parallel_schedule_csv";

Table random_pipeline(Random& random) {
    for (;;) {
        Table t = random_legal(random);
        if (t.rows.size() > 1) return t;
    }
}

// The model's modules in `stages` parts of random length, as a list of lists.
std::string random_cut(int64_t layers, int64_t stages, Random& random) {
    std::vector<std::string> modules = {"\"tok_embeddings\""};
    for (int64_t i = 0; i < layers; ++i) modules.push_back(fmt::format("\"layers.{}\"", i));
    modules.emplace_back("\"norm\", \"output\"");
    std::vector<bool> begins(modules.size(), false);
    for (int64_t left = stages - 1; left > 0;) {
        const auto at = static_cast<size_t>(1 + random.below(static_cast<int64_t>(modules.size()) - 1));
        left -= begins[at] ? 0 : 1;
        begins[at] = true;
    }
    std::string text = "[[";
    for (size_t i = 0; i < modules.size(); ++i) text += (i == 0 ? "" : begins[i] ? "], [" : ", ") + modules[i];
    return text + "]]";
}

compile::Recipe recipe_of(const Table& t, const std::string& csv, Random& random) {
    const auto one_of = [&](std::initializer_list<const char*> all) {
        return *(all.begin() + random.below(static_cast<int64_t>(all.size())));
    };
    const int64_t layers = std::max<int64_t>(1, t.stages - 2 + random.below(4)), data = 1 + random.below(2),
                  tensor = 1 + random.below(2), micro = 1 + random.below(2), missing = random.below(data * micro);
    const bool gpt = random.below(2) == 0, tied = random.below(2) == 0, fused = random.below(2) == 0;
    const std::string cut = random_cut(layers, t.stages, random);
    const char* const reshard = one_of({"default", "always", "never"});
    const char* const preset = one_of({"none", "zero1", "zero2", "zero3"});
    const char* const reduce = one_of({"default", "step", "microbatch"});
    const char* const recompute = one_of({"none", "none", "full"});
    compile::Recipe r = plain(compile::Recipe::from_text(
        fmt::format("[model]\nname = \"{}\"\ndim = 12\nn_layers = {}\nn_heads = 2\nhead_dim = 4\nffn_dim = 6\nvocab_size = 13\n"
                    "tie_embeddings = {}\n{}[training]\nseq_len = 6\ndtype = \"float64\"\nmax_norm = 0.5\nsteps = 5\n"
                    "fuse_loss = {}\nglobal_batch_size = {}\n[parallelism]\nmodule_fqns_per_model_part = {}\n"
                    "pipeline_parallel_degree = {}\npipeline_parallel_microbatch_size = {}\ndata_parallel_shard_degree = {}\n"
                    "tensor_parallel_degree = {}\nfsdp_reshard_after_forward = \"{}\"\n[partition]\npreset = \"{}\"\n"
                    "reduce_gradients = \"{}\"\n[optimizer]\nlr = 5e-3\neps = 1e-5\n[lr_scheduler]\nwarmup_steps = 0\n"
                    "[debug]\nsynthetic_masked = 0.3\n[activation_checkpoint]\nmode = \"{}\"\n[runtime]\ndebug_fill = true\n",
                    gpt ? "gpt2" : "llama3", layers, int{tied}, gpt ? "n_positions = 8\ndropout = 0.1\n" : "n_kv_heads = 2\n",
                    fused, data * micro * t.microbatches - missing, cut, t.rows.size(), micro, data, tensor, reshard, preset,
                    reduce, recompute),
        "test"));
    r.set(kCsv, csv);
    return r;
}

TEST(RandomSchedules, TrainAsOneRank) {
    constexpr int kSteps = 3;
    const int64_t tables = from_environment("LOCKSTEP_DRAWS", 60);
    const ScratchFolder folder;
    double farthest = 0;
    for (int64_t seed = 1; seed <= tables; ++seed) {
        Random random(static_cast<uint64_t>(seed));
        const Table table = random_pipeline(random);
        const compile::Recipe recipe = recipe_of(table, folder.write("schedule.csv", schedules::print_csv(table)), random);
        const std::string shown = fmt::format("seed {}\n{}{}", seed, schedules::print_csv(table), recipe.toml());
        try {
            const compile::Compiled compiled = compile_recipe(recipe, Backend::Reference);
            EXPECT_EQ(refusal(compiled), "") << shown;
            std::string where;
            const double diff =
                difference(run(one_rank(recipe), Backend::Reference, kSteps), run(recipe, compiled, kSteps), &where);
            EXPECT_LE(diff, 1e-10) << where << " " << shown;
            farthest = std::max(farthest, diff);
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << shown;
        }
    }
    fmt::print("{} tables; the farthest is {:.1e} from one rank\n", tables, farthest);
}

TEST(RandomSchedules, DamagedTablesAreRefusedByLineAndCell) {
    const ScratchFolder folder;
    const std::regex line_and_cell("schedule\\.csv:([0-9]+): cell ([0-9]+): ");
    for (int64_t kind = 0; kind < static_cast<int64_t>(kTableMutations.size()); ++kind) {
        int refused = 0;
        for (uint64_t seed = 1; refused < 8; ++seed) {
            Random random(seed);
            Table table = random_pipeline(random);
            if (!mutate(table, kind, random)) continue;
            const std::string text = schedules::print_csv(table);
            const compile::Recipe recipe = recipe_of(table, folder.write("schedule.csv", text), random);
            const std::string shown = fmt::format("{}, seed {}\n{}", kTableMutations[static_cast<size_t>(kind)], seed, text);
            try {
                compile_recipe(recipe, Backend::Reference);
                ADD_FAILURE() << "not refused: " << shown;
            } catch (const UserError& e) {
                EXPECT_EQ(e.id(), "pipeline.csv_illegal") << shown;
                EXPECT_EQ(e.key(), kCsv) << shown;
                std::smatch at;
                const std::string what = e.what();
                ASSERT_TRUE(std::regex_search(what, at, line_and_cell)) << what << "\n" << shown;
                EXPECT_LE(std::stoul(at[1]), table.rows.size()) << what << "\n" << shown;
            }
            ++refused;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
