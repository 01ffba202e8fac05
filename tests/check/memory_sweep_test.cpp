// Finished programs with one address, size or name damaged at random, against a shadow of the executor that runs them on tags:
// `check` accepts none that computes something else, and refuses none that computes the same. LOCKSTEP_MEMORY_DAMAGES sets how
// many of each kind are tried.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/parallel.h"
#include "check/check.h"
#include "compile/compile.h"
#include "kernels/kernel.h"
#include "memory_damages.h"
#include "shadow_machine.h"
#include "tests/base/from_environment.h"
#include "tests/compile/recipes.h"

namespace lockstep::check_test {
namespace {

using lockstep::testing::Backend;
using lockstep::testing::Settings;

int damages_of_a_kind() { return static_cast<int>(lockstep::testing::from_environment("LOCKSTEP_MEMORY_DAMAGES", 40)); }

struct Base {
    std::string name;
    Settings settings;
    Backend backend = Backend::Cpu;
    std::vector<ir::EntryKind> entries = {};
};

const std::vector<Base>& bases() {
    const std::string tp = "parallelism.tensor_parallel_degree", shard = "parallelism.data_parallel_shard_degree",
                      preset = "partition.preset", batch = "training.global_batch_size", recompute = "activation_checkpoint.mode",
                      param = "training.mixed_precision_param", pp = "parallelism.pipeline_parallel_degree";
    const std::pair<std::string, std::string> eval = {"validation.enable", "true"}, saving = {"checkpoint.enable", "true"},
                                              beside = {"checkpoint.async_mode", "async"};
    static const std::vector<Base> all = {
        {"llama", {{shard, "2"}, {tp, "2"}, {batch, "4"}, {recompute, "full"}, eval, saving, beside}},
        {"llama zero2, tied, narrow sums",
         {{shard, "2"},
          {preset, "zero2"},
          {batch, "4"},
          {param, "bfloat16"},
          {"training.mixed_precision_reduce", "bfloat16"},
          {"model.tie_embeddings", "1"},
          {"model.vocab_size", "15"},
          eval,
          saving,
          beside}},
        {"llama zero1, reference, bfloat16", {{shard, "2"}, {preset, "zero1"}, {param, "bfloat16"}, eval}, Backend::Reference},
        {"muon", {{"optimizer.name", "Muon"}, {shard, "2"}, {batch, "4"}, saving, beside}},
        {"sgd on one rank", {{"optimizer.name", "SGD"}, {"optimizer.momentum", "0.9"}, eval}, Backend::Reference},
        {"gpt2 with dropout",
         {{"model.name", "gpt2"}, {"model.dropout", "0.1"}, {shard, "2"}, {recompute, "full"}, {batch, "4"}, eval}},
        {"gpt2 bfloat16, wide stream and norms",
         {{"model.name", "gpt2"},
          {param, "bfloat16"},
          {"training.mixed_precision_norm", "float32"},
          {"training.fp32_residual_connection", "true"},
          {shard, "2"},
          {recompute, "full"}}},
        {"pipeline, interleaved and tied",
         {{pp, "2"},
          {shard, "2"},
          {batch, "8"},
          {"model.n_layers", "4"},
          {"model.tie_embeddings", "1"},
          {"parallelism.pipeline_parallel_schedule", "Interleaved1F1B"},
          eval}},
        {"pipeline without bubbles",
         {{pp, "3"},
          {batch, "3"},
          {"model.n_layers", "5"},
          {recompute, "full"},
          {"parallelism.pipeline_parallel_schedule", "ZB-H1"}}},
        {"asynchronous tensor parallelism",
         {{tp, "4"}, {"parallelism.enable_async_tensor_parallel", "true"}, {recompute, "selective"}, {param, "bfloat16"}, eval}},
        {"generation",
         {{tp, "2"}, {"training.fuse_loss", "false"}},
         Backend::Cpu,
         {ir::EntryKind::Prefill, ir::EntryKind::Decode}},
    };
    return all;
}

compile::Compiled compiled(const Base& base) {
    compile::CompileOptions options;
    options.catalog = base.backend == Backend::Reference ? kernels::reference_catalog() : kernels::cpu_catalog(1);
    options.entries = base.entries;
    return compile::compile(lockstep::testing::small_recipe(base.settings), options);
}

bool same(const Shadow& a, const Shadow& b) {
    return a.broken.empty() && b.broken.empty() && b.spoilt == 0 && a.observed == b.observed;
}

// Empty, or in which order the program computes something else than one with the meaning of `text` and room for everything.
std::string wrong(const ir::Program& program, const ir::Program& text) {
    const Shadow right = run_shadow(roomy(text), Order::OfTheList);
    if (!right.broken.empty() || right.spoilt > 0) return "the text itself: " + right.broken;
    for (int order = 0; order < kOrders; ++order) {
        const Shadow here = run_shadow(program, static_cast<Order>(order));
        if (!same(here, right)) return fmt::format("order {} {}", order, here.broken);
    }
    return "";
}

TEST(CheckMemorySweep, CompiledProgramsComputeWhatTheirTextSays) {
    for (const Base& base : bases()) {
        const compile::Compiled c = compiled(base);
        const std::optional<check::Refusal> refusal = check::prove(c.of_ranks());
        EXPECT_FALSE(refusal.has_value()) << base.name << ": " << refusal->message;
        for (const ir::Program& p : c.programs) EXPECT_EQ(wrong(p, p), "") << base.name;
    }
}

// Of the harmless, the proof refuses these: its laws hold whether or not somebody reads what they protect.
constexpr std::array<std::string_view, 11> kStrict = {
    "which it may only read",                               // a port is written after its last reader
    "overwrites the state",                                 // which an update writes anew before anybody reads it
    "inside one call",                                      // a scratch lies over an operand or result, and no temporary does
    "is freed but not held",                                // bytes in which nothing stands
    "does not lie where its unit, state or buffer has it",  // and nobody reads it there: a free
    "is not where port",                                    // all slices of a port that became longer
    "its workspace lies over",                              // the op makes what nobody needs
    "lies over its operand",                                // the op makes what nobody needs
    "whose bytes hold",                                     // the op makes what nobody needs
    "is read after its bytes were given to",                // another buffer has the same bytes, and holds the same
    "adds to",                                              // every call that adds happens to be the first
};

struct Count {
    int tries = 0, wrong = 0, accepted_and_wrong = 0, harmless_refused = 0, by_other_laws = 0;
};

TEST(CheckMemorySweep, NoDamagedProgramIsAcceptedAndWrong) {
    std::vector<compile::Compiled> programs;
    for (const Base& base : bases()) programs.push_back(compiled(base));
    const int per_kind = damages_of_a_kind();
    struct Result {
        bool found = false, is_wrong = false;
        std::string text, refused, reason, why;
    };
    std::vector<Result> results(static_cast<size_t>(kMemoryDamages * per_kind));
    parallel_for(results.size(), [&](size_t i) {
        const auto damage = static_cast<MemoryDamage>(i % kMemoryDamages);
        Result& r = results[i];
        for (uint64_t attempt = 0; attempt < 200 && !r.found; ++attempt) {
            std::mt19937_64 random(i * 1000 + attempt);
            const size_t base = static_cast<size_t>(random() % programs.size());
            const compile::Compiled& c = programs[base];
            const size_t stage = static_cast<size_t>(random() % c.programs.size());
            ir::Program damaged = c.programs[stage];
            const std::string done = apply(damaged, damage, random);
            if (done.empty()) continue;
            r.found = true;
            r.text = fmt::format("{} ({}): {}", bases()[base].name, stage, done);
            std::vector<const ir::Program*> ranks = c.of_ranks();
            for (const ir::Program*& p : ranks) {
                if (p == &c.programs[stage]) p = &damaged;
            }
            if (const auto refusal = check::prove(ranks)) r.refused = refusal->message, r.reason = refusal->reason;
            r.why = wrong(damaged, changes_text(damage) ? damaged : c.programs[stage]);
            r.is_wrong = !r.why.empty();
        }
    });
    std::map<MemoryDamage, Count> counts;
    const bool tells = std::getenv("LOCKSTEP_MEMORY_DAMAGES") != nullptr;
    for (size_t i = 0; i < results.size(); ++i) {
        const auto damage = static_cast<MemoryDamage>(i % kMemoryDamages);
        const Result& r = results[i];
        if (!r.found) continue;
        Count& c = counts[damage];
        ++c.tries;
        c.wrong += r.is_wrong;
        if (r.is_wrong && r.refused.empty()) ++c.accepted_and_wrong;
        EXPECT_FALSE(r.is_wrong && r.refused.empty()) << "accepted and wrong: " << r.text << "\n  " << r.why;
        if (r.is_wrong || r.refused.empty()) continue;
        if (r.reason == "memory") {
            ++c.harmless_refused;
            EXPECT_TRUE(
                std::any_of(kStrict.begin(), kStrict.end(), [&](auto law) { return r.refused.find(law) != std::string::npos; }))
                << "harmless and refused: " << r.text << "\n  " << r.refused;
        } else {
            ++c.by_other_laws;
        }
        if (tells) fmt::print("harmless and refused: {}: {}\n  {}: {}\n", name_of(damage), r.text, r.reason, r.refused);
    }
    fmt::print("{:<22}{:>7}{:>8}{:>19}{:>18}{:>25}{:>12}\n", "damage", "tries", "wrong", "accepted and wrong", "harmless",
               "refused by memory proof", "other laws");
    for (const auto& [damage, c] : counts) {
        fmt::print("{:<22}{:>7}{:>8}{:>19}{:>18}{:>25}{:>12}\n", name_of(damage), c.tries, c.wrong, c.accepted_and_wrong,
                   c.tries - c.wrong, c.harmless_refused, c.by_other_laws);
        EXPECT_GE(c.tries, per_kind * 9 / 10) << name_of(damage);
    }
}

}  // namespace
}  // namespace lockstep::check_test
