// Every row of the table of collectives (mesh/collective.h) is known to the ops, the costs, the traffic and the simulator. The
// transports' part is Comm.ServesEveryKindOfTheTable.
#include <gtest/gtest.h>

#include "base/error.h"
#include "mesh/algorithms.h"
#include "mesh/ring.h"
#include "ops/builder.h"
#include "ops/cost.h"
#include "ops/rule.h"
#include "sim/engine.h"

namespace lockstep::testing {
namespace {

using mesh::Blocks;
using mesh::Collective;

TEST(CollectiveTable, HasARuleForEveryRowAndNoOther) {
    size_t rules = 0;
    for (const ops::OpRule& rule : ops::all_rules()) rules += rule.collective ? 1 : 0;
    EXPECT_EQ(rules, mesh::kCollectives.size());
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
        const ops::OpRule& rule = ops::rule(traits.name);
        EXPECT_TRUE(rule.collective) << traits.name;
        const auto has = [&](std::string_view key) {
            return std::any_of(rule.attrs.begin(), rule.attrs.end(), [&](const ops::Attribute& a) { return a.name == key; });
        };
        for (const mesh::Attr attr : {traits.attr, traits.other_attr})
            EXPECT_EQ(has(name_of(attr)), attr != mesh::Attr::None) << traits.name;
        EXPECT_EQ(has("gather"), traits.has_algorithm()) << traits.name;
        EXPECT_EQ(has("peer"), !traits.symmetric) << traits.name;
        EXPECT_EQ(mesh::collective_of(traits.name), traits.kind);
    }
}

TEST(CollectiveTable, AnUnknownNameThrows) {
    EXPECT_THROW(mesh::collective_of("transfer"), InternalError);
    EXPECT_FALSE(mesh::collective_named("slice"));
    ir::Op op;
    op.kind = "einsum";
    EXPECT_THROW(ir::collective_of(op), InternalError);
}

TEST(CollectiveTable, EveryRowHasCosts) {
    ops::CostTable rates;
    rates.bytes_per_s = {1e9};
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
        const bool moves = traits.kind != Collective::Wait;
        mesh::RingTraffic ring;
        ring.add(traits.kind, 4, 100);
        EXPECT_EQ(ring.bytes > 0, moves) << traits.name;
        EXPECT_EQ(ring.steps > 0, moves) << traits.name;
        const bool more = traits.gives == Blocks::Members || traits.takes == Blocks::Members;
        EXPECT_DOUBLE_EQ(ops::collective_cost(rates, traits.kind, 4, 1e6).time_s, (more ? 8 : 2) * 1e-3) << traits.name;
        rates.collectives = {{std::string(traits.name), 2, 1e6, 0.5, 0.25}};
        EXPECT_DOUBLE_EQ(ops::collective_cost(rates, traits.kind, 2, 1e6).time_s, 0.5) << traits.name;
        rates.collectives.clear();
    }
}

// Four ranks on two hosts; two of a message. From each host to the other, in blocks.
TEST(CollectiveTable, EveryRowHasBytes) {
    const std::map<Collective, std::pair<double, double>> expected = {
        {Collective::AllGather, {4, 4}},                                       // directly: two blocks to each of two
        {Collective::ReduceScatter, {4, 4}}, {Collective::AllReduce, {2, 2}},  // in slices of a quarter: there and back
        {Collective::AllToAll, {4, 4}},      {Collective::Broadcast, {0, 1}},  // from position 2
        {Collective::Permute, {1, 1}},                                         // by 1
        {Collective::Send, {1, 0}},          {Collective::Recv, {0, 0}},      {Collective::Wait, {0, 0}}};
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
        const mesh::Topology topology = traits.symmetric ? mesh::even_hosts(4, 2, 1) : mesh::even_hosts(2, 1, 1);
        const mesh::GroupLayout layout =
            mesh::group_layout(traits.symmetric ? std::vector{0, 1, 2, 3} : std::vector{0, 1}, topology);
        const int64_t place = traits.kind == Collective::Permute ? 1 : traits.kind == Collective::Broadcast ? 2 : 0;
        const mesh::Sent sent = mesh::bytes_sent(layout, traits.kind, {}, 1, place);
        ASSERT_EQ(sent.by_host.size(), 2u) << traits.name;
        EXPECT_DOUBLE_EQ(sent.by_host[0], expected.at(traits.kind).first) << traits.name;
        EXPECT_DOUBLE_EQ(sent.by_host[1], expected.at(traits.kind).second) << traits.name;
        EXPECT_EQ(mesh::latencies(layout, traits.kind, {}) > 0, traits.kind != Collective::Wait) << traits.name;
    }
}

// A symmetric one lasts until its last member has come and gone; a receive waits for its send, and a wait for the receive.
TEST(CollectiveTable, EveryRowIsSimulated) {
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
        const auto rank = [](const std::vector<sim::Segment>& segments) {
            sim::Work work;
            work.segments = sim::shared(segments);
            sim::Rank r;
            r.threads.push_back({1, {work}});
            return r;
        };
        const auto piece = [](Collective kind, double core_s) { return sim::Segment{core_s, 0, 0, 0, -1, kind}; };
        const sim::Segment late{3};
        std::vector<sim::Rank> ranks;
        if (traits.symmetric) {
            ranks = {rank({piece(traits.kind, 1)}), rank({late, piece(traits.kind, 1)})};
        } else {
            ranks = {rank({piece(Collective::Send, 0), piece(Collective::Wait, 0)}), rank({late, piece(Collective::Recv, 1)})};
        }
        double end_s = 0;
        for (const sim::Event& e : sim::run(ranks, {{0, 1}}, {2, 1})) end_s = e.rank == 0 ? std::max(end_s, e.end_s) : end_s;
        EXPECT_DOUBLE_EQ(end_s, 4) << traits.name;
    }
}

// The derivative of an all-to-all moves the group back; the others come after differentiation and have none.
TEST(CollectiveTable, Derivatives) {
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives)
        EXPECT_EQ(static_cast<bool>(ops::rule(traits.name).derivative), traits.kind == Collective::AllToAll) << traits.name;
    ir::Routine r;
    r.dims = {{"a", 4}, {"b", 8}};
    ops::Builder b(r);
    const ir::TensorId x = b.make({"x", {0, 1}, Dtype::F32});
    const ir::TensorId y = b.op("all_to_all", {x}, {{"y", {0, 1}, Dtype::F32}}, {{"from", int64_t{0}}, {"to", int64_t{1}}})[0];
    r.ops.back().group = {3};
    const ir::Op forward = r.ops.back();
    const ir::TensorId dy[] = {b.make({"dy", {0, 1}, Dtype::F32})};
    (void)y;
    const std::vector<ir::TensorId> dx = ops::rule("all_to_all").derivative(b, forward, dy);
    ASSERT_EQ(dx.size(), 1u);
    const ir::Op& back = r.ops.back();
    EXPECT_EQ(back.kind, "all_to_all");
    EXPECT_EQ(back.in, std::vector<ir::TensorId>{dy[0]});
    EXPECT_EQ(back.integer("from"), 1);
    EXPECT_EQ(back.integer("to"), 0);
    EXPECT_EQ(back.group, forward.group);
}

}  // namespace
}  // namespace lockstep::testing
