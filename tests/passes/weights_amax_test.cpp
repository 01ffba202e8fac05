// How the largest sizes of weights are found, and codes made of them: on which ranks, once an entry, and over what they cross.
#include "passes/weights_amax.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/float8.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "passes/select_kernels.h"
#include "tests/compile/recipes.h"
#include "tests/ops/interpreter.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

// The recipe of all tests here, with more settings.
Settings converted(const std::vector<Settings>& more) {
    Settings out = {{"model.converters", "quantize.linear.float8"},
                    {"model.dim", "16"},
                    {"model.head_dim", "16"},
                    {"model.ffn_dim", "32"},
                    {"model.n_layers", "2"},
                    {"training.mixed_precision_param", "bfloat16"},
                    {"parallelism.data_parallel_shard_degree", "4"}};
    for (const Settings& s : more) out.insert(out.end(), s.begin(), s.end());
    return out;
}
const Settings kGathers = {{"quantize.linear.float8.enable_fsdp_float8_all_gather", "true"}};
Settings preset(const char* name) { return {{"partition.preset", name}}; }

Strings kinds(const ir::Program& p, const std::string& routine) {
    Strings out;
    if (const ir::Routine* r = p.routine(routine)) {
        for (const ir::Op& op : r->ops) out.push_back(op.kind);
    }
    return out;
}
const Strings kFound = {"member_amax", "member_amax", "member_amax", "member_amax", "all_reduce"};

TEST(WeightsAmax, OfShardsIsReducedOverTheirRanks) {
    const ir::Program p =
        program_after("partition_parameters", converted({kGathers, {{"parallelism.tensor_parallel_degree", "2"}}}));
    EXPECT_EQ(kinds(p, "fetch.layer.f8"), kFound);
    EXPECT_EQ(collectives(p, "fetch.layer.f8").at(0), "all_reduce(own.amax0) over dp_shard,tp");
    EXPECT_EQ(kinds(p, "gather.layer.f8"), (Strings{"member_float8", "all_gather"}));
    EXPECT_EQ(type_of(p, "gather.layer.f8", "full0").substr(0, 14), "f8e4m3[flat0]");
    EXPECT_TRUE(kinds(p, "fetch.layer").empty());  // norms
    const ir::Unit &codes = *p.unit("layer.f8"), &norms = *p.unit("layer");
    EXPECT_EQ(codes.compute, Dtype::F8E4M3);
    EXPECT_EQ(codes.storage, Dtype::F32);
    EXPECT_EQ(norms.compute, Dtype::BF16);
}

// Without codes on the way, the unit is as it was, and each rank looks at the shard that it has.
TEST(WeightsAmax, OfWeightsThatAreCastWhereTheyAreReadIsOfWhatIsRead) {
    const ir::Program p = program_after("partition_parameters", converted({}));
    EXPECT_EQ(kinds(p, "fetch.layer"), kFound);
    EXPECT_NE(op_line(p, "fetch.layer", "own.amax0").find("rounded='bf16'"), std::string::npos);
    EXPECT_EQ(p.unit("layer.f8"), nullptr);
    // DDP: weights are whole, in bfloat16, on every rank.
    const ir::Program whole = program_after("partition_parameters", converted({preset("ddp")}));
    EXPECT_EQ(kinds(whole, "fetch.layer"), Strings(4, "member_amax"));
    EXPECT_EQ(op_line(whole, "fetch.layer", "amax0").find("rounded"), std::string::npos);
}

// Where every rank has all weights, or all of its node, codes are made once an entry.
TEST(WeightsAmax, CopiesAreOfCodes) {
    for (const char* name : {"ddp", "zero1", "zero2"}) {
        const ir::Program p = program_after("partition_parameters", converted({kGathers, preset(name)}));
        const ir::Unit& u = *p.unit("layer.f8");
        EXPECT_TRUE(u.is_fetched() || u.optimizer.empty()) << name;
        EXPECT_TRUE(u.secondary.empty());
        EXPECT_FALSE(u.is_fetched() && u.is_gathered()) << name;
        Strings expected = kFound;
        if (u.is_fetched()) expected.insert(expected.end(), {"member_float8", "all_gather"});
        if (u.optimizer.empty()) expected.pop_back();
        EXPECT_EQ(kinds(p, "fetch.layer.f8"), expected) << name;
        EXPECT_EQ(kinds(p, "update.layer.f8"), Strings{"adamw"}) << name << ": nothing is gathered behind the update";
    }
    const ir::Program near =
        program_after("partition_parameters", converted({kGathers, preset("hpz"), {{"cluster.ranks_per_node", "2"}}}));
    EXPECT_EQ(kinds(near, "gather.layer.f8"), Strings{"all_gather"});
    EXPECT_EQ(near.states[static_cast<size_t>(near.state(ir::StateRole::Secondary, "layer.f8"))].dtype, Dtype::F8E4M3);
}

// Once for all microbatches of a step, before the first gather; again in an evaluation.
TEST(WeightsAmax, AreFoundOnceAnEntry) {
    const ir::Program p =
        program_after("schedule", converted({kGathers, {{"validation.enable", "true"}, {"training.global_batch_size", "24"}}}));
    for (const ir::EntryKind entry : {ir::EntryKind::Train, ir::EntryKind::Eval}) {
        const Strings all = calls(p, entry);
        const auto of = [&](const std::string& name) {
            return std::count_if(all.begin(), all.end(), [&](const std::string& c) { return c.starts_with(name); });
        };
        EXPECT_EQ(of("fetch.layer.f8[0]"), 1);
        EXPECT_EQ(of("fetch.layer.f8[1]"), 1);
        EXPECT_GT(of("gather.layer.f8[0]"), 1);
        EXPECT_LT(position(p, entry, "fetch.layer.f8[0]@0"), position(p, entry, "gather.layer.f8[0]@0"));
    }
}

// Of a layer of Llama 3 8B: 218,103,808 parameters in a byte each, and two norms of 4,096 in two.
TEST(WeightsAmax, ALayerOf8BIsGatheredInHalfTheBytes) {
    const auto program = [](const Settings& more) {
        compile::Recipe r;
        for (const auto& [key, value] : Settings{{"model.name", "llama3"},
                                                 {"model.flavor", "8B"},
                                                 {"model.n_layers", "2"},
                                                 {"training.dataset", "synthetic"},
                                                 {"training.seq_len", "1024"},
                                                 {"training.mixed_precision_param", "bfloat16"},
                                                 {"parallelism.data_parallel_shard_degree", "8"}})
            r.set(key, value);
        for (const auto& [key, value] : more) r.set(key, value);
        return compile_recipe(r, Backend::Cpu).programs.at(0);
    };
    const auto gathered_bytes = [](const ir::Program& p) {
        int64_t bytes = 0;
        for (const ir::Routine& r : p.routines) {
            if (r.kind != ir::RoutineKind::Gather || !r.unit.starts_with("layer")) continue;
            for (const ir::Op& op : r.ops) {
                if (!ir::is_collective(op, mesh::Collective::AllGather)) continue;
                for (const ir::TensorId t : op.out) bytes += ir::local_bytes(p.mesh, r, r.tensors[static_cast<size_t>(t)]);
            }
        }
        return bytes;
    };
    const Settings converted = {{"model.converters", "quantize.linear.float8"}, kGathers[0]};
    EXPECT_EQ(gathered_bytes(program({})), 436224000);
    EXPECT_EQ(gathered_bytes(program(converted)), 218120192);
    // With ZeRO-1 a rank has all weights in a byte each through a step.
    Settings resident = converted;
    resident.emplace_back("partition.preset", "zero1");
    const ir::Program p = program(resident);
    const ir::StateId copy = p.state(ir::StateRole::Secondary, "layer.f8");
    int64_t bytes = 0;
    for (const ir::Buffer& b : p.buffers) bytes += b.state == copy ? b.bytes : 0;
    EXPECT_EQ(bytes, 2 * 218103808);
}

// On four ranks with a shard each: the largest size of each group, and codes as one rank makes them.
TEST(WeightsAmax, RanksLookAtTheirShards) {
    const ir::Program p = ir::parse(R"(mesh dp_replicate=1 dp_shard=4 cp=1 tp=1 dp_shard:(1)4
block b x1
routine find block b kind forward entry train chunks 1 scratch 0
  dims flat0@flat=64
  port w value read
    w: f32[flat0/dp_shard]
  port y value write
    a: f32[] partial max dp_shard
    b: f32[] partial max dp_shard
  a = member_amax(w) {ranges=[0 3 40]}
  b = member_amax(w) {ranges=[0 41 50]}
routine cast block b kind forward entry train chunks 1 scratch 0
  dims flat0@flat=64
  port w value read
    w: f32[flat0/dp_shard]
    a: f32[]
    b: f32[]
  port q value write
    q: f8e4m3[flat0/dp_shard]
  q = member_float8(w, a, b) {ranges=[0 3 40 1 41 50]}
)");
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<double> w(64);
    for (double& x : w) x = static_cast<double>(normal(random));
    double a = 0, b = 0;
    for (size_t i = 3; i < 40; ++i) a = std::max(a, std::abs(w[i]));
    for (size_t i = 41; i < 50; ++i) b = std::max(b, std::abs(w[i]));
    for (const ops::KernelCatalog& catalog : {kernels::cpu_catalog(3), kernels::reference_catalog()}) {
        ir::Routine find = p.routines[0], cast = p.routines[1];
        passes::select_kernels(p.mesh, find, catalog), passes::select_kernels(p.mesh, cast, catalog);
        double all_a = 0, all_b = 0;
        std::vector<double> q;
        for (int64_t rank = 0; rank < 4; ++rank) {
            const std::vector<double> shard(w.begin() + rank * 16, w.begin() + (rank + 1) * 16);
            Interpreter finds(p.mesh, find, rank, 3), casts(p.mesh, cast, rank, 3);
            finds.set("w", shard);
            finds.run();
            all_a = std::max(all_a, finds.get("a")[0]), all_b = std::max(all_b, finds.get("b")[0]);
            casts.set("w", shard), casts.set("a", {a}), casts.set("b", {b});
            casts.run();
            const std::vector<double> codes = casts.get("q");
            q.insert(q.end(), codes.begin(), codes.end());
        }
        EXPECT_EQ(all_a, a);
        EXPECT_EQ(all_b, b);
        for (size_t i = 0; i < q.size(); ++i) {
            const bool is_a = i >= 3 && i < 40, is_b = i >= 41 && i < 50;
            const float scale = is_a || is_b ? scale_of(is_a ? a : b, F8E4M3::kLargest, false) : 0;
            EXPECT_EQ(q[i], static_cast<double>(static_cast<float>(F8E4M3(static_cast<float>(w[i]) * scale)))) << i;
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
