// A linear and its gradients in float8 on four ranks, by reference kernels: with roundings as one rank has them, and without, at
// the small size of a trial, as the plain products.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "ir/text.h"
#include "meaning/arrays.h"
#include "meaning/small.h"
#include "ops/verify.h"

namespace lockstep::meaning_test {
namespace {

using meaning::Array;

// y = x w, d_x = g w, d_w = g x. A scale for each half of the batch, one for the weights.
const std::string kHead = R"(microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
)";
const std::string kOneRank = "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\n" + kHead +
                             R"(  dims batch=4 seq=6 hidden=8 ffn=12 batch.g=2(batch/2) seq.g=1(seq/6)
  port x value read
    x: f32[batch, seq, hidden]
  port g value read
    g: f32[batch, seq, ffn]
  port w value read
    w: f32[ffn, hidden]
  port y value write
    y: f32[batch, seq, ffn]
  port d_x value write
    d_x: f32[batch, seq, hidden]
  port d_w value write
    d_w: f32[ffn, hidden]
  x.amax: f32[batch.g, seq.g] = amax(x)
  x.8: f8e4m3[batch, seq, hidden]; x.s: f32[batch.g, seq.g] = to_float8(x, x.amax)
  w.amax: f32[] = amax(w)
  w.8: f8e4m3[ffn, hidden]; w.s: f32[] = to_float8(w, w.amax) {power_of_two=1}
  g.amax: f32[batch.g, seq.g] = amax(g)
  g.8: f8e5m2[batch, seq, ffn]; g.s: f32[batch.g, seq.g] = to_float8(g, g.amax)
  y = scaled_einsum(x.8, w.8, x.s, w.s) {fast=1}
  d_x = scaled_einsum(g.8, w.8, g.s, w.s)
  d_w = scaled_einsum(g.8, x.8, g.s, x.s)
)";
const std::string kFourRanks = "mesh dp_replicate=1 dp_shard=2 cp=1 tp=2 dp_shard:(1)2 tp:(1)2\n" + kHead +
                               R"(  dims batch=4 seq=6 hidden=8 ffn=12 batch.g=2(batch/2) seq.g=1(seq/6)
  port x value read
    x: f32[batch/dp_shard, seq/tp, hidden]
  port g value read
    g: f32[batch/dp_shard, seq, ffn/tp]
  port w value read
    w: f32[ffn/tp, hidden]
  port y value write
    y: f32[batch/dp_shard, seq, ffn/tp]
  port d_x value write
    d_x: f32[batch/dp_shard, seq/tp, hidden]
  port d_w value write
    d_w: f32[ffn/tp, hidden]
  x.amax: f32[batch.g/dp_shard, seq.g] partial max tp = amax(x)
  x.amax.ar: f32[batch.g/dp_shard, seq.g] = all_reduce(x.amax) over tp
  x.8: f8e4m3[batch/dp_shard, seq/tp, hidden]; x.s: f32[batch.g/dp_shard, seq.g] = to_float8(x, x.amax.ar)
  x.8.ag: f8e4m3[batch/dp_shard, seq, hidden] = all_gather(x.8) {dim=1} over tp
  w.amax: f32[] partial max tp = amax(w)
  w.amax.ar: f32[] = all_reduce(w.amax) over tp
  w.8: f8e4m3[ffn/tp, hidden]; w.s: f32[] = to_float8(w, w.amax.ar) {power_of_two=1}
  g.amax: f32[batch.g/dp_shard, seq.g] partial max tp = amax(g)
  g.amax.ar: f32[batch.g/dp_shard, seq.g] = all_reduce(g.amax) over tp
  g.8: f8e5m2[batch/dp_shard, seq, ffn/tp]; g.s: f32[batch.g/dp_shard, seq.g] = to_float8(g, g.amax.ar)
  y = scaled_einsum(x.8.ag, w.8, x.s, w.s) {fast=1}
  d_x.part: f32[batch/dp_shard, seq, hidden] partial sum tp = scaled_einsum(g.8, w.8, g.s, w.s)
  d_x = reduce_scatter(d_x.part) {dim=1} over tp
  d_w.part: f32[ffn/tp, hidden] partial sum dp_shard = scaled_einsum(g.8, x.8.ag, g.s, x.s)
  d_w = all_reduce(d_w.part) over dp_shard
)";

// The same in blocks, of what each product contracts.
const std::string kBlocksOfFourRanks =
    "mesh dp_replicate=1 dp_shard=2 cp=1 tp=2 dp_shard:(1)2 tp:(1)2\n" + kHead +
    R"(  dims batch=4 seq=64 hidden=64 ffn=128 seq.b=2(seq/32) hidden.b=2(hidden/32) ffn.b=4(ffn/32)
  port x value read
    x: f32[batch/dp_shard, seq/tp, hidden]
  port g value read
    g: f32[batch/dp_shard, seq, ffn/tp]
  port w value read
    w: f32[ffn/tp, hidden]
  port y value write
    y: f32[batch/dp_shard, seq, ffn/tp]
  port d_x value write
    d_x: f32[batch/dp_shard, seq/tp, hidden]
  port d_w value write
    d_w: f32[ffn/tp, hidden]
  x.8: f8e4m3[batch/dp_shard, seq/tp, hidden]; x.s: e8m0[batch/dp_shard, seq/tp, hidden.b] = to_blocks(x) {along='hidden', block=32, rounding='floor'}
  x.8.ag: f8e4m3[batch/dp_shard, seq, hidden] = all_gather(x.8) {dim=1} over tp
  x.s.ag: e8m0[batch/dp_shard, seq, hidden.b] = all_gather(x.s) {dim=1} over tp
  w.8: f8e4m3[ffn/tp, hidden]; w.s: e8m0[ffn/tp, hidden.b] = to_blocks(w) {along='hidden', block=32, rounding='rceil'}
  y = scaled_einsum(x.8.ag, w.8, x.s.ag, w.s) {fast=1}
  g.8: f8e4m3[batch/dp_shard, seq, ffn/tp]; g.s: f32[batch/dp_shard, seq, ffn.b/tp] = to_blocks(g) {along='ffn', block=32}
  w.t8: f8e4m3[ffn/tp, hidden]; w.ts: f32[ffn.b/tp, hidden] = to_blocks(w) {along='ffn', block=32}
  d_x.part: f32[batch/dp_shard, seq, hidden] partial sum tp = scaled_einsum(g.8, w.t8, g.s, w.ts)
  d_x = reduce_scatter(d_x.part) {dim=1} over tp
  g.t8: f8e4m3[batch/dp_shard, seq, ffn/tp]; g.ts: e8m0[batch/dp_shard, seq.b, ffn/tp] = to_blocks(g) {along='seq', block=32, rounding='floor'}
  x.t8: f8e4m3[batch/dp_shard, seq/tp, hidden]; x.ts: e8m0[batch/dp_shard, seq.b/tp, hidden] = to_blocks(x) {along='seq', block=32, rounding='rceil'}
  x.t8.ag: f8e4m3[batch/dp_shard, seq, hidden] = all_gather(x.t8) {dim=1} over tp
  x.ts.ag: e8m0[batch/dp_shard, seq.b, hidden] = all_gather(x.ts) {dim=1} over tp
  d_w.part: f32[ffn/tp, hidden] partial sum dp_shard = scaled_einsum(g.t8, x.t8.ag, g.ts, x.ts.ag)
  d_w = all_reduce(d_w.part) over dp_shard
)";

Array drawn(const std::vector<int64_t>& sizes, unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Array out = meaning::filled(sizes, 0);
    for (double& v : out.values) v = normal(random);
    return out;
}

// Of the ports that a routine writes, from those that it reads.
std::map<std::string, Array> results(const mesh::Mesh& mesh, const ir::Routine& r) {
    meaning::Machine machine(mesh, r);
    std::map<std::string, Array> out;
    const auto lying = [&](const ir::Tensor& t) { return meaning::Lying{&mesh, meaning::sizes_of(r, t), t.placement}; };
    for (const char* name : {"x", "g", "w"}) {
        const ir::TensorId t = r.find(name);
        const Array whole = drawn(meaning::sizes_of(r, r.tensors[static_cast<size_t>(t)]), static_cast<unsigned>(name[0]));
        const meaning::ByRank parts = cut_up(whole, lying(r.tensors[static_cast<size_t>(t)]));
        for (int64_t rank = 0; rank < mesh.ranks(); ++rank) machine.set(t, rank, parts[static_cast<size_t>(rank)]);
        out[name] = whole;
    }
    machine.run(0, std::vector<bool>(r.ports.size(), true));
    for (const char* name : {"y", "d_x", "d_w"}) {
        const ir::Tensor& t = r.tensors[static_cast<size_t>(r.find(name))];
        meaning::ByRank parts;
        for (int64_t rank = 0; rank < mesh.ranks(); ++rank) parts.push_back(machine.get(r.find(name), rank));
        bool differ = false;
        out[name] = put_together(parts, lying(t), meaning::sizes_of(r, t), differ);
        EXPECT_FALSE(differ) << name;
    }
    return out;
}

void expect_near(const Array& want, const Array& got, double tolerance, const char* what) {
    ASSERT_EQ(want.sizes, got.sizes);
    double worst = 0, most = 0;
    for (size_t i = 0; i < want.values.size(); ++i) {
        worst = std::max(worst, std::abs(want.values[i] - got.values[i]));
        most = std::max(most, std::abs(want.values[i]));
    }
    EXPECT_LE(worst, tolerance * most) << what;
    EXPECT_GT(most, 0.1) << what;
}

// sum over k of a[i, k] b[k, j], by the sizes and steps of the operands.
struct Factor {
    const Array& of;
    int64_t outer, inner;  // steps
};
Array product(const Factor& a, const Factor& b, const std::vector<int64_t>& sizes, int64_t rows, int64_t columns, int64_t k) {
    Array out = meaning::filled(sizes, 0);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
            for (int64_t p = 0; p < k; ++p)
                out.values[static_cast<size_t>(i * columns + j)] += a.of.values[static_cast<size_t>(i * a.outer + p * a.inner)] *
                                                                    b.of.values[static_cast<size_t>(j * b.outer + p * b.inner)];
        }
    }
    return out;
}

TEST(Float8Meaning, RanksGiveWhatOneRankGives) {
    const ir::Program one = ir::parse(kOneRank), four = ir::parse(kFourRanks);
    for (const ir::Program* p : {&one, &four}) {
        const auto violation = ops::verify(*p);
        ASSERT_FALSE(violation) << violation->message;
    }
    const auto want = results(one.mesh, one.routines[0]), got = results(four.mesh, four.routines[0]);
    for (const char* name : {"y", "d_x", "d_w"}) expect_near(want.at(name), got.at(name), 1e-6, name);
    const int64_t tokens = 24;
    const Array y = product({want.at("x"), 8, 1}, {want.at("w"), 8, 1}, want.at("y").sizes, tokens, 12, 8);
    expect_near(y, want.at("y"), 0.08, "float8 and the plain product");
    EXPECT_NE(y.values, want.at("y").values);
}

int64_t size(const ir::Routine& r, const char* dim) { return r.dims[static_cast<size_t>(r.dim(dim))].size; }

void expect_plain_products(const mesh::Mesh& mesh, const ir::Routine& r, double tolerance) {
    const auto all = results(mesh, r);
    const Array &x = all.at("x"), &g = all.at("g"), &w = all.at("w");
    const int64_t tokens = size(r, "batch") * size(r, "seq"), hidden = size(r, "hidden"), ffn = size(r, "ffn");
    const auto expect = [&](const char* name, const Array& want) { expect_near(want, all.at(name), tolerance, name); };
    expect("y", product({x, hidden, 1}, {w, hidden, 1}, all.at("y").sizes, tokens, ffn, hidden));
    expect("d_x", product({g, ffn, 1}, {w, 1, hidden}, x.sizes, tokens, hidden, ffn));
    expect("d_w", product({g, 1, ffn}, {x, 1, hidden}, w.sizes, ffn, hidden, tokens));
}

TEST(Float8Meaning, ATrialCarriesOutThePlainProducts) {
    const ir::Program four = ir::parse(kFourRanks);
    const meaning::Small small(four, {0});
    const ir::Routine r = small.of(four.routines[0]);
    EXPECT_EQ(size(r, "batch.g"), 2);
    EXPECT_EQ(size(r, "batch.g") * r.dims[static_cast<size_t>(r.dim("batch.g"))].each, size(r, "batch"));
    EXPECT_EQ(size(r, "seq.g"), 1);
    expect_plain_products(small.mesh(), r, 1e-14);
}

TEST(Float8Meaning, BlocksOnRanksGiveNearlyThePlainProductsAndATrialThese) {
    const ir::Program four = ir::parse(kBlocksOfFourRanks);
    const auto violation = ops::verify(four);
    ASSERT_FALSE(violation) << violation->message;
    expect_plain_products(four.mesh, four.routines[0], 0.06);
    const meaning::Small small(four, {0});
    const ir::Routine r = small.of(four.routines[0]);
    EXPECT_LT(size(r, "hidden"), 32);
    EXPECT_EQ(size(r, "ffn.b"), 2);
    expect_plain_products(small.mesh(), r, 1e-13);
}

}  // namespace
}  // namespace lockstep::meaning_test
