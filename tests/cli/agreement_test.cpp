// Processes of one job that differ are refused when it starts: the first difference is named with its rank and both values.
#include "job/agreement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "comm/mpi/session.h"
#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

TEST(Agreement, NamesTheFirstDifference) {
    const job::Facts one = {{"optimizer.lr", "0.001"}, {job::kInstructionSet, "avx512"}};
    job::Facts other = one, less = one;
    EXPECT_FALSE(job::disagreement({one, one, one}));
    other[1].second = "avx2";
    auto d = job::disagreement({one, one, one, other});
    ASSERT_TRUE(d);
    EXPECT_EQ(d->name, job::kInstructionSet);
    EXPECT_EQ(d->first + " " + d->other, "avx512 avx2");
    EXPECT_EQ(d->process, 3u);
    other[0].second = "0.5";
    EXPECT_EQ(job::disagreement({one, other})->name, "optimizer.lr");
    less.erase(less.begin());
    EXPECT_EQ(job::disagreement({one, less})->other, "(absent)");
    EXPECT_EQ(job::disagreement({less, one})->first, "(absent)");
}

TEST(Agreement, FactsAreTheWholeRecipeAndTheMachine) {
    compile::Recipe recipe;
    const auto has = [&](const std::string& name, const std::string& value) {
        const job::Facts facts = job::facts_of(recipe);
        return std::find(facts.begin(), facts.end(), std::pair{name, value}) != facts.end();
    };
    EXPECT_TRUE(has("optimizer.lr", compile::text_of(recipe.number("optimizer.lr"))));
    recipe.set("optimizer.lr", "0.5");
    EXPECT_TRUE(has("optimizer.lr", "0.5"));
    EXPECT_TRUE(has("model.rope_theta", "500000.0"));
    EXPECT_EQ(job::facts_of(recipe).back().first, job::kInstructionSet);
    recipe.set("runtime.kernels", "reference");
    EXPECT_NE(job::facts_of(recipe).back().first, job::kInstructionSet);
    EXPECT_NE(job::build_text().find("0."), std::string::npos);
}

class CliAgreement : public ::testing::Test {
protected:
    void SetUp() override {
        if (!comm::mpi::is_built()) GTEST_SKIP() << "built without MPI";
        s.write("r.toml", training_recipe(4, "[checkpoint]\nenable = true\n"));
    }
    // The same command in two processes, the second one with more arguments.
    void expect_refused(const std::string& command, const std::string& more, const std::string& text,
                        const std::string& id = "job.ranks_disagree") {
        const Finished f = s.in_processes(1, fmt::format("{0} : -n 1 $LOCKSTEP {0} {1}", command, more));
        EXPECT_EQ(f.code, 1) << more << "\n" << f.err;
        EXPECT_NE(f.err.find(text), std::string::npos) << more << "\n" << f.err;
        EXPECT_NE(f.err.find("[" + id + "]"), std::string::npos) << f.err;
        EXPECT_FALSE(std::filesystem::exists(s.path("out/checkpoint"))) << more;
    }

    Scratch s;
};

TEST_F(CliAgreement, AnyKeyOfTheRecipe) {
    const std::string train = "train r.toml";
    const struct {
        const char *more, *text;
    } cases[] = {
        {"--optimizer.lr 0.5",
         "optimizer.lr is 0.01 on rank 0, but 0.5 on rank 1: all processes of a job must have the same recipe"},
        {"--debug.seed 7", "debug.seed is 0 on rank 0, but 7 on rank 1"},
        {"--training.steps 5", "training.steps is 4 on rank 0, but 5 on rank 1"},
        {"--training.seq_len 18", "training.seq_len is 16 on rank 0, but 18 on rank 1"},
        {"--checkpoint.interval 2", "checkpoint.interval is 500 on rank 0, but 2 on rank 1"},
        {"--model.rope_theta 1e4", "model.rope_theta is 500000.0 on rank 0, but 10000.0 on rank 1"},
        {"--job.dump_folder other", "job.dump_folder is \"out\" on rank 0, but \"other\" on rank 1"},
        {"--lr_scheduler.decay_type cosine", "lr_scheduler.decay_type is \"linear\" on rank 0, but \"cosine\" on rank 1"},
        {"--watch 'layer[0].forward.o'", "--watch is  on rank 0, but layer[0].forward.o on rank 1"},
    };
    for (const auto& c : cases) expect_refused(train, c.more, c.text);
    const Finished json = s.in_processes(1, "train r.toml --json : -n 1 $LOCKSTEP train r.toml --json --optimizer.lr 0.5");
    EXPECT_EQ(json.json()["error"]["key"], "optimizer.lr") << json.out;
}

// Two ranks a process: the second process begins with rank 2.
TEST_F(CliAgreement, RanksAreNamedNotProcesses) {
    const std::string four = "train r.toml --parallelism.tensor_parallel_degree 2 --parallelism.data_parallel_shard_degree 2";
    expect_refused(four, "--optimizer.lr 0.5", "optimizer.lr is 0.01 on rank 0, but 0.5 on rank 2");
}

TEST_F(CliAgreement, TheDataOfTheSameName) {
    for (const char* where : {"one", "two"}) {
        std::filesystem::create_directories(s.path(where));
        s.write(std::string(where) + "/text.txt", std::string(4000, where[0]) + " words\n");
        ASSERT_EQ(s.shell(fmt::format("cd {} && $LOCKSTEP data prepare text.txt --out d --tokenizer bytes", where)).code, 0);
    }
    const std::string train =
        "train ../r.toml --training.dataset prepared --training.dataset_path d --model.vocab_size 257 --job.dump_folder ../out";
    const Finished f =
        s.shell(fmt::format("timeout 100 $MPIRUN -wdir $PWD/one -n 1 $LOCKSTEP {0} : -wdir $PWD/two -n 1 "
                            "$LOCKSTEP {0} >out.txt 2>err.txt",
                            train));
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_NE(f.err.find("d/manifest.json/"), std::string::npos) << f.err;
    EXPECT_NE(f.err.find(" on rank 1: all processes"), std::string::npos) << f.err;
    EXPECT_NE(f.err.find("[job.ranks_disagree]"), std::string::npos) << f.err;
}

// A file of the same name that makes another program.
TEST_F(CliAgreement, TheFilesThatARecipeNames) {
    for (const auto& [where, schedule] : {std::pair{"one", "1F1B"}, std::pair{"two", "GPipe"}}) {
        std::filesystem::create_directories(s.path(where));
        ASSERT_EQ(s.shell(fmt::format("$LOCKSTEP schedule {} --ranks 2 --microbatches 4 --csv >{}/s.csv", schedule, where)).code,
                  0);
    }
    const std::string train =
        "train ../r.toml --job.dump_folder ../out --parallelism.pipeline_parallel_degree 2 "
        "--parallelism.pipeline_parallel_schedule_csv s.csv";
    const Finished f =
        s.shell(fmt::format("timeout 100 $MPIRUN -wdir $PWD/one -n 1 $LOCKSTEP {0} : -wdir $PWD/two -n 1 "
                            "$LOCKSTEP {0} >out.txt 2>err.txt",
                            train));
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_NE(f.err.find("rank 1 has compiled another program than rank 0 from the same recipe: a file that the recipe names"),
              std::string::npos)
        << f.err;
    EXPECT_NE(f.err.find("[job.other_program]"), std::string::npos) << f.err;
}

TEST_F(CliAgreement, OtherCommandsAndOtherCheckpoints) {
    ASSERT_EQ(s.lockstep("train r.toml --training.steps 2 --job.dump_folder a").code, 0);
    ASSERT_EQ(s.lockstep("train r.toml --training.steps 2 --job.dump_folder b --debug.seed 5").code, 0);
    expect_refused("eval a", "--training.seq_len 8", "the checkpoint's recipe names no prepared data", "eval.no_data");
    const std::string sample = "--prompt-tokens 5 --max-tokens 2";
    Finished f = s.in_processes(1, fmt::format("sample a {0} : -n 1 $LOCKSTEP sample b {0}", sample));
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_NE(f.err.find("[job.ranks_disagree]"), std::string::npos) << f.err;
    f = s.in_processes(1, fmt::format("sample a {} : -n 1 $LOCKSTEP train r.toml", sample));
    EXPECT_EQ(f.code, 1) << f.err;
    EXPECT_NE(f.err.find("the command is sample on process 0, but train on process 1"), std::string::npos) << f.err;
}

}  // namespace
}  // namespace lockstep::testing
