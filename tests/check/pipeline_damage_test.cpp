// Damaged programs of pipelines: what `check` accepts must run and train bit for bit as the undamaged program does. (What it
// refuses is not run, it may stand still.) Seeds are fixed; a difference prints recipe, seed and damage.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <optional>
#include <random>

#include "check/check.h"
#include "mutations.h"
#include "tests/base/plain.h"
#include "tests/equivalence/run.h"

namespace lockstep::check_test {
namespace {

constexpr int kDamaged = 1000, kSteps = 2;

struct Pipeline {
    const char* schedule;
    int pipeline, shard, tensor, tied, microbatches;
    const char *preset, *reduce;
};
constexpr std::array kPipelines = {
    Pipeline{"GPipe", 2, 2, 1, 1, 3, "zero3", "step"},                  //
    Pipeline{"1F1B", 3, 1, 1, 0, 4, "none", "default"},                 //
    Pipeline{"1F1B", 2, 2, 1, 1, 3, "zero2", "microbatch"},             //
    Pipeline{"Interleaved1F1B", 2, 1, 2, 0, 2, "none", "default"},      //
    Pipeline{"Interleaved1F1B", 2, 2, 1, 1, 4, "zero3", "microbatch"},  //
    Pipeline{"ZB-H1", 2, 1, 1, 1, 3, "none", "default"},                //
    Pipeline{"ZB-H1", 3, 2, 1, 1, 4, "zero1", "default"},               //
    Pipeline{"ZB-H1", 2, 2, 1, 0, 3, "zero3", "step"},                  //
};

compile::Recipe recipe_of_pipeline(const Pipeline& l) {
    return lockstep::testing::plain(compile::Recipe::from_text(
        fmt::format("[model]\nname = \"llama3\"\ndim = 8\nn_layers = 3\nn_heads = 2\nn_kv_heads = 2\nhead_dim = 4\nffn_dim = 6\n"
                    "vocab_size = 13\ntie_embeddings = {}\n[training]\nseq_len = 4\ndtype = \"float64\"\nsteps = 5\n"
                    "global_batch_size = {}\n[parallelism]\npipeline_parallel_degree = {}\npipeline_parallel_schedule = \"{}\"\n"
                    "pipeline_parallel_microbatch_size = 1\ndata_parallel_shard_degree = {}\ntensor_parallel_degree = {}\n"
                    "[partition]\npreset = \"{}\"\nreduce_gradients = \"{}\"\n[optimizer]\nlr = "
                    "5e-3\n[lr_scheduler]\nwarmup_steps = 0\n[runtime]\ncomm_thread = "
                    "\"off\"\n",
                    l.tied, l.shard * l.microbatches, l.pipeline, l.schedule, l.shard, l.tensor, l.preset, l.reduce),
        "test"));
}

TEST(PipelineDamage, WhatIsAcceptedTrainsTheSame) {
    std::vector<compile::Recipe> recipes;
    std::vector<compile::Compiled> bases;
    std::vector<testing::Outcome> sound;
    for (const Pipeline& l : kPipelines) {
        recipes.push_back(recipe_of_pipeline(l));
        bases.push_back(testing::compile_recipe(recipes.back(), testing::Backend::Reference));
        ASSERT_FALSE(check::prove(bases.back().of_ranks())) << recipes.back().toml();
        sound.push_back(testing::run(recipes.back(), bases.back(), kSteps));
    }
    std::array<std::array<int, 2>, kMutations> count = {};  // accepted, refused
    for (int seed = 0; seed < kDamaged; ++seed) {
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        const size_t layout = static_cast<size_t>(seed) % bases.size();
        compile::Compiled damaged = bases[layout];
        ir::Program& program = damaged.programs[random() % damaged.programs.size()];
        const ir::Program base = program;
        std::optional<Mutant> mutant;
        Mutation kind{};
        while (!mutant) {
            kind = static_cast<Mutation>(random() % kMutations);
            mutant = mutate(base, kind, random);
        }
        program = mutant->program;
        const bool refused = check::prove(damaged.of_ranks()).has_value();
        ++count[static_cast<size_t>(kind)][refused ? 1 : 0];
        if (refused) continue;
        const std::string shown = fmt::format("seed {}, pipeline rank {}: {}: {}\n{}", seed, program.pipeline_rank, name_of(kind),
                                              mutant->text, recipes[layout].toml());
        try {
            std::string where;
            const testing::Outcome outcome = testing::run(recipes[layout], damaged, kSteps);
            // Parts of the norm may be added in another order.
            EXPECT_LT(testing::difference(sound[layout], outcome, &where), 1e-15) << where << ", " << shown;
        } catch (const std::exception& e) {
            ADD_FAILURE() << e.what() << "\n" << shown;
        }
    }
    fmt::print("{:<18}{:>10}{:>10}\n", "damage", "accepted", "refused");
    for (int k = 0; k < kMutations; ++k) {
        const auto& [accepted, refused] = count[static_cast<size_t>(k)];
        fmt::print("{:<18}{:>10}{:>10}\n", name_of(static_cast<Mutation>(k)), accepted, refused);
    }
}

// What a collective reads and writes lies inside its ports.
TEST(PipelineDamage, CollectivesStayInsideTheirPorts) {
    for (const char* kind : {"send", "recv", "wait", "all_gather", "reduce_scatter"}) {
        compile::Compiled damaged = testing::compile_recipe(recipe_of_pipeline(kPipelines[0]), testing::Backend::Reference);
        bool found = false;
        for (ir::Program& p : damaged.programs) {
            for (ir::Routine& r : p.routines) {
                for (const ir::Op& op : r.ops) {
                    ir::Tensor& t = r.tensors[static_cast<size_t>(op.subject())];
                    if (found || op.kind != kind || t.port < 0) continue;
                    t.offset_bytes += 64;
                    found = true;
                }
            }
        }
        ASSERT_TRUE(found) << kind;
        const std::optional<check::Refusal> refused = check::prove(damaged.of_ranks());
        ASSERT_TRUE(refused) << kind;
        EXPECT_EQ(refused->reason, "memory") << kind << ": " << refused->message;
    }
}

// A message has a tag of its queue: what is sent on one is never received on the other.
TEST(PipelineDamage, BothSidesUseOneQueue) {
    for (const char* kind : {"send", "recv", "wait", "all_reduce"}) {
        compile::Compiled damaged = testing::compile_recipe(recipe_of_pipeline(kPipelines[0]), testing::Backend::Reference);
        ir::Program& p = damaged.programs[1];
        for (ir::Entry& e : p.entries) {
            for (ir::Call& c : e.calls) {
                const ir::Routine& r = p.routines[static_cast<size_t>(c.routine)];
                const bool is_one = std::any_of(r.ops.begin(), r.ops.end(),
                                                [&](const ir::Op& op) { return op.kind == kind && ir::crosses_pipeline(p, op); });
                if (is_one) c.queue = c.queue == QueueName::Compute ? QueueName::Comm : QueueName::Compute;
            }
        }
        const std::optional<check::Refusal> found = check::prove_order(damaged.of_ranks());
        ASSERT_TRUE(found) << kind;
        EXPECT_NE(found->message.find("on the queue"), std::string::npos) << kind << ": " << found->message;
    }
}

// Both would stand still or read the wrong bytes, and only the two sides together show it.
TEST(PipelineDamage, BothSidesMoveTheSame) {
    const auto refusal = [](const std::function<void(ir::Routine&, ir::Op&)>& edit) {
        compile::Compiled damaged = testing::compile_recipe(recipe_of_pipeline(kPipelines[0]), testing::Backend::Reference);
        for (ir::Routine& r : damaged.programs[1].routines) {
            for (ir::Op& op : r.ops) edit(r, op);
        }
        const std::optional<check::Refusal> found = check::prove_order(damaged.of_ranks());
        return found ? found->message : "accepted";
    };
    const auto is_received = [](const ir::Op& op) { return op.kind == "recv"; };
    const auto is_of_all = [](const ir::Routine& r, const ir::Op& op) {
        return r.name == "stats.all" && op.kind == "all_reduce";
    };
    EXPECT_EQ(refusal([](ir::Routine&, ir::Op&) {}), "accepted");
    EXPECT_NE(refusal([&](ir::Routine& r, ir::Op& op) {
                  if (is_received(op)) r.tensors[static_cast<size_t>(op.out[0])].dtype = Dtype::F32;
              }).find("is next"),
              std::string::npos);
    EXPECT_NE(refusal([&](ir::Routine& r, ir::Op& op) {
                  if (is_received(op)) r.tensors[static_cast<size_t>(op.out[0])].dims.pop_back();
              }).find("is next"),
              std::string::npos);
    EXPECT_NE(refusal([&](ir::Routine& r, ir::Op& op) {
                  if (is_of_all(r, op)) r.tensors[static_cast<size_t>(op.out[0])].dtype = Dtype::I32;
              }).find("deadlock"),
              std::string::npos);
    EXPECT_NE(refusal([&](ir::Routine& r, ir::Op& op) {
                  if (is_of_all(r, op)) r.tensors[static_cast<size_t>(op.in[0])].placement.reduce = ir::Reduce::Max;
              }).find("deadlock"),
              std::string::npos);
    EXPECT_NE(refusal([&](ir::Routine& r, ir::Op& op) {
                  if (is_of_all(r, op)) op.attrs["reduce"] = std::string("direct");
              }).find("deadlock"),
              std::string::npos);
    EXPECT_NE(refusal([&](ir::Routine&, ir::Op& op) {
                  if (is_received(op)) op.attrs["peer"] = int64_t{1};
              }).find("deadlock"),
              std::string::npos);
    EXPECT_NE(refusal([&](ir::Routine&, ir::Op& op) {
                  if (op.kind == "wait") op.kind = "send", op.attrs["peer"] = int64_t{0};
              }),
              "accepted");
}

}  // namespace
}  // namespace lockstep::check_test
