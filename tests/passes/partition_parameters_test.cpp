#include "passes/partition_parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/round.h"
#include "ir/sources.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

ir::Program partitioned(const Settings& settings) { return program_after("partition_parameters", settings); }
Settings on_two(const char* preset) { return {{"parallelism.data_parallel_shard_degree", "2"}, {"partition.preset", preset}}; }

// The collectives of a unit's routines, by routine; "-" where the routine does not exist.
std::string form(const ir::Program& p) {
    std::string text;
    for (const char* verb : {"gather", "reduce_micro", "reduce_step", "update"}) {
        const std::string name = std::string(verb) + ".layer";
        text += std::string(verb) + ":";
        if (!p.routine(name)) text += " -";
        else
            for (const std::string& c : collectives(p, name)) text += " " + c;
        text += "\n";
    }
    return text;
}

TEST(PartitionParameters, FullySharded) {
    EXPECT_EQ(form(partitioned(on_two("zero3"))),
              "gather: all_gather(weights0) over dp_shard\nreduce_micro: reduce_scatter(local0) over "
              "dp_shard\nreduce_step:\nupdate:\n");
}

TEST(PartitionParameters, GradientsAndStatesSharded) {
    EXPECT_EQ(
        form(partitioned(on_two("zero2"))),
        "gather: -\nreduce_micro: reduce_scatter(local0) over dp_shard\nreduce_step:\nupdate: all_gather(new0) over dp_shard\n");
}

TEST(PartitionParameters, StatesSharded) {
    EXPECT_EQ(form(partitioned(on_two("zero1"))),
              "gather: -\nreduce_micro: -\nreduce_step: reduce_scatter(gradients0) over dp_shard\nupdate: all_gather(new0) over "
              "dp_shard\n");
}

TEST(PartitionParameters, Replicated) {
    EXPECT_EQ(form(partitioned(on_two("none"))),
              "gather: -\nreduce_micro: -\nreduce_step: all_reduce(gradients0) over dp_shard\nupdate:\n");
}

TEST(PartitionParameters, Hybrid) {
    const ir::Program p =
        partitioned({{"parallelism.data_parallel_shard_degree", "2"}, {"parallelism.data_parallel_replicate_degree", "2"}});
    EXPECT_EQ(form(p),
              "gather: all_gather(weights0) over dp_shard\nreduce_micro: reduce_scatter(local0) over dp_shard\n"
              "reduce_step: all_reduce(gradients0) over dp_replicate\nupdate:\n");
}

TEST(PartitionParameters, ThreeSplitsNested) {
    const ir::Program p = partitioned({{"parallelism.data_parallel_shard_degree", "4"},
                                       {"parallelism.data_parallel_replicate_degree", "2"},
                                       {"partition.weights", "2"},
                                       {"partition.gradients", "shard"},
                                       {"partition.optimizer", "world"}});
    EXPECT_EQ(
        form(p),
        "gather: all_gather(weights0) over dp_shard:(2)2\nreduce_micro: reduce_scatter(local0) over dp_shard:(2)2 "
        "reduce_scatter(near0.1) over "
        "dp_shard:(1)2\n"
        "reduce_step: reduce_scatter(gradients0) over dp_replicate\nupdate: all_gather(new0) over dp_shard:(1)2,dp_replicate\n");
    EXPECT_EQ(op_line(p, "update.layer", "own0").substr(0, 72),
              "own0: f32[flat0/dp_shard:(2)2/dp_shard:(1)2/dp_replicate] = slice(weight");
}

// What stays float32 beside bfloat16 is no part of gathers and reductions of each microbatch: every data rank has it whole.
TEST(PartitionParameters, WideNormsAreAUnitOfTheirOwn) {
    const Settings settings = {{"training.mixed_precision_param", "bfloat16"},
                               {"training.mixed_precision_norm", "float32"},
                               {"training.mixed_precision_reduce", "bfloat16"},
                               {"parallelism.data_parallel_shard_degree", "2"},
                               {"parallelism.tensor_parallel_degree", "2"}};
    const ir::Program p = partitioned(settings);
    std::vector<std::string> units, members;
    for (const ir::Unit& u : p.units) units.push_back(u.name);
    EXPECT_EQ(units, (std::vector<std::string>{"embed", "layer", "layer.wide", "head", "head.wide"}));
    const ir::Unit& norms = *p.unit("layer.wide");
    for (const ir::Member& m : norms.segments.at(0).members) members.push_back(m.param);
    EXPECT_EQ(norms.segments.size(), 1u);
    EXPECT_EQ(members, (std::vector<std::string>{"attention_norm", "ffn_norm"}));
    EXPECT_EQ(norms.block, "layer");
    EXPECT_FALSE(norms.is_gathered());
    EXPECT_TRUE(norms.weights.empty() && norms.gradients.empty() && norms.optimizer.empty());
    EXPECT_EQ(p.routine("gather.layer.wide"), nullptr);
    EXPECT_EQ(p.routine("reduce_micro.layer.wide"), nullptr);
    const ir::Routine& reduce = *p.routine("reduce_step.layer.wide");
    const auto is_reduction = [](const ir::Op& op) { return op.kind == "all_reduce"; };
    EXPECT_EQ(std::count_if(reduce.ops.begin(), reduce.ops.end(), is_reduction), 1);
    EXPECT_TRUE(std::none_of(reduce.ops.begin(), reduce.ops.end(), [](const ir::Op& op) { return op.kind == "cast"; }));
    const ir::Routine& forward = *p.routine("layer.forward");
    EXPECT_EQ(forward.ports[forward.tensors[forward.find("attention_norm")].port].name, "params.layer.wide");
    EXPECT_EQ(forward.ports[forward.tensors[forward.find("wq.wk.wv")].port].name, "params.layer");
}

TEST(PartitionParameters, SegmentsArePaddedAndMembersAligned) {
    for (const NamedSettings& s : sample_settings()) {
        const ir::Program p = partitioned(s.settings);
        for (const ir::Unit& u : p.units) {
            for (const ir::Segment& seg : u.segments) {
                EXPECT_EQ(seg.padded % (16 * p.mesh.size(u.optimizer)), 0) << s.name;
                for (const ir::Member& m : seg.members) {
                    // Read as one with w1, wq or bq: pack_products_test.cpp.
                    if (std::set<std::string>{"w3", "wk", "wv", "bk", "bv"}.contains(m.param)) continue;
                    EXPECT_EQ(m.begin * bytes_of(p.param(m.param)->dtype) % kAlignmentBytes, 0) << s.name << " " << m.param;
                    EXPECT_EQ(m.count, ir::local_elements(p.mesh, *p.param(m.param)));
                }
            }
        }
    }
}

TEST(PartitionParameters, PaddingOfGradientsIsClearedBeforeItIsReduced) {
    const ir::Program p =
        partitioned({{"parallelism.tensor_parallel_degree", "4"}, {"parallelism.data_parallel_shard_degree", "2"}});
    EXPECT_EQ(op_line(p, "reduce_micro.layer", "local1"),
              "local1 = zero_padding(local1) {ranges=[8 16 24 32]} kernel reference.zero_padding");
    EXPECT_EQ(op_line(p, "reduce_micro.layer", "local2"), "");  // wk and wv fill their segment
    EXPECT_EQ(op_line(partitioned(on_two("none")), "reduce_step.layer", "gradients1").substr(0, 37),
              "gradients1 = zero_padding(gradients1)");
}

TEST(PartitionParameters, EachElementIsCountedByOneOwner) {
    for (const NamedSettings& s : sample_settings()) {
        const ir::Program p = partitioned(s.settings);
        for (const ir::Unit& u : p.units) {
            const ir::Routine& r = *p.routine("stats." + u.name);
            size_t segment = 0;
            for (const ir::Op& op : r.ops) {
                if (op.kind != "sum_squares") continue;
                const auto& count_if = std::get<std::vector<int64_t>>(op.attrs.at("count_if"));
                const ir::Segment& seg = u.segments[segment++];
                int64_t owners = 0;
                for (int64_t rank = 0; rank < p.mesh.ranks(); ++rank) {
                    owners += std::all_of(count_if.begin(), count_if.end(),
                                          [&](int64_t a) { return p.mesh.coordinate(rank, static_cast<int>(a)) == 0; });
                }
                EXPECT_EQ(owners, p.mesh.size(mesh::unite(u.optimizer, seg.shards))) << s.name;  // one a shard
            }
            EXPECT_EQ(segment, u.segments.size());
        }
    }
}

TEST(PartitionParameters, NormsDoNotDecay) {
    const ir::Program p = partitioned({});
    for (const ir::Unit& u : p.units) {
        const ir::Routine& r = *p.routine("update." + u.name);
        size_t segment = 0;
        for (const ir::Op& op : r.ops) {
            EXPECT_EQ(op.kind, "adamw");
            EXPECT_EQ(op.number("weight_decay"), u.segments[segment++].decay ? 0.1 : 0.0);
        }
    }
    for (const ir::Parameter& param : p.params) EXPECT_EQ(param.decay, param.dims.size() > 1) << param.key;
}

TEST(PartitionParameters, ATiedTableBelongsToTheEmbedding) {
    const ir::Program p = partitioned({{"model.tie_embeddings", "1"}});
    EXPECT_EQ(p.unit("head")->segments.size(), 1u);  // the norm
    const ir::Routine& loss = *p.routine("head.loss");
    EXPECT_EQ(loss.ports[loss.port("params.embed")].unit, "embed");
    EXPECT_EQ(loss.ports[loss.port("gradients.embed.shared")].unit, "embed");
}

TEST(PartitionParameters, ScalarsAreReducedOnceOverTheWorld) {
    const ir::Program p =
        partitioned({{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.data_parallel_shard_degree", "2"}});
    EXPECT_EQ(collectives(p, "stats.all"), (Strings{"all_reduce(norm2) over dp_shard,tp"}));
    EXPECT_EQ(op_line(p, "stats.all", "loss.owned").substr(0, 70),
              "loss.owned: f64[] partial sum dp_shard,tp = owned(loss_sum) {count_if=");
}

// Parameters that a data sub-axis shards, as it will an expert's, are a unit of their own, split over the other data sub-axes.
TEST(PartitionParameters, UnitsAreSplitOverTheAxesThatDoNotShardTheirParameters) {
    ir::Program p = program_after("assign_stages", {{"parallelism.data_parallel_shard_degree", "2"},
                                                    {"parallelism.data_parallel_replicate_degree", "2"},
                                                    {"parallelism.tensor_parallel_degree", "2"},
                                                    {"partition.optimizer", "world"}});
    const ir::AxisList shard = p.mesh.whole(mesh::Axis::dp_shard), replicate = p.mesh.whole(mesh::Axis::dp_replicate);
    std::vector<std::string> wide;
    for (ir::Parameter& param : p.params) {
        for (size_t d = 0; d < param.dims.size(); ++d) {
            if (param.dims[d].role != ir::DimRole::Ffn) continue;
            param.placement.dims[d] = mesh::join(shard, param.placement.dims[d]);
            wide.push_back(param.key);
        }
    }
    ASSERT_EQ(wide.size(), 3u);  // gate, up, down
    for (ir::Routine& r : p.routines) {
        for (ir::Tensor& t : r.tensors) {
            const bool gradient = t.port >= 0 && r.ports[static_cast<size_t>(t.port)].kind == ir::PortKind::Gradients;
            if (gradient && std::count(wide.begin(), wide.end(), ir::sources_of(t)[0]) > 0)
                t.placement.partial = mesh::subtract(t.placement.partial, shard);
        }
    }
    passes::PartitionOptions options;
    options.weights = options.gradients = 2, options.states = 4;
    const ir::Program out = passes::partition_parameters(std::move(p), options, kernels::reference_catalog());

    const ir::Unit &layer = *out.unit("layer"), &own = *out.unit("layer.dp_shard");
    EXPECT_EQ(layer.weights, shard);
    EXPECT_EQ(layer.optimizer, mesh::join(shard, replicate));
    EXPECT_TRUE(own.weights.empty());
    EXPECT_TRUE(own.gradients.empty());
    EXPECT_EQ(own.optimizer, replicate);
    ASSERT_EQ(own.segments.size(), 1u);
    EXPECT_EQ(own.segments[0].members.size(), 3u);
    EXPECT_EQ(own.segments[0].grad_partial, replicate);
    EXPECT_FALSE(own.is_gathered());
    EXPECT_EQ(collectives(out, "reduce_step.layer.dp_shard"), (Strings{"reduce_scatter(gradients0) over dp_replicate"}));
    EXPECT_EQ(collectives(out, "update.layer.dp_shard"), (Strings{"all_gather(new0) over dp_replicate"}));
    const ir::Routine& forward = *out.routine("layer.forward");
    EXPECT_GE(forward.port("params.layer"), 0);
    EXPECT_GE(forward.port("params.layer.dp_shard"), 0);
}

// Muon's matrices are gathered over data ranks once a segment, over tensor-parallel ranks one by one, and sliced again.
TEST(PartitionParameters, MuonGathersWholeMatrices) {
    const ir::Program p = program_after("partition_parameters", {{"optimizer.name", "Muon"},
                                                                 {"parallelism.data_parallel_shard_degree", "2"},
                                                                 {"parallelism.tensor_parallel_degree", "2"}});
    const ir::Unit& layer = *p.unit("layer");
    size_t matrices = 0, parameters = 0;
    for (const ir::Segment& s : layer.segments) (s.rule == 0 ? matrices : parameters) += s.members.size();
    EXPECT_EQ(matrices, 7u);  // queries, keys, values, output; gate, up, down
    EXPECT_EQ(parameters, 2u);
    const Strings all = collectives(p, "update.layer");
    EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const auto& c) { return c.ends_with("over tp"); }), 7);
    EXPECT_EQ(std::count_if(all.begin(), all.end(), [](const auto& c) { return c.starts_with("all_gather(momentum"); }),
              std::count_if(layer.segments.begin(), layer.segments.end(), [](const auto& s) { return s.rule == 0; }));
    for (const char* unit : {"embed", "head"}) EXPECT_EQ(collectives(p, std::string("update.") + unit), Strings{}) << unit;
}

}  // namespace
}  // namespace lockstep::testing
