// The static checker against the rendezvous machine: both must give the same verdict on 1,000 damaged programs and call every
// compiled one legal. Seeds are fixed; a disagreement prints recipe, seed and damage.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "check/check.h"
#include "compile/compile.h"
#include "kernels/kernel.h"
#include "mutations.h"
#include "rendezvous_machine.h"
#include "tests/base/plain.h"

namespace lockstep::check_test {
namespace {

constexpr int kMutants = 1000;

struct Layout {
    int replicate, shard, tensor;
    const char* preset;
    int prefetch, tied, global_batch;
    bool validation;
    const char* recompute;
    bool async_tensor_parallel = false;
};

// Degrees, partitions and schedules such that every routine of a step appears, with and without a part in collectives.
constexpr std::array kLayouts = {
    Layout{1, 1, 1, "none", 0, 0, 3, false, "none"},   //
    Layout{1, 1, 1, "none", 1, 1, 2, true, "full"},    //
    Layout{1, 2, 1, "none", 1, 0, 8, false, "none"},   //
    Layout{1, 2, 1, "zero1", 1, 0, 8, true, "none"},   //
    Layout{1, 2, 1, "zero2", 1, 1, 8, false, "none"},  //
    Layout{1, 2, 1, "zero3", 0, 0, 8, false, "none"},  //
    Layout{1, 2, 1, "zero3", 1, 0, 8, true, "none"},   //
    Layout{1, 2, 1, "zero3", 2, 1, 8, false, "full"},  //
    Layout{1, 4, 1, "zero3", 1, 0, 8, false, "full"},  //
    Layout{1, 4, 1, "zero1", 1, 1, 8, false, "full"},  //
    Layout{1, 4, 1, "zero2", 1, 0, 7, true, "none"},   //
    Layout{2, 1, 1, "none", 1, 0, 4, false, "none"},   //
    Layout{2, 1, 1, "zero3", 1, 0, 6, false, "none"},  //
    Layout{2, 2, 1, "zero3", 1, 0, 8, false, "none"},  //
    Layout{2, 2, 1, "zero2", 2, 1, 8, true, "none"},   //
    Layout{1, 1, 2, "none", 1, 0, 2, false, "none"},   //
    Layout{1, 2, 2, "zero3", 1, 0, 4, true, "none"},   //
    Layout{1, 2, 2, "zero3", 2, 1, 4, false, "full"},  //
    Layout{2, 1, 2, "zero1", 0, 0, 4, false, "none"},  //
    Layout{2, 2, 2, "zero3", 1, 0, 8, false, "full"},  //
    Layout{1, 2, 2, "zero3", 1, 0, 4, true, "none", true},  Layout{1, 2, 2, "zero3", 2, 1, 8, false, "full", true},
    Layout{2, 1, 2, "zero1", 1, 0, 4, false, "none", true},
};

std::string recipe_of(const Layout& l) {
    return fmt::format(
        "[model]\nname = \"llama3\"\ndim = 16\nn_layers = 3\nn_heads = 4\nn_kv_heads = 2\nhead_dim = 4\nffn_dim = 24\nvocab_size "
        "= 30\n"
        "tie_embeddings = {}\n[training]\nseq_len = 8\nlocal_batch_size = 1\nglobal_batch_size = {}\n[parallelism]\n"
        "data_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\ntensor_parallel_degree = {}\nprefetch = {}\n"
        "enable_async_tensor_parallel = {}\n"
        "[partition]\npreset = \"{}\"\n[validation]\nenable = {}\n[activation_checkpoint]\nmode = \"{}\"\n",
        l.tied, l.global_batch, l.replicate, l.shard, l.tensor, l.prefetch, l.async_tensor_parallel, l.preset, l.validation,
        l.recompute);
}

ir::Program program_of(const Layout& l) {
    return compile::compile(lockstep::testing::plain(compile::Recipe::from_text(recipe_of(l), "test")),
                            {kernels::reference_catalog(), "", {}})
        .programs[0];
}

std::string verdict(const std::optional<std::string>& machine) { return machine ? "illegal: " + *machine : "legal"; }
std::string verdict(const std::optional<check::Refusal>& checker) {
    return checker ? fmt::format("illegal: {}: {}", checker->reason, checker->message) : "legal";
}

TEST(CheckAgainstMachine, CompiledProgramsAreLegal) {
    for (const Layout& l : kLayouts) {
        const ir::Program program = program_of(l);
        const std::vector<const ir::Program*> ranks(static_cast<size_t>(program.mesh.ranks()), &program);
        EXPECT_EQ(verdict(run_ranks(ranks)), "legal") << recipe_of(l);
        EXPECT_EQ(verdict(check::prove(ranks)), "legal") << recipe_of(l);
    }
}

// A collective that waits holds a place, such as processors of a GPU. With a place for each queue no rank stands still. With one
// place for all, a rank waits in one queue for another that waits in another queue.
TEST(CheckAgainstMachine, EachQueueNeedsAPlace) {
    int stood = 0;
    for (const Layout& l : kLayouts) {
        const ir::Program program = program_of(l);
        const std::vector<const ir::Program*> ranks(static_cast<size_t>(program.mesh.ranks()), &program);
        EXPECT_EQ(verdict(run_ranks(ranks, static_cast<int>(kStepQueues))), "legal") << recipe_of(l);
        const std::optional<std::string> one_place = run_ranks(ranks, 1);
        EXPECT_TRUE(one_place.value_or("deadlock").starts_with("deadlock")) << *one_place;
        stood += one_place.has_value();
    }
    EXPECT_GT(stood, 0);
}

TEST(CheckAgainstMachine, SameVerdictOnDamagedPrograms) {
    std::vector<ir::Program> bases;
    for (const Layout& l : kLayouts) bases.push_back(program_of(l));
    std::array<std::array<int, 2>, kMutations> count = {};  // legal, illegal
    for (int seed = 0; seed < kMutants; ++seed) {
        std::mt19937_64 random(static_cast<uint64_t>(seed));
        const size_t base = static_cast<size_t>(seed) % bases.size();
        int kind = 0;
        std::optional<Mutant> found;
        while (!found) {
            kind = static_cast<int>(random() % kMutations);
            found = mutate(bases[base], static_cast<Mutation>(kind), random);
        }
        const Mutant& mutant = *found;
        const std::vector<const ir::Program*> ranks = mutant.ranks(bases[base]);
        const std::optional<std::string> machine = run_ranks(ranks);
        const std::optional<check::Refusal> checker = check::prove(ranks);
        ++count[static_cast<size_t>(kind)][machine.has_value() ? 1 : 0];
        EXPECT_EQ(machine.has_value(), checker.has_value())
            << "seed " << seed << ": " << name_of(static_cast<Mutation>(kind)) << ": " << mutant.text << "\n  machine "
            << verdict(machine) << "\n  checker " << verdict(checker) << "\n"
            << recipe_of(kLayouts[base]);
    }
    fmt::print("{:<18}{:>8}{:>8}\n", "damage", "legal", "illegal");
    for (int k = 0; k < kMutations; ++k) {
        const auto& [legal, illegal] = count[static_cast<size_t>(k)];
        fmt::print("{:<18}{:>8}{:>8}\n", name_of(static_cast<Mutation>(k)), legal, illegal);
    }
}

}  // namespace
}  // namespace lockstep::check_test
