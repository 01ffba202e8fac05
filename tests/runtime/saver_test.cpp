// Saving beside training: the copies are of one moment, the files are those of a save that training waits for, a full disk is
// said.
#include "runtime/saver.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "runtime/load_states.h"
#include "tests/base/plain.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/system_calls.h"
#include "tests/equivalence/run.h"

namespace lockstep::testing {
namespace {

compile::Recipe recipe(const std::string& mode, const std::string& more = "") {
    return plain(compile::Recipe::from_text(R"(
[model]
dim = 64
n_layers = 2
n_heads = 4
n_kv_heads = 2
ffn_dim = 96
vocab_size = 3001
[training]
seq_len = 16
local_batch_size = 1
global_batch_size = 4
[lr_scheduler]
warmup_steps = 0
[checkpoint]
enable = true
async_mode = ")" + mode + "\"\n" + more,
                                            "test"));
}

const std::string kLayout = "[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 2\n";

// Trains 4 steps and saves after the first and third, without waiting.
void train_and_save(const compile::Recipe& r, const std::string& root) {
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource data = synthetic_data(r, compiled);
    runtime::Trainer trainer(compile::config_of(r), compiled, data);
    runtime::Saver saver(trainer, r, root);
    for (int step = 1; step <= 4; ++step) {
        trainer.step();
        if (step % 2 == 1) saver.save(runtime::SaveContents::All);
    }
    saver.finish();
    EXPECT_EQ(saver.saves(), 2);
    EXPECT_EQ(saver.latest(), checkpoint::folder_of(root, 3));
    EXPECT_GT(saver.longest_write_s(), 0);
}

TEST(Saver, BesideTrainingWritesWhatWaitingWrites) {
    const ScratchFolder s;
    for (const std::string more : {"", "[partition]\npreset = \"zero1\"\n", "[runtime]\ncomm_thread = \"on\"\n"}) {
        const std::string waited = s.path("waited" + std::to_string(more.size())), beside = waited + "-beside";
        train_and_save(recipe("disabled", kLayout + more), waited);
        train_and_save(recipe("async", kLayout + more), beside);
        for (const int64_t step : {1, 3}) {
            const std::string a = checkpoint::folder_of(waited, step), b = checkpoint::folder_of(beside, step);
            EXPECT_EQ(checkpoint::what_is_wrong(b), std::nullopt);
            EXPECT_EQ(checkpoint::read_manifest(a).files, checkpoint::read_manifest(b).files) << more << step;
        }
    }
}

TEST(Saver, AFullDiskIsSaidAndTheLastCheckpointNamed) {
    for (const char* mode : {"disabled", "async_with_pinned_mem"}) {
        const ScratchFolder s;
        const compile::Recipe r = recipe(mode, kLayout);
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
        const data::SyntheticSource data = synthetic_data(r, compiled);
        runtime::Trainer trainer(compile::config_of(r), compiled, data);
        runtime::Saver saver(trainer, r, s.path("c"));
        trainer.step();
        saver.save(runtime::SaveContents::All);
        saver.finish();
        trainer.step();
        SystemCalls disk;
        disk.fail_from(1, ENOSPC);
        try {
            saver.save(runtime::SaveContents::All);
            saver.finish();
            ADD_FAILURE() << mode;
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "file.cannot_write");
            EXPECT_NE(std::string(e.what()).find("No space left on device"), std::string::npos) << e.what();
            EXPECT_NE(
                std::string(e.what()).find("The last complete checkpoint is " + checkpoint::folder_of(s.path("c"), 1) + "."),
                std::string::npos)
                << e.what();
        }
        EXPECT_EQ(checkpoint::complete_steps(s.path("c")), (std::vector<int64_t>{1}));
        EXPECT_EQ(std::distance(std::filesystem::directory_iterator(s.path("c")), std::filesystem::directory_iterator()), 1);
    }
}

// Commands compare the recipes first; this is the tensors' own word.
// Loads what another recipe saved.
void expect_refused(const char* key, const char* value, const std::string& id, const std::string& message,
                    const std::function<void(runtime::Trainer&, const std::string&)>& then = {}) {
    const ScratchFolder s;
    train_and_save(recipe("disabled"), s.path("c"));
    compile::Recipe r = recipe("disabled");
    r.set(key, value);
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource data = synthetic_data(r, compiled);
    runtime::Trainer other(compile::config_of(r), compiled, data);
    const std::string saved = checkpoint::folder_of(s.path("c"), 3);
    try {
        runtime::load(other, saved, {});
        ADD_FAILURE() << "loaded";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), id);
        EXPECT_NE(std::string(e.what()).find(message), std::string::npos) << e.what();
    }
    if (then) then(other, saved);
}

TEST(Saver, TensorsOfAnotherModelAreRefused) {
    expect_refused("model.ffn_dim", "128", "checkpoint.other_model", "resume with the recipe that made it");
}

TEST(Saver, StatesOfAnotherOptimizerAreRefusedUnlessTheyAreLeftOut) {
    expect_refused("optimizer.name", "Muon", "checkpoint.other_optimizer", "it has no momentum_buffer.model.layers.0.",
                   [](runtime::Trainer& other, const std::string& saved) {
                       runtime::load(other, saved, {.optimizer = false});
                       EXPECT_EQ(other.progress().steps, 3);
                   });
}

TEST(Saver, AnOptimizerThatRemembersNothingIsSavedAndResumed) {
    const ScratchFolder s;
    for (const char* mode : {"disabled", "async"}) {
        compile::Recipe r = recipe(mode);
        r.set("optimizer.name", "SGD"), r.set("optimizer.momentum", "0.0");
        train_and_save(r, s.path(mode));
        const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
        const data::SyntheticSource data = synthetic_data(r, compiled);
        runtime::Trainer again(compile::config_of(r), compiled, data);
        runtime::load(again, checkpoint::folder_of(s.path(mode), 3), {});
        EXPECT_EQ(again.ranks().executor(0).value(ir::StateRole::Steps), 3);
    }
}

// The recipe of a checkpoint names its whole model, so that another version's defaults do not make another one of it.
TEST(Saver, TheManifestNamesTheWholeModel) {
    const ScratchFolder s;
    train_and_save(recipe("disabled"), s.path("c"));
    const std::string text = checkpoint::read_manifest(checkpoint::folder_of(s.path("c"), 3)).recipe;
    for (const char* line : {"rope_theta = 500000.0\n", "rope_scaling_factor = 8.0\n", "sliding_window = 0\n", "ffn_dim = 96\n"})
        EXPECT_NE(text.find(line), std::string::npos) << line << text;
}

TEST(Saver, LoadsThePartsThatAreAskedFor) {
    const ScratchFolder s;
    const compile::Recipe r = recipe("disabled");
    const compile::Compiled compiled = compile_recipe(r, Backend::Cpu);
    const data::SyntheticSource data = synthetic_data(r, compiled);
    runtime::Trainer trained(compile::config_of(r), compiled, data);
    trained.step();
    trained.step();
    runtime::Saver(trained, r, s.path("c")).save(runtime::SaveContents::All);
    const auto zero = [](const runtime::GlobalTensors& tensors) {
        for (const auto& [name, values] : tensors) {
            for (double v : values) {
                if (v != 0) return false;
            }
        }
        return true;
    };
    runtime::Trainer t(compile::config_of(r), compiled, data);
    runtime::load(t, checkpoint::folder_of(s.path("c"), 2), {false, false, false});
    EXPECT_EQ(t.state(runtime::saved_as("{}")), trained.state(runtime::saved_as("{}")));
    EXPECT_TRUE(zero(t.state(runtime::saved_as("exp_avg.{}"))));
    EXPECT_EQ(t.progress().steps, 0);
    EXPECT_EQ(t.progress().samples_seen, 0);
    runtime::load(t, checkpoint::folder_of(s.path("c"), 2), {false, true, false});
    EXPECT_EQ(t.progress().steps, 0);
    EXPECT_EQ(t.progress().samples_seen, 8);
    runtime::load(t, checkpoint::folder_of(s.path("c"), 2), {true, true, true});
    EXPECT_EQ(t.progress().steps, 2);
    EXPECT_EQ(t.state(runtime::saved_as("exp_avg_sq.{}")), trained.state(runtime::saved_as("exp_avg_sq.{}")));
    EXPECT_EQ(t.ranks().executor(0).value(ir::StateRole::Steps), 2);
}

}  // namespace
}  // namespace lockstep::testing
