// Which products become products in float8, what is cast for them, and what the backward reads of the forward's casts.
#include "passes/float8_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "ir/text.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

Settings operator+(Settings a, const Settings& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}
const Settings kSixteen = {{"model.dim", "16"},
                           {"model.head_dim", "16"},
                           {"model.ffn_dim", "32"},
                           {"training.mixed_precision_param", "bfloat16"}},
               kFloat8 = kSixteen + Settings{{"model.converters", "quantize.linear.float8"}};

ir::Program after(const std::string& pass, const Settings& more = {}) { return program_after(pass, kFloat8 + more); }

int count(const ir::Program& p, const std::string& routine, std::string_view kind) {
    const ir::Routine& r = *p.routine(routine);
    return static_cast<int>(std::count_if(r.ops.begin(), r.ops.end(), [&](const ir::Op& op) { return op.kind == kind; }));
}
const ir::Port& frame_of(const ir::Routine& r) { return r.ports[static_cast<size_t>(r.port("frame"))]; }
Strings saved(const ir::Program& p, const std::string& routine) {
    const ir::Routine& r = *p.routine(routine);
    Strings out;
    for (const ir::TensorId t : r.port_tensors(r.port("frame"))) out.push_back(r.tensors[static_cast<size_t>(t)].source);
    std::sort(out.begin(), out.end());
    return out;
}
bool has(const Strings& all, const std::string& one) { return std::find(all.begin(), all.end(), one) != all.end(); }

std::string source(const ir::Program& p, const std::string& routine, const std::string& name) {
    const ir::Routine& r = *p.routine(routine);
    return r.tensors[static_cast<size_t>(r.find(name))].source;
}
bool is_amax(const ir::State& s) { return s.role == ir::StateRole::WeightsAmax; }

TEST(Float8Products, ForwardIsInE4M3AndGradientsOfResultsInE5M2) {
    const ir::Program p = after("float8_products");
    EXPECT_EQ(op_line(p, "layer.forward", "ao"),
              "ao: bf16[batch, seq, hidden]? = scaled_einsum(o.f8, wo.f8, o.scale, wo.scale) {fast=1}");
    EXPECT_EQ(op_line(p, "layer.forward", "o.amax"), "o.amax = amax(o)");
    EXPECT_EQ(type_of(p, "layer.forward", "wo.f8"), "f8e4m3[hidden, kv_heads, group, head_dim]?");
    EXPECT_EQ(type_of(p, "layer.forward", "wo.scale"), "f32[]");
    EXPECT_EQ(type_of(p, "layer.forward", "o.scale"), "f32[batch.g, seq.g]?");
    EXPECT_EQ(type_of(p, "layer.backward", "d.y.f8"), "f8e5m2[batch, seq, hidden]?");
    EXPECT_EQ(op_line(p, "layer.backward", "d.w2.part"),
              "d.w2.part: f32[hidden, ffn]? = scaled_einsum(d.y.f8, act.f8, d.y.scale, act.scale)");
    EXPECT_EQ(count(p, "layer.forward", "scaled_einsum"), 4);
    EXPECT_EQ(count(p, "layer.backward", "scaled_einsum"), 8);
    EXPECT_EQ(count(p, "head.forward", "scaled_einsum"), 0);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
}

TEST(Float8Products, EachValueIsCastOnce) {
    const ir::Program p = after("float8_products");
    EXPECT_EQ(count(p, "layer.forward", "to_float8"), 8);   // rows and weights of four products
    EXPECT_EQ(count(p, "layer.backward", "to_float8"), 9);  // four weights, four gradients, and rows that attention reads, too
}

// One byte an element is saved in place of two, where nothing else reads the rows.
TEST(Float8Products, BackwardReadsCodesOfTheForward) {
    const ir::Program p = after("float8_products");
    const Strings now = saved(p, "layer.forward");
    for (const char* rows : {"n1", "n2", "act"}) {
        EXPECT_FALSE(has(now, rows)) << rows;
        EXPECT_TRUE(has(now, std::string(rows) + ".f8") && has(now, std::string(rows) + ".scale")) << rows;
    }
    EXPECT_TRUE(has(now, "o") && has(now, "o.amax") && !has(now, "o.f8"));
    EXPECT_EQ(now, saved(p, "layer.backward"));
    EXPECT_EQ(frame_of(*p.routine("layer.backward")).access, ir::Access::Read);
}

// Queries, keys and values share a scale where tensor parallelism cuts their groups, and where it does not.
TEST(Float8Products, WhatMayBePackedSharesAScale) {
    const Settings cut = {{"parallelism.tensor_parallel_degree", "4"}};
    const ir::Program apart = after("float8_products", cut);
    EXPECT_EQ(source(apart, "layer.forward", "wk.wq.wv.amax"), "wk+wq+wv");
    EXPECT_EQ(op_line(apart, "layer.forward", "wk.f8"),
              "wk.f8: f8e4m3[kv_heads, head_dim, hidden]?; wk.scale: f32[] = to_float8(wk, wk.wq.wv.amax)");
    const ir::Program each = after("float8_products", cut + Settings{{"training.pack_products", "false"}});
    EXPECT_EQ(source(each, "layer.forward", "wq.amax"), "wq");
    EXPECT_EQ(source(each, "layer.forward", "wk.amax"), "wk");
}

// What is read of weights that cross ranks as int8 is known where they are read.
TEST(Float8Products, WeightsThatDifferFromWhatIsKeptAreMeasuredWhereTheyAreRead) {
    const ir::Program p = after("float8_products", {{"partition.quantized_weights", "int8"}});
    EXPECT_EQ(op_line(p, "layer.forward", "wq.wk.wv.amax"), "wq.wk.wv.amax: f32[] = amax(wq.wk.wv)");
    EXPECT_TRUE(p.states.end() == std::find_if(p.states.begin(), p.states.end(), is_amax));
}

// Parameters are codes; their scales come from the state.
TEST(Float8Products, GatheredWeightsAreCodes) {
    const ir::Program p = after("float8_products", {{"quantize.linear.float8.enable_fsdp_float8_all_gather", "true"}});
    for (const char* routine : {"layer.forward", "layer.backward"}) {
        EXPECT_EQ(type_of(p, routine, "w2"), "f8e4m3[hidden, ffn]?");
        EXPECT_EQ(op_line(p, routine, "w2.scale"), "w2.scale: f32[] = float8_scale(w2.amax) {type='f8e4m3'}");
        EXPECT_EQ(count(p, routine, "float8_scale"), 4);
    }
    EXPECT_EQ(count(p, "layer.forward", "to_float8"), 4);  // rows
    EXPECT_EQ(p.param("w2")->dtype, Dtype::F8E4M3);
    EXPECT_EQ(p.param("ffn_norm")->dtype, Dtype::BF16);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
}

TEST(Float8Products, GroupsAreOfSequencesAndPartsOfThem) {
    const ir::Program p = after("float8_products", {{"training.local_batch_size", "4"},
                                                    {"training.global_batch_size", "8"},
                                                    {"quantize.scale_sequences", "2"},
                                                    {"quantize.scale_context_blocks", "4"}});
    const ir::Routine& r = *p.routine("layer.forward");
    const ir::Dim &batch = r.dims[static_cast<size_t>(r.dim("batch.g"))], &seq = r.dims[static_cast<size_t>(r.dim("seq.g"))];
    EXPECT_EQ(batch.size, 2);
    EXPECT_EQ(batch.each, 2);
    EXPECT_EQ(seq.size, 4);
    EXPECT_EQ(seq.each, 2);
}

const Settings kByRows = {{"quantize.linear.float8.recipe_name", "rowwise"}},
               kWideGradients = {{"quantize.linear.float8.recipe_name", "rowwise_with_gw_hp"}};

// Each product has a scale for each row of its factors, which are summed over columns.
TEST(Float8Products, RowsHaveScalesOfTheirOwn) {
    const ir::Program p = after("float8_products", kByRows);
    EXPECT_EQ(op_line(p, "layer.forward", "ao"),
              "ao: bf16[batch, seq, hidden]? = scaled_einsum(o.f8, wo.f8, o.scale, wo.scale) {fast=1}");
    EXPECT_EQ(op_line(p, "layer.forward", "o.amax"), "o.amax: f32[batch, seq]? = amax(o)");
    EXPECT_EQ(op_line(p, "layer.forward", "wo.f8"),
              "wo.f8: f8e4m3[hidden, kv_heads, group, head_dim]?; wo.scale: f32[hidden]? = to_float8(wo, wo.amax) "
              "{power_of_two=1}");
    // Gradients of rows, then of weights: x and dy are cast again, along the other side.
    EXPECT_EQ(op_line(p, "layer.backward", "d.act.part"),
              "d.act.part: bf16[batch, seq, ffn]? = scaled_einsum(d.y.f8, w2.f8, d.y.scale, w2.scale)");
    EXPECT_EQ(op_line(p, "layer.backward", "d.w2.part"),
              "d.w2.part: f32[hidden, ffn]? = scaled_einsum(d.y.f8.2, act.f8, d.y.scale.2, act.scale)");
    for (const char* codes : {"d.y.f8", "d.y.f8.2"})
        EXPECT_EQ(type_of(p, "layer.backward", codes), "f8e4m3[batch, seq, hidden]?");
    EXPECT_EQ(type_of(p, "layer.backward", "d.y.scale"), "f32[batch, seq]?");
    EXPECT_EQ(type_of(p, "layer.backward", "d.y.scale.2"), "f32[batch.g, seq.g, hidden]?");
    EXPECT_EQ(type_of(p, "layer.backward", "act.scale"), "f32[batch.g, seq.g, ffn]?");
    EXPECT_EQ(type_of(p, "layer.backward", "w2.scale"), "f32[ffn]?");
    EXPECT_EQ(count(p, "layer.forward", "to_float8"), 8);
    EXPECT_EQ(count(p, "layer.backward", "to_float8"), 16);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
    EXPECT_EQ(saved(p, "layer.forward"), saved(after("bind_sizes"), "layer.forward")) << "rows themselves";
}

// What one product joins has rows of its own, and columns that are shared.
TEST(Float8Products, JoinedRowsKeepTheirScales) {
    const Settings cut = kByRows + Settings{{"parallelism.tensor_parallel_degree", "4"}};
    const ir::Program apart = after("float8_products", cut);
    EXPECT_EQ(op_line(apart, "layer.forward", "wk.amax"), "wk.amax: f32[kv_heads, head_dim]? = amax(wk)");
    EXPECT_EQ(op_line(apart, "layer.backward", "wv.amax"), "wv.amax: f32[hidden]? = amax(wq, wk, wv)");
    const ir::Program each = after("float8_products", cut + Settings{{"training.pack_products", "false"}});
    EXPECT_EQ(op_line(each, "layer.backward", "wk.amax"), "wk.amax: f32[hidden]? = amax(wk)");
}

TEST(Float8Products, GradientsOfWeightsStayWide) {
    const ir::Program p = after("float8_products", kWideGradients), without = program_after("float8_products", kSixteen);
    EXPECT_EQ(op_line(p, "layer.backward", "d.w2.part"), op_line(without, "layer.backward", "d.w2.part"));
    EXPECT_EQ(op_line(p, "layer.backward", "d.act.part"),
              "d.act.part: bf16[batch, seq, ffn]? = scaled_einsum(d.y.f8, w2.f8, d.y.scale, w2.scale)");
    EXPECT_EQ(type_of(p, "layer.backward", "d.y.scale"), "f32[batch, seq]?");
    EXPECT_EQ(op_line(p, "layer.backward", "w2.f8"),
              "w2.f8: f8e4m3[hidden, ffn]?; w2.scale: f32[] = to_float8(w2, w2.amax) {power_of_two=1}");
    EXPECT_EQ(type_of(p, "layer.forward", "w2.scale"), "f32[hidden]?");
    EXPECT_EQ(count(p, "layer.backward", "scaled_einsum"), 4);
    EXPECT_EQ(count(p, "layer.backward", "to_float8"), 8);
}

// Rows of a product that sums over split dims have their largest element on any of the ranks.
TEST(Float8Products, RowsThatAreSplitAreReduced) {
    const ir::Program p = after("shard", kByRows + Settings{{"parallelism.tensor_parallel_degree", "2"}});
    EXPECT_EQ(op_line(p, "layer.forward", "wo.amax.ar"), "wo.amax.ar: f32[hidden] = all_reduce(wo.amax) over tp");
    EXPECT_EQ(op_line(p, "layer.forward", "o.amax.ar"), "o.amax.ar: f32[batch, seq] = all_reduce(o.amax) over tp");
    EXPECT_EQ(type_of(p, "layer.forward", "o.amax"), "f32[batch, seq] partial max tp");
    EXPECT_EQ(type_of(p, "layer.forward", "n1.amax"), "f32[batch, seq/tp]") << "a rank has whole rows";
    EXPECT_EQ(op_line(p, "layer.forward", "n1.f8.ag"),
              "n1.f8.ag: f8e4m3[batch, seq, hidden] = all_gather(n1.f8) {dim=1} over tp");
    EXPECT_EQ(op_line(p, "layer.forward", "n1.scale.ag"), "n1.scale.ag: f32[batch, seq] = all_gather(n1.scale) {dim=1} over tp");
}

const Settings kOf128 = {{"model.dim", "128"}, {"model.head_dim", "128"}, {"model.ffn_dim", "256"}, {"training.seq_len", "256"}};
Settings in_blocks(const char* recipe) {
    return kOf128 + (std::string(recipe) == "blockwise"
                         ? Settings{{"quantize.linear.float8.recipe_name", recipe}}
                         : Settings{{"model.converters", "quantize.linear.mx"}, {"quantize.linear.mx.recipe_name", recipe}});
}

TEST(Float8Products, BlocksAreOfNeighboursThatAreSummed) {
    const ir::Program p = after("float8_products", in_blocks("blockwise"));
    EXPECT_EQ(op_line(p, "layer.forward", "o.f8"),
              "o.f8: f8e4m3[batch, seq, kv_heads, group, head_dim]?; o.scale: f32[batch, seq, kv_heads, group, head_dim.b128]? = "
              "to_blocks(o) {along='head_dim', block=128}");
    EXPECT_EQ(op_line(p, "layer.backward", "d.y.f8"),
              "d.y.f8: f8e4m3[batch, seq, hidden]?; d.y.scale: f32[batch, seq, hidden.b128]? = to_blocks(d.y) {along='hidden', "
              "block=128}");
    EXPECT_EQ(op_line(p, "layer.backward", "d.y.f8.2"),
              "d.y.f8.2: f8e4m3[batch, seq, hidden]?; d.y.scale.2: f32[batch, seq.b128, hidden]? = to_blocks(d.y) {along='seq', "
              "block=128}");
    EXPECT_EQ(
        op_line(p, "layer.backward", "act.f8"),
        "act.f8: f8e4m3[batch, seq, ffn]?; act.scale: f32[batch, seq.b128, ffn]? = to_blocks(act) {along='seq', block=128}");
    // Tiles of a weight serve both of its products.
    for (const char* routine : {"layer.forward", "layer.backward"})
        EXPECT_EQ(op_line(p, routine, "w2.f8"),
                  "w2.f8: f8e4m3[hidden, ffn]?; w2.scale: f32[hidden.b128, ffn.b128]? = to_float8(w2, w2.amax)");
    EXPECT_EQ(count(p, "layer.forward", "to_blocks"), 4);
    EXPECT_EQ(count(p, "layer.backward", "to_blocks"), 12);
    EXPECT_EQ(count(p, "layer.backward", "to_float8"), 4);
    EXPECT_EQ(ir::parse(ir::print(p)), p);
    EXPECT_EQ(saved(p, "layer.forward"), saved(program_after("bind_sizes", kSixteen + kOf128), "layer.forward")) << "rows";
}

TEST(Float8Products, MxHasPowersOfTwoForBothFactors) {
    const ir::Program p = after("float8_products", in_blocks("mxfp8_cublas_rceil"));
    EXPECT_EQ(op_line(p, "layer.forward", "w2.f8"),
              "w2.f8: f8e4m3[hidden, ffn]?; w2.scale: e8m0[hidden, ffn.b32]? = to_blocks(w2) {along='ffn', block=32, "
              "rounding='rceil'}");
    EXPECT_EQ(op_line(p, "layer.backward", "w2.f8"),
              "w2.f8: f8e4m3[hidden, ffn]?; w2.scale: e8m0[hidden.b32, ffn]? = to_blocks(w2) {along='hidden', block=32, "
              "rounding='rceil'}");
    EXPECT_EQ(count(p, "layer.backward", "to_blocks"), 16);
    EXPECT_EQ(count(p, "layer.backward", "amax"), 0);
    EXPECT_NE(op_line(after("float8_products", in_blocks("mxfp8_cublas")), "layer.forward", "w2.f8").find("rounding='floor'"),
              std::string::npos);
}

// A backward that makes the forward's values again takes their dims by number.
TEST(Float8Products, ForwardAndBackwardHaveTheSameDims) {
    const Settings again = {{"activation_checkpoint.mode", "full"}};
    for (const Settings& recipe : {Settings{}, kByRows, kWideGradients, in_blocks("blockwise"), in_blocks("mxfp8_cublas")}) {
        const ir::Program p = after("float8_products", recipe);
        EXPECT_EQ(p.routine("layer.forward")->dims, p.routine("layer.backward")->dims);
        EXPECT_EQ(count(after("recompute", recipe + again), "layer.backward", "scaled_einsum"),
                  count(p, "layer.backward", "scaled_einsum") + 3)
            << "all products of the forward but the last";
    }
}

// Each weight that one product would join has blocks of its own.
TEST(Float8Products, BlocksAreTheSamePackedOrNot) {
    for (const char* recipe : {"blockwise", "mxfp8_cublas"}) {
        const ir::Program p = after("float8_products", in_blocks(recipe) + Settings{{"parallelism.tensor_parallel_degree", "4"},
                                                                                    {"parallelism.sequence_parallel", "false"},
                                                                                    {"model.ffn_dim", "512"}});
        const ir::Routine& r = *p.routine("layer.backward");
        for (const ir::Op& op : r.ops) EXPECT_TRUE(op.kind != "amax" || op.in.size() == 1) << recipe;
    }
}

// Codes cross tensor-parallel ranks: a byte an element. Their scales are whole before.
TEST(Float8Products, TensorParallelismCarriesCodes) {
    const ir::Program p = after("shard", {{"parallelism.tensor_parallel_degree", "2"}});
    EXPECT_EQ(op_line(p, "layer.forward", "n1.f8.ag"),
              "n1.f8.ag: f8e4m3[batch, seq, hidden] = all_gather(n1.f8) {dim=1} over tp");
    EXPECT_EQ(op_line(p, "layer.forward", "n1.amax.ar"), "n1.amax.ar: f32[batch.g, seq.g] = all_reduce(n1.amax) over tp");
    EXPECT_EQ(type_of(p, "layer.forward", "n1.amax"), "f32[batch.g, seq.g] partial max tp");
    for (const std::string& c : collectives(p, "layer.forward")) EXPECT_EQ(c.find("all_gather(n1)"), std::string::npos) << c;
}

// Blocks of codes travel beside products. Each block is scaled as the rank that has its tokens scaled it: by the scale of all,
// or by its own.
TEST(Float8Products, AsynchronousTensorParallelismCutsProducts) {
    const Settings async = {{"parallelism.tensor_parallel_degree", "2"}, {"parallelism.enable_async_tensor_parallel", "true"}};
    for (const char* blocks : {"1", "2"}) {
        const ir::Program p = after("async_tensor_parallel", async + Settings{{"quantize.scale_context_blocks", blocks}});
        const auto line = [&](const std::string& result) {
            for (const ir::Routine& r : p.routines) {
                if (r.block != "layer" || r.kind != ir::RoutineKind::Forward) continue;
                if (std::string found = op_line(p, r.name, result); !found.empty()) return found;
            }
            return std::string();
        };
        const bool is_one = std::string(blocks) == "1";
        const std::string scale = is_one ? "n2.scale" : "n2.scale.ag";
        EXPECT_NE(line("n2.f8.ag.from.1").find("= permute(n2.f8) {by=1} over tp"), std::string::npos);
        EXPECT_NE(line("gate_up.1").find("scaled_einsum(n2.f8.ag.1, w1.w3.f8, " + scale + ".1, w1.w3.scale)"), std::string::npos)
            << line("gate_up.1");
        EXPECT_NE(line(scale + ".1").find("= block(" + scale + ") {dim=1, shift=1} over tp"), std::string::npos);
        EXPECT_NE(line("mlp.0").find("scaled_einsum(act.f8.0, w2.f8, act.scale.0, w2.scale)"), std::string::npos);
        const ir::Routine& r = *p.routine("layer.forward");
        const ir::Dim& groups = r.dims[static_cast<size_t>(r.dim("seq.g.block2"))];
        EXPECT_EQ(groups.size, 1);
        EXPECT_EQ(r.dims[static_cast<size_t>(groups.of)].name, "seq.block2");
        EXPECT_FALSE(ops::verify(p)) << ops::verify(p)->message;
    }
}

TEST(Float8Products, WithoutConvertersNothingChanges) {
    EXPECT_EQ(program_after("float8_products"), program_after("bind_sizes"));
}

}  // namespace
}  // namespace lockstep::testing
