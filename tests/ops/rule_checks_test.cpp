// Shape rules refuse what does not agree, by message; FLOPs by hand.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/compile/recipes.h"
#include "tests/ops/op_cases.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

struct Refusal {
    const char* kind;
    std::vector<std::string> in, out;  // dims; "i32" first for integers, "bf16" for bfloat16
    ir::Attrs attrs;
    const char* message;
};
void PrintTo(const Refusal& r, std::ostream* stream) { *stream << r.kind << ": " << r.message; }

// Operands a, b, .. and results y, z.
std::string refusal_of(const Refusal& c) {
    ir::Routine r;
    for (const char* d : {"batch", "seq", "hidden", "vocab"}) r.dims.push_back({d, 4, 4});
    r.dims.push_back({"two", 2, 2});
    for (const char* d : {"kv_heads", "group", "head_dim"}) r.dims.push_back({d, 2, 2});
    r.dims.push_back({"qkv", 4, 4, ir::DimRole::Qkv});
    ops::Builder b(r);
    ir::Op op;
    op.kind = c.kind;
    op.attrs = c.attrs;
    const auto add = [&](const std::string& text, std::string name) {
        std::vector<std::string> words = split_words(text);
        const std::string type = words.empty() ? "" : words[0];
        const bool integer = type == "i32", narrow = type == "bf16";
        if (integer || narrow) words.erase(words.begin());
        std::vector<ir::DimId> dims;
        for (const std::string& w : words) dims.push_back(r.dim(w));
        return b.make({name, dims, integer ? Dtype::I32 : narrow ? Dtype::BF16 : Dtype::F32});
    };
    for (size_t i = 0; i < c.in.size(); ++i) op.in.push_back(add(c.in[i], std::string(1, static_cast<char>('a' + i))));
    for (size_t i = 0; i < c.out.size(); ++i) op.out.push_back(add(c.out[i], std::string(1, static_cast<char>('y' + i))));
    return ops::check_op(r, op);
}

ir::Attrs with_amax(std::vector<int64_t> of, ir::Attrs attrs = {}) {
    attrs[ops::kAmaxOf] = std::move(of);
    return attrs;
}
const ir::Attrs kNorm = {{"eps", 1e-5}, {"over", std::string("hidden")}}, kOverVocab = {{"over", std::string("vocab")}};
const ir::Attrs kAdam = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
ir::Attrs with_places(std::vector<int64_t> shards, std::vector<int64_t> places) {
    ir::Attrs out = kAdam;
    out["seed"] = int64_t{1}, out["shards"] = std::move(shards), out["places"] = std::move(places);
    return out;
}
const ir::Attrs kDrop = {{"dropout", 0.1}, {"rng_key", int64_t{1}}};
const ir::Attrs kAttentionAttrs = {{"scale", 1.0}, {"window", int64_t{0}}};
const ir::Attrs kOneDocument = {{"scale", 1.0}, {"window", int64_t{0}}, {"one_document", int64_t{1}}};
const ir::Attrs kRope = {{"sign", int64_t{1}},      {"theta", 1e4},
                         {"factor", 1.0},           {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0}, {"original_positions", 8192.0}};

ir::Attrs block_attrs(int64_t shift, ir::Attrs more = {}) {
    more.insert({{"shift", shift}, {"hops", int64_t{2}}, {"scale", 1.0}, {"window", int64_t{0}}});
    return more;
}
constexpr const char *kOfQueries = "batch seq kv_heads group head_dim", *kOfKeys = "batch hidden kv_heads head_dim",
                     *kOfRows = "batch seq kv_heads group";
// Operands of the first block of a ring, whose keys are along `hidden`.
std::vector<std::string> of_block(std::vector<std::string> more = {}) {
    std::vector<std::string> in = {kOfQueries,         kOfKeys,         kOfKeys,           "i32 batch seq",
                                   "i32 batch hidden", "i32 batch seq", "i32 batch hidden"};
    in.insert(in.end(), more.begin(), more.end());
    return in;
}
std::vector<std::string> of_block_backward(std::vector<std::string> more = {}) {
    std::vector<std::string> in = of_block({kOfQueries, kOfRows});
    in.insert(in.begin(), kOfQueries);
    in.insert(in.end(), more.begin(), more.end());
    return in;
}
std::vector<std::string> with(std::vector<std::string> dims, size_t i, const char* other) {
    dims[i] = other;
    return dims;
}
const std::vector<std::string> kBlockResults = {kOfQueries, kOfRows}, kBlockGradients = {kOfQueries, kOfKeys, kOfKeys};
constexpr const char* kCountsOfBlock =
    "takes 7 operands, noise where it drops, and behind the first block the 2 results that it goes on";

constexpr const char* kNotQkv = "y, z and { are not the queries, keys and values of rows [qkv = group + 2, kv_heads, head_dim]";
const std::vector<std::string> kSplit = {"seq kv_heads group head_dim", "seq kv_heads head_dim", "seq kv_heads head_dim"};

class OpRefusal : public ::testing::TestWithParam<Refusal> {};

TEST_P(OpRefusal, SaysWhatDoesNotAgree) { EXPECT_EQ(refusal_of(GetParam()), GetParam().message); }

const Refusal kRefusals[] = {
    {"einsum", {}, {"seq"}, {}, "takes one operand or more and gives one result"},
    {"einsum", {"seq"}, {"seq", "seq"}, {}, "takes one operand or more and gives one result"},
    {"einsum", {"seq"}, {"i32 seq"}, {}, "y cannot be an integer"},
    {"add", {}, {"seq"}, {}, "takes one operand or more"},
    {"add", {"seq", "hidden"}, {"seq"}, {}, "b and a must have the same dims"},
    {"add", {"seq", "seq"}, {"hidden"}, {}, "y and a must have the same dims"},
    {"scale", {"seq", "seq"}, {"seq"}, {{"c", 1.0}}, "takes 1 operands and gives 1 results, not 2 and 1"},
    {"scale", {"seq"}, {"seq"}, {}, "needs the attribute c"},
    {"scale", {"seq"}, {"hidden"}, {{"c", 1.0}}, "a and y must have the same dims"},
    {"cast", {"seq"}, {"hidden"}, {}, "a and y must have the same dims"},
    {"cast", {"seq"}, {"seq"}, {{"in_place", int64_t{1}}}, "has no attribute in_place"},
    {"scale", {"seq"}, {"seq"}, {{"c", 1.0}, {"in_place", 1.0}}, "the attribute in_place is an integer"},
    {"unary", {"seq"}, {"seq"}, {}, "needs the attribute fn"},
    {"unary", {"seq"}, {"seq"}, {{"fn", std::string("exp")}}, "does not know the function exp"},
    {"unary", {"seq"}, {"seq"}, {{"fn", std::string("rsqrt_mean")}, {"n", int64_t{3}}}, "needs the attribute eps"},
    {"unary", {"seq"}, {"seq"}, {{"fn", std::string("inverse_norm")}}, "needs the attribute eps"},
    {"unary", {"seq"}, {"batch"}, {{"fn", std::string("log")}}, "a and y must have the same dims"},
    {"rename", {"batch seq"}, {"batch"}, {}, "keeps the number of dims"},
    {"accumulate", {"batch seq"}, {"batch"}, {}, "a and y must have the same dims"},
    {"swiglu", {"seq hidden", "seq"}, {"seq hidden"}, {}, "a and b must have the same dims"},
    {"swiglu_backward", {"seq", "seq", "seq"}, {"seq"}, {}, "gives 2 results"},
    {"swiglu_backward", {"seq", "seq", "seq"}, {"seq", "hidden"}, {}, "z and c must have the same dims"},
    {"swiglu", {"seq", "seq", "seq"}, {"seq"}, {}, "takes gate and up, or one operand that holds both"},
    {"swiglu", {"seq hidden"}, {"seq"}, {}, "a is not gate and up for each row of y"},
    {"swiglu", {"seq two hidden"}, {"seq vocab"}, {}, "a is not gate and up for each row of y"},
    {"swiglu", {"two seq hidden"}, {"seq hidden"}, {}, "a is not gate and up for each row of y"},
    {"swiglu_backward", {"seq"}, {"seq"}, {}, "takes a cotangent, and gate and up or one operand that holds both"},
    {"swiglu_backward", {"seq", "two seq"}, {"seq"}, {}, "y and b must have the same dims"},
    {"swiglu_backward", {"hidden", "two seq"}, {"two seq"}, {}, "b is not gate and up for each row of a"},
    {"stack", {}, {"seq"}, {}, "has one part or more"},
    {"stack", {"seq", "seq"}, {"seq"}, {}, "a has the dims of y but one"},
    {"stack", {"seq", "seq", "seq"}, {"two seq"}, {}, "3 parts are not the 2 of two"},
    {"unstack", {"two seq"}, {"seq"}, {}, "1 parts are not the 2 of two"},
    {"unstack", {"two seq"}, {"seq", "hidden"}, {}, "z has the dims of a but one"},
    {"rmsnorm", {"seq hidden", "hidden"}, {"seq hidden", "seq"}, {{"eps", 1.0}}, "needs the attribute over"},
    {"rmsnorm", {"seq hidden", "seq"}, {"seq hidden", "seq"}, kNorm, "the weight has the one dim hidden"},
    {"rmsnorm", {"hidden seq", "hidden"}, {"hidden seq", "seq"}, kNorm, "hidden is the last dim"},
    {"rmsnorm", {"seq hidden", "hidden"}, {"seq hidden", "hidden"}, kNorm, "rstd lacks the dim"},
    {"rmsnorm_backward", {"seq hidden", "seq hidden", "hidden", "seq"}, {"seq hidden"}, kNorm, "gives 2 results"},
    {"layernorm", {"seq hidden", "hidden", "seq"}, {"seq hidden", "seq", "seq"}, kNorm, "the bias has the one dim hidden"},
    {"layernorm", {"seq hidden", "hidden", "hidden"}, {"seq hidden", "seq", "hidden"}, kNorm, "rstd lacks the dim"},
    {"layernorm_backward",
     {"seq hidden", "seq hidden", "hidden", "hidden", "seq", "seq"},
     {"seq hidden", "hidden"},
     kNorm,
     "gives 3 results"},
    {"add_rmsnorm",
     {"seq hidden", "seq hidden", "seq"},
     {"seq hidden", "seq hidden", "seq"},
     kNorm,
     "the weight has the one dim hidden"},
    {"add_rmsnorm",
     {"seq hidden", "seq", "hidden"},
     {"seq hidden", "seq hidden", "seq"},
     kNorm,
     "a and b must have the same dims"},
    {"rmsnorm", {"seq hidden", "hidden"}, {"seq hidden", "seq", "seq"}, with_amax({2}, kNorm), "gives amax of result 2 of 2"},
    {"rmsnorm", {"seq hidden", "hidden"}, {"seq hidden", "seq"}, with_amax({0, 1}, kNorm), "amax is a list of results"},
    {"swiglu",
     {"seq hidden", "seq hidden"},
     {"seq hidden", "vocab"},
     with_amax({0}),
     "vocab of z is no dim of y and coarse of none"},
    {"rmsnorm_backward_add",
     {"seq", "seq hidden", "seq hidden", "hidden", "seq"},
     {"seq hidden", "hidden"},
     kNorm,
     "a and y must have the same dims"},
    {"layernorm_backward_add",
     {"seq hidden", "seq hidden", "seq hidden", "hidden", "hidden", "seq", "seq"},
     {"seq hidden", "hidden"},
     kNorm,
     "gives 3 results"},
    {"addmm", {"seq", "seq hidden", "vocab hidden"}, {"seq vocab"}, {}, "a and y must have the same dims"},
    {"qkv_rope",
     {"seq hidden", "qkv kv_heads head_dim vocab", "i32 seq"},
     {"seq kv_heads group head_dim", "seq kv_heads head_dim", "seq kv_heads head_dim"},
     kRope,
     "x and the weight share their last dim"},
    {"qkv_rope",
     {"seq hidden", "qkv kv_heads head_dim hidden", "i32 seq"},
     {"seq kv_heads group head_dim", "seq kv_heads head_dim", "seq kv_heads group head_dim"},
     kRope,
     kNotQkv},
    {"bias", {"seq hidden", "seq"}, {"seq hidden"}, {}, "the bias has the last dims of operand 0"},
    {"bias", {"seq hidden", "hidden"}, {"seq"}, {}, "a and y must have the same dims"},
    {"bias_gelu", {"seq hidden", "hidden"}, {"seq hidden"}, {}, "needs the attribute fn"},
    {"bias_gelu", {"seq hidden", "hidden"}, {"seq hidden"}, {{"fn", std::string("exp")}}, "does not know the function exp"},
    {"bias_gelu", {"seq hidden", "hidden"}, {"seq hidden"}, {{"fn", std::string("valid")}}, "does not know the function valid"},
    {"bias_gelu_backward",
     {"seq hidden", "seq hidden", "hidden"},
     {"seq hidden"},
     {{"fn", std::string("gelu")}},
     "gives 2 results"},
    {"bias_gelu_backward",
     {"seq hidden", "seq hidden", "hidden"},
     {"seq hidden", "hidden"},
     {{"fn", std::string("exp")}},
     "does not know the function exp"},
    {"gelu", {"seq hidden"}, {"seq"}, {{"fn", std::string("gelu")}}, "a and y must have the same dims"},
    {"gelu", {"seq hidden"}, {"seq hidden"}, {{"fn", std::string("exp")}}, "does not know the function exp"},
    {"gelu_backward", {"seq hidden", "seq"}, {"seq hidden"}, {{"fn", std::string("gelu")}}, "y and b must have the same dims"},
    {"gelu_backward", {"seq", "seq"}, {"seq"}, {{"fn", std::string("exp")}}, "does not know the function exp"},
    {"linear", {"seq hidden", "vocab hidden"}, {"seq vocab"}, {}, "takes 3 operands and gives 1 results, not 2 and 1"},
    {"linear", {"seq hidden", "vocab hidden", "seq"}, {"seq vocab"}, {}, "the bias has the last dims of operand 0"},
    {"linear_gelu", {"seq hidden", "vocab hidden", "vocab"}, {"seq vocab"}, {}, "needs the attribute fn"},
    {"linear_gelu",
     {"seq hidden", "vocab hidden", "vocab"},
     {"seq vocab", "seq vocab", "seq vocab"},
     {{"fn", std::string("gelu")}},
     "gives GELU's result, and its operand where that is read"},
    {"linear_gelu",
     {"seq hidden", "vocab hidden", "seq"},
     {"seq vocab"},
     {{"fn", std::string("gelu")}},
     "the bias has the last dims of operand 0"},
    {"linear_gelu",
     {"seq hidden", "vocab hidden", "vocab"},
     {"seq", "seq vocab"},
     {{"fn", std::string("gelu")}},
     "z and y must have the same dims"},
    {"matmul_dgelu",
     {"seq hidden", "vocab hidden", "seq hidden"},
     {"seq vocab"},
     {{"fn", std::string("gelu")}},
     "y and c must have the same dims"},
    {"matmul_dgelu",
     {"seq hidden", "vocab hidden", "seq vocab"},
     {"seq vocab"},
     {{"fn", std::string("exp")}},
     "does not know the function exp"},
    {"dropout", {"seq hidden", "i32 seq"}, {"seq hidden"}, {}, "needs the attribute dropout"},
    {"dropout", {"seq hidden", "seq"}, {"seq hidden"}, kDrop, "the last operand is an int32 for each token"},
    {"dropout", {"seq hidden", "i32 hidden"}, {"seq hidden"}, kDrop, "the last operand is an int32 for each token"},
    {"dropout",
     {"seq hidden", "i32 seq"},
     {"seq hidden"},
     {{"dropout", 1.0}, {"rng_key", int64_t{1}}},
     "the probability lies between 0 and 1"},
    {"bias_dropout_add",
     {"seq hidden", "hidden", "seq hidden"},
     {"seq hidden"},
     kDrop,
     "takes x, a bias, the residual, and noise where it drops"},
    {"bias_dropout_add", {"seq hidden", "seq", "seq hidden"}, {"seq hidden"}, {}, "the bias has the last dim of operand 0"},
    {"bias_dropout_add", {"seq hidden", "hidden", "seq"}, {"seq hidden"}, {}, "a and c must have the same dims"},
    {"gather", {"vocab hidden", "seq"}, {"seq hidden"}, {}, "operand 1 holds ids, int32"},
    {"gather", {"vocab hidden"}, {"seq hidden"}, {}, "takes 2 operands and gives 1 results, not 1 and 1"},
    {"gather", {"vocab hidden", "i32 seq"}, {"seq vocab"}, {}, "y has the dims of the ids and those of a after its first"},
    {"gather", {"vocab hidden", "i32 batch seq"}, {"seq hidden"}, {}, "y has the dims of the ids and those of a after its first"},
    {"gather", {"", "i32 seq"}, {"seq"}, {}, "y has the dims of the ids and those of a after its first"},
    {"scatter", {"seq hidden", "seq"}, {"vocab hidden"}, {}, "operand 1 holds ids, int32"},
    {"scatter", {"seq hidden", "i32 seq"}, {"hidden vocab"}, {}, "a has the dims of the ids and those of y after its first"},
    {"scatter", {"hidden seq", "i32 seq"}, {"vocab hidden"}, {}, "a has the dims of the ids and those of y after its first"},
    {"pick", {"seq vocab", "seq"}, {"seq"}, {}, "operand 1 holds ids, int32"},
    {"pick", {"vocab seq", "i32 seq"}, {"seq"}, {}, "a has the dims of the ids and one more"},
    {"pick", {"seq vocab", "i32 seq"}, {"batch"}, {}, "y and b must have the same dims"},
    {"unpick", {"seq", "seq"}, {"seq vocab"}, {}, "operand 1 holds ids, int32"},
    {"unpick", {"seq", "i32 seq"}, {"batch vocab"}, {}, "y has the dims of the ids and one more"},
    {"unpick", {"batch", "i32 seq"}, {"seq vocab"}, {}, "a and b must have the same dims"},
    {"rope", {"seq", "i32 seq"}, {"seq"}, {}, "needs the attribute sign"},
    {"rope", {"seq hidden", "i32 seq"}, {"seq"}, kRope, "a and y must have the same dims"},
    {"split_qkv", {}, {"seq", "seq", "seq"}, {}, "takes 1 operands, and positions where it rotates"},
    {"split_qkv", {"seq qkv kv_heads head_dim", "i32 seq"}, kSplit, {}, "needs the attribute sign"},
    {"split_qkv", {"seq qkv kv_heads head_dim"}, kSplit, kRope, "has no attribute sign"},
    {"split_qkv", {"seq qkv kv_heads head_dim", "seq"}, kSplit, kRope, "the last operand holds positions, int32"},
    {"split_qkv", {"seq qkv kv_heads head_dim"}, {kSplit[1], kSplit[1], kSplit[1]}, {}, kNotQkv},
    {"split_qkv", {"seq qkv kv_heads head_dim"}, {kSplit[0], kSplit[1], "kv_heads seq head_dim"}, {}, kNotQkv},
    {"split_qkv", {"seq two kv_heads head_dim"}, kSplit, {}, kNotQkv},
    {"split_qkv", {"batch qkv kv_heads head_dim"}, kSplit, {}, kNotQkv},
    {"split_qkv", {"seq qkv head_dim kv_heads"}, kSplit, {}, kNotQkv},
    {"join_qkv", {kSplit[0], kSplit[1]}, {"seq qkv kv_heads head_dim"}, {}, "takes 3 operands, and positions where it rotates"},
    {"join_qkv",
     {kSplit[0], kSplit[1], "seq hidden"},
     {"seq qkv kv_heads head_dim"},
     {},
     "a, b and c are not the queries, keys and values of rows [qkv = group + 2, kv_heads, head_dim]"},
    {"attention",
     std::vector<std::string>(8, "seq"),
     {"seq", "seq"},
     kAttentionAttrs,
     "takes 7 operands, and noise where it drops"},
    {"attention",
     {"seq", "seq", "seq", "i32 seq", "i32 seq", "i32 seq", "i32 seq"},
     {"seq", "seq"},
     {},
     "needs the attribute scale"},
    {"attention",
     {"seq", "seq", "seq", "i32 seq", "i32 seq", "i32 seq", "i32 seq"},
     {"seq", "seq"},
     {{"scale", 1.0}},
     "needs the attribute window"},
    {"attention",
     {"seq", "seq", "seq", "i32 seq", "i32 seq", "i32 seq", "i32 seq", "seq"},
     {"seq", "seq"},
     {{"scale", 1.0}, {"window", int64_t{0}}, {"dropout", 0.1}},
     "the noise is int32"},
    {"attention",
     {"seq", "seq", "batch", "i32 seq", "i32 seq", "i32 seq", "i32 seq"},
     {"seq", "seq"},
     kAttentionAttrs,
     "b and c must have the same dims"},
    {"attention_backward",
     std::vector<std::string>(11, "seq"),
     {"seq", "seq", "seq"},
     kAttentionAttrs,
     "takes 10 operands, and noise where it drops"},
    {"attention",
     {"batch seq hidden two two", "batch two hidden two", "batch two hidden two", "i32 seq", "i32 seq", "i32 seq", "i32 seq"},
     {"batch seq hidden two two", "seq"},
     kOneDocument,
     "one_document asks for as many keys as queries"},
    {"attention",
     {"batch seq hidden two two", "batch seq hidden two", "batch seq hidden two", "i32 seq", "i32 seq", "i32 seq", "i32 seq"},
     {"batch seq hidden two two", "seq"},
     {{"scale", 1.0}, {"window", int64_t{0}}, {"one_document", int64_t{0}}},
     "one_document is 1 or left out"},
    {"attention_backward",
     {"batch seq hidden two two", "batch seq hidden two two", "batch two hidden two", "batch two hidden two", "i32 seq",
      "i32 seq", "i32 seq", "i32 seq", "batch seq hidden two two", "seq"},
     {"batch seq hidden two two", "batch two hidden two", "batch two hidden two"},
     kOneDocument,
     "one_document asks for as many keys as queries"},
    {"attention",
     {"batch seq qkv kv_heads head_dim", "i32 batch seq", "i32 batch seq"},
     {"batch seq kv_heads group head_dim", "batch seq kv_heads group"},
     kAttentionAttrs,
     "takes 5 operands if they are one row"},
    {"attention",
     {"batch seq qkv kv_heads head_dim", "i32 batch seq", "i32 batch seq", "i32 batch seq", "i32 batch seq"},
     {"batch seq group kv_heads head_dim", "batch seq group kv_heads"},
     kAttentionAttrs,
     "rows [batch, seq, qkv = group + 2, kv_heads, head_dim] give [batch, seq, kv_heads, group, head_dim]"},
    {"attention",
     {"batch seq qkv kv_heads head_dim", "i32 batch seq", "i32 batch two", "i32 batch seq", "i32 batch two"},
     {"batch seq kv_heads group head_dim", "batch seq kv_heads group"},
     kAttentionAttrs,
     "rows of all have as many keys as queries"},
    {"attention_backward",
     {"batch seq kv_heads group head_dim", "batch seq qkv kv_heads head_dim", "i32 batch seq", "i32 batch seq", "i32 batch seq",
      "i32 batch seq", "batch seq kv_heads group head_dim", "batch seq kv_heads group"},
     {"batch seq qkv kv_heads head_dim", "batch seq", "batch seq"},
     kAttentionAttrs,
     "gives one row for one row"},
    {"attention_block", of_block(), {kOfQueries}, block_attrs(0), "takes -1 operands and gives 2 results, not 7 and 1"},
    {"attention_block", of_block(), kBlockResults, kAttentionAttrs, "needs the attribute shift"},
    {"attention_block", of_block(), kBlockResults, block_attrs(0, {{"any_order", int64_t{1}}}), "has no attribute any_order"},
    {"attention_block", of_block(), kBlockResults, block_attrs(2), "its shift 2 is not below its hops 2"},
    {"attention_block", of_block(), kBlockResults, block_attrs(-1), "its shift -1 is not below its hops 2"},
    {"attention_block", of_block(), kBlockResults, block_attrs(0, {{"head_tail", int64_t{0}}}), "head_tail is a number of ranks"},
    {"attention_block", of_block({kOfQueries, kOfRows}), kBlockResults, block_attrs(0), kCountsOfBlock},
    {"attention_block", of_block(), kBlockResults, block_attrs(1), kCountsOfBlock},
    {"attention_block", of_block({"i32 batch seq"}), kBlockResults, block_attrs(0), kCountsOfBlock},
    {"attention_block", of_block({kOfQueries, kOfRows}), kBlockResults, block_attrs(1),
     "goes on with result 0 elsewhere than it reads it"},
    {"attention_block", of_block({"batch seq"}), kBlockResults, block_attrs(0, kDrop), "the noise is int32"},
    {"attention_block", of_block({"i32 batch seq"}), kBlockResults, block_attrs(0, {{"dropout", 0.1}}),
     "needs the attribute rng_key"},
    {"attention_block", of_block({"i32 seq"}), kBlockResults, block_attrs(0, kDrop), "operand 7 is one number a token"},
    {"attention_block", with(of_block(), 4, "batch hidden"), kBlockResults, block_attrs(0), "positions and documents are int32"},
    {"attention_block", with(of_block(), 4, "i32 batch seq"), kBlockResults, block_attrs(0), "operand 4 is one number a token"},
    {"attention_block", with(of_block(), 2, "batch seq kv_heads head_dim"), kBlockResults, block_attrs(0),
     "b and c must have the same dims"},
    {"attention_block", with(of_block(), 1, kOfQueries), kBlockResults, block_attrs(0),
     "queries are [batch, seq, kv_heads, group, head_dim], keys [batch, kv_seq, kv_heads, head_dim]"},
    {"attention_block", of_block(), {kOfRows, kOfRows}, block_attrs(0), "a and y must have the same dims"},
    {"attention_block", of_block(), {kOfQueries, "batch seq"}, block_attrs(0), "z lacks the dim head_dim"},
    {"attention_block", of_block(), kBlockResults, block_attrs(0, {{"one_document", int64_t{0}}}),
     "one_document is 1 or left out"},
    {"attention_block_backward", of_block_backward({kOfQueries}), kBlockGradients, block_attrs(0),
     "takes 10 operands, noise where it drops, and behind the first block the 1 results that it goes on"},
    {"attention_block_backward", of_block_backward({kOfQueries}), kBlockGradients, block_attrs(1),
     "goes on with result 0 elsewhere than it reads it"},
    {"attention_block_backward", with(of_block_backward(), 9, "batch seq"), kBlockGradients, block_attrs(0),
     "j lacks the dim head_dim"},
    {"attention_block_backward", with(of_block_backward(), 8, kOfRows), kBlockGradients, block_attrs(0),
     "i and b must have the same dims"},
    {"attention_block_backward",
     of_block_backward(),
     {kOfQueries, kOfKeys, kOfQueries},
     block_attrs(0),
     "{ and c must have the same dims"},
    {"append",
     {"batch seq", "batch seq", "i32 batch seq"},
     {"batch seq"},
     {},
     "writes where it reads: its result is its first operand"},
    {"max", {"seq vocab"}, {"seq"}, {}, "needs the attribute over"},
    {"max", {"vocab seq"}, {"seq"}, kOverVocab, "vocab is the last dim"},
    {"exp_shifted", {"seq vocab", "seq"}, {"seq"}, {}, "a and y must have the same dims"},
    {"mask_padding", {"seq vocab"}, {"seq vocab"}, {}, "needs the attribute fill"},
    {"cross_entropy", {"seq vocab", "seq", "i32 seq"}, {"batch", "seq"}, {}, "b and y must have the same dims"},
    {"cross_entropy_backward", {"seq", "seq", "seq vocab", "seq", "i32 seq"}, {"seq"}, {}, "y and c must have the same dims"},
    {"cross_entropy_gradient",
     {"seq", "seq", "seq vocab", "i32 seq"},
     {"seq", "seq", "seq", "seq"},
     kOverVocab,
     "c and y must have the same dims"},
    {"all_gather", {"seq"}, {"seq"}, {}, "needs the attribute dim"},
    {"reduce_scatter", {"seq"}, {"batch"}, {{"dim", int64_t{0}}}, "a and y must have the same dims"},
    {"all_reduce", {"seq"}, {"seq", "seq"}, {}, "a member of a launch has one operand and one result, not 1 and 2"},
    {"slice", {"seq"}, {"seq"}, {}, "needs the attribute dim"},
    {"block", {"seq"}, {"seq"}, {{"dim", int64_t{0}}, {"shift", int64_t{-1}}}, "its shift is negative"},
    {"block", {"seq"}, {"seq"}, {{"dim", int64_t{1}}, {"shift", int64_t{0}}}, "it has no such dim"},
    {"join_blocks", {"seq"}, {"seq"}, {{"dim", int64_t{0}}}, "takes a block of each rank"},
    {"join_blocks", {"seq hidden", "seq hidden"}, {"seq vocab"}, {{"dim", int64_t{0}}}, "y and a differ in another dim"},
    {"sum_blocks", {"seq", "seq"}, {"seq"}, {}, "needs the attribute dim"},
    {"all_to_all",
     {"seq hidden"},
     {"seq hidden"},
     {{"from", int64_t{1}}, {"to", int64_t{1}}},
     "moves the group from a dim to the same one"},
    {"broadcast", {"seq"}, {"hidden"}, {{"root", int64_t{0}}}, "a and y must have the same dims"},
    {"permute", {"seq"}, {"hidden"}, {{"by", int64_t{1}}}, "a and y must have the same dims"},
    {"recv", {}, {"seq"}, {}, "needs the attribute peer"},
    {"send", {"seq"}, {"seq"}, {{"peer", int64_t{1}}}, "takes 1 operands and gives 0 results, not 1 and 1"},
    {"send", {"seq"}, {}, {}, "needs the attribute peer"},
    {"wait", {"seq"}, {}, {}, "needs the attribute peer"},
    {"adamw", {"seq", "seq", "seq", "seq", "seq"}, {"seq", "seq", "seq"}, {{"beta1", 0.9}}, "needs the attribute beta2"},
    {"adam", {"seq", "seq", "seq", "seq", "seq"}, {"seq", "seq", "seq"}, {{"beta1", 0.9}}, "needs the attribute beta2"},
    {"adamw", {"seq", "seq", "seq", "seq"}, {"seq", "seq", "seq"}, kAdam, "takes 5 operands, not 4"},
    {"adamw",
     {"seq", "seq", "seq", "seq", "seq"},
     {"seq", "seq", "seq"},
     with_places({}, {0, 1, 4, 1, 4, 4}),
     "takes 6 operands, not 5"},
    {"adam",
     {"seq", "seq", "seq", "seq", "", "seq"},
     {"seq", "seq", "seq"},
     with_places({}, {0, 1, 4, 1, 4, 4}),
     "only moments in bfloat16 are rounded at random"},
    {"adamw",
     {"seq", "seq", "bf16 seq", "bf16 seq", "seq", "seq"},
     {"seq", "seq", "seq"},
     with_places({}, {0, 1, 4, 1, 4, 4}),
     "the number of steps is one number"},
    {"adamw",
     {"seq", "seq", "bf16 seq", "bf16 seq", "", "seq"},
     {"seq", "seq", "seq"},
     with_places({0}, {0, 1, 4, 1, 4, 4}),
     "has not the whole numbers of each place"},
    {"adamw",
     {"seq", "seq", "bf16 seq", "bf16 seq", "", "seq"},
     {"seq", "seq", "seq"},
     with_places({}, {0, 1, 0, 1, 4, 4}),
     "has not the whole numbers of each place"},
    {"adamw",
     {"seq", "seq", "seq", "seq", "seq"},
     {"seq", "seq", "seq"},
     [] {
         ir::Attrs attrs = kAdam;
         attrs["seed"] = int64_t{1};
         return attrs;
     }(),
     "has one of seed and shards without the other"},
    {"sgd",
     {"seq", "seq", "seq"},
     {"seq"},
     {{"momentum", 0.9}, {"nesterov", int64_t{0}}, {"weight_decay", 0.0}},
     "takes weights, gradients, a buffer where it has momentum, and control"},
    {"muon_momentum", {"seq", "seq", "seq"}, {"seq", "seq"}, {{"momentum", 0.9}}, "needs the attribute nesterov"},
    {"orthogonalize", {"seq"}, {"seq"}, {{"ns_steps", int64_t{5}}, {"scale", 1.0}}, "takes a matrix"},
    {"orthogonalize",
     {"seq hidden"},
     {"hidden seq"},
     {{"ns_steps", int64_t{5}}, {"scale", 1.0}},
     "a and y must have the same dims"},
    {"muon", {"seq", "seq", "seq"}, {"seq"}, {}, "needs the attribute weight_decay"},
    {"unpack", {"seq"}, {"seq", "seq"}, {{"begins", std::vector<int64_t>{0}}}, "has one beginning a tensor"},
    {"pack", {"seq", "seq"}, {"seq"}, {{"begins", std::vector<int64_t>{0}}}, "has one beginning a tensor"},
    {"reshape", {"seq hidden"}, {"seq"}, {}, "keeps the number of elements"},
    {"sum_squares", {"seq"}, {""}, {}, "needs the attribute count_if"},
    {"owned", {""}, {""}, {}, "needs the attribute count_if"},
    {"step_control",
     {""},
     {""},
     {{"max_norm", 1.0}, {"beta1", 0.9}, {"beta2", 0.9}},
     "takes 5 operands, or 6 with a loss scale, and gives 2 results"},
    {"update_loss_scale", {"", "", "", ""}, {"", ""}, {}, "needs the attribute least"},
    {"outer_gradient", {"seq", "seq"}, {"seq"}, {}, "needs the attribute scale"},
    {"meet",
     {"seq"},
     {"seq"},
     {{"islands", int64_t{2}}, {"bits", int64_t{4}}, {"count_if", std::vector<int64_t>()}},
     "crosses islands as it is or in 8 bits, not in 4"},
    {"meet",
     {"seq"},
     {"seq"},
     {{"islands", int64_t{2}}, {"bits", int64_t{8}}, {"count_if", std::vector<int64_t>()}},
     "has 4 elements, which are no whole blocks"},
    {"outer_sgd",
     {"seq", "seq", "seq"},
     {"seq", "seq"},
     {{"lr", 0.7}, {"momentum", 0.9}, {"nesterov", int64_t{1}}, {"alpha", 0.0}},
     "takes weights, anchor, gradients, and a buffer where it has momentum"},
    {"zero_padding", {"seq"}, {"seq"}, {}, "needs the attribute ranges"},
    {"quantize", {"seq"}, {"seq"}, {{"bits", int64_t{8}}, {"least", int64_t{-120}}}, "it is between floats and int8"},
    {"dequantize", {"seq"}, {"seq"}, {}, "needs the attribute bits"},
    {"dequantize_sum", {"seq"}, {"seq"}, {{"bits", int64_t{8}}}, "it is between floats and int8"},
    {"amax", {"seq hidden"}, {"vocab"}, {}, "vocab of y is no dim of a and coarse of none"},
    {"amax", {"seq hidden"}, {"seq seq"}, {}, "y has groups of seq twice"},
    {"amax", {"i32 seq"}, {""}, {}, "a is i32"},
    {"to_float8", {"seq", ""}, {"seq", ""}, {}, "y is f32, not float8"},
    {"to_float8", {"seq", "hidden"}, {"seq", "hidden"}, {}, "hidden of b is no dim of a and coarse of none"},
    {"to_float8", {"seq", ""}, {"seq", "i32"}, {}, "b and z are of two types"},
    {"float8_scale", {""}, {""}, {{"type", std::string("f32")}}, "type is 'f32', not float8"},
    {"float8_scale", {""}, {"i32"}, {{"type", std::string("f8e4m3")}}, "a and y are not both f32, or both f64"},
    {"member_amax", {"seq"}, {"seq"}, {{"ranges", std::vector<int64_t>{0, 0, 2}}}, "y is not one number"},
    {"member_amax", {"seq"}, {""}, {{"ranges", std::vector<int64_t>{0, 0}}}, "its ranges are no triples"},
    {"member_amax", {"seq"}, {""}, {{"ranges", std::vector<int64_t>{0, 1, 5}}}, "its range 1 to 5 is not inside 4 elements"},
    {"member_amax", {"seq"}, {""}, {{"ranges", std::vector<int64_t>{1, 0, 2}}}, "a range is of 1, and there are 1"},
    {"member_amax",
     {"seq"},
     {""},
     {{"ranges", std::vector<int64_t>{0, 0, 2}}, {"rounded", std::string("i32")}},
     "it is rounded to 'i32', which is no float"},
    {"member_float8", {"seq", ""}, {"seq"}, {{"ranges", std::vector<int64_t>{0, 0, 2}}}, "y is f32, not float8"},
    {"member_float8", {"seq"}, {"seq"}, {}, "needs the attribute ranges"},
    {"to_blocks",
     {"seq hidden"},
     {"seq hidden", "seq two"},
     {{"along", std::string("hidden")}, {"block", int64_t{2}}},
     "y is f32, not float8"},
    {"from_float8", {"seq", ""}, {"seq"}, {}, "a is f32, not float8"},
    {"from_float8", {"seq", "", ""}, {"seq"}, {}, "takes codes, and maybe a scale"},
    {"apply_scales", {"seq"}, {"seq"}, {}, "takes two operands or more"},
    {"apply_scales", {"seq", ""}, {"seq hidden"}, {}, "a and y must have the same dims"},
    {"apply_scales", {"seq", "", "hidden"}, {"seq"}, {}, "hidden of c is no dim of a and coarse of none"},
    {"scaled_einsum", {"seq hidden", "vocab hidden"}, {"seq vocab"}, {}, "takes 4 operands and gives 1 results, not 2 and 1"},
    {"scaled_einsum", {"seq hidden", "vocab hidden", "", ""}, {"seq vocab"}, {}, "a is f32, not float8"},
    {"inverse_count", {"", ""}, {""}, {}, "takes 1 operands and gives 1 results, not 2 and 1"},
    {"copy", {"", ""}, {""}, {}, "takes 1 operands and gives 1 results, not 2 and 1"},
};
INSTANTIATE_TEST_SUITE_P(Rules, OpRefusal, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return fmt::format("{}_{}", info.param.kind, info.index); });

TEST(OpRefusalCoverage, EveryKindHasOne) {
    for (const ops::OpRule& rule : ops::all_rules()) {
        EXPECT_TRUE(std::any_of(std::begin(kRefusals), std::end(kRefusals), [&](const Refusal& r) {
            return r.kind == rule.name;
        })) << rule.name;
    }
}

TEST(OpRefusalCoverage, TheTableOfCasesIsAccepted) {
    for (const OpCase& c : op_cases()) {
        std::mt19937 random(0);
        const ir::Routine r = make_routine(c, {}, random, Results::Written);
        EXPECT_EQ(ops::check_op(r, r.ops[0]), "") << c.kind << " " << c.name;
    }
}

ops::Flops flops_of_step(const Settings& settings) {
    const ir::Program p = program_after("plan_memory", settings);
    ops::Flops sum;
    for (const ir::Call& c : p.entry(ir::EntryKind::Train)->calls) {
        const ir::Routine& r = p.routines[c.routine];
        for (const ir::Op& op : r.ops) {
            const ops::Flops f = ops::flops_of(p.mesh, r, op);
            sum.model += f.model, sum.executed += f.executed;
        }
    }
    return sum;
}

// 6 FLOPs a weight of a matrix and token, 12 s x s x width a layer and sequence for attention.
constexpr double kTokensOfAStep = 8, kLayer = 16 * 8 + 2 * 8 * 8 + 8 * 16 + 3 * 8 * 12, kHead = 16 * 8,
                 kAttention = 12 * 8 * 8 * 16;
constexpr double kModelFlops = 6 * kTokensOfAStep * (2 * kLayer + kHead) + 2 * kAttention;

TEST(OpFlops, OfAStepByHand) { EXPECT_DOUBLE_EQ(flops_of_step({}).model, kModelFlops); }

TEST(OpFlops, MicrobatchesAddUp) {
    EXPECT_DOUBLE_EQ(flops_of_step({{"training.global_batch_size", "3"}}).model, 3 * kModelFlops);
}

TEST(OpFlops, OfEveryLayoutTogetherAreThoseOfOneRank) {
    EXPECT_DOUBLE_EQ(flops_of_step({{"parallelism.tensor_parallel_degree", "2"}}).model * 2, kModelFlops);
    EXPECT_DOUBLE_EQ(flops_of_step({{"parallelism.data_parallel_shard_degree", "2"}}).model,
                     kModelFlops);  // as many tokens on each rank
    EXPECT_DOUBLE_EQ(flops_of_step({{"training.fuse_loss", "false"}}).model, kModelFlops);
}

// The blocks of a ring of two ranks, whose sequence is split, and the op that they are made of.
TEST(OpFlops, BlocksOfARingTogetherAreAttentionOverAllKeys) {
    const mesh::Mesh mesh = mesh::Mesh::build({1, 1, 1, 2, 1, 1}, {});
    for (const int64_t window : {0, 3}) {
        ir::Routine r;
        for (const char* d : {"batch", "seq", "kv_seq", "kv_heads", "group", "head_dim"}) r.dims.push_back({d, 8, 8});
        ops::Builder b(r);
        const auto tensor = [&](const char* name, std::initializer_list<std::string_view> dims) {
            const ir::TensorId t = b.make({name, b.dims(dims)});
            for (const ir::DimId d : r.tensors[t].dims)
                r.tensors[t].placement.dims.push_back(d == 1 || d == 2 ? mesh.all() : mesh::AxisList{});
            return t;
        };
        const ir::TensorId q = tensor("q", {"batch", "seq", "kv_heads", "group", "head_dim"}),
                           k = tensor("k", {"batch", "kv_seq", "kv_heads", "head_dim"});
        for (const bool forward : {true, false}) {
            ir::Op op;
            op.kind = forward ? "attention" : "attention_backward";
            op.in = forward ? std::vector<ir::TensorId>{q, k, k} : std::vector<ir::TensorId>{q, q, k, k};
            op.out = {q, k, k};
            op.attrs = {{"scale", 1.0}, {"window", window}};
            const ops::Flops whole = ops::flops_of(mesh, r, op);
            op.kind = forward ? "attention_block" : "attention_block_backward";
            ops::Flops sum;
            for (int64_t shift = 0; shift < 2; ++shift) {
                op.attrs["shift"] = shift, op.attrs["hops"] = int64_t{2};
                const ops::Flops f = ops::flops_of(mesh, r, op);
                sum.model += f.model, sum.executed += f.executed;
            }
            EXPECT_DOUBLE_EQ(sum.model, whole.model);
            EXPECT_DOUBLE_EQ(sum.executed, whole.executed);
            const double products = forward ? 2 : 4, pairs = 8.0 * 4 * 8 * 8 * 8, seen = window == 0 ? 8 : 3;
            EXPECT_DOUBLE_EQ(sum.model, products * 2 * pairs * seen);
        }
    }
}

TEST(OpFlops, RecomputeIsExecutedButNotCounted) {
    const ops::Flops plain = flops_of_step({}), again = flops_of_step({{"activation_checkpoint.mode", "full"}});
    EXPECT_DOUBLE_EQ(again.model, plain.model);
    // The forward's products but the last run again, and the causal half of attention.
    const double products = 2 * kTokensOfAStep * (kLayer - 8 * 12), attention = kAttention / 12;
    EXPECT_GT(again.executed - plain.executed, 2 * (products + attention));
    EXPECT_LT(again.executed - plain.executed, 2 * 1.5 * (products + attention));
}

TEST(OpMatmul, ShapesAreLocalAndTransposesFollowStorage) {
    const mesh::Mesh mesh = mesh::Mesh::build({1, 1, 1, 1, 1, 2}, {});
    const auto shape = [&](std::vector<ir::DimId> a, std::vector<ir::DimId> b, std::vector<ir::DimId> y) {
        ir::Routine r;
        r.dims = {{"m", 6, 6}, {"n", 10, 10}, {"k", 14, 14}, {"j", 3, 3}};
        ops::Builder builder(r);
        const ir::TensorId ta = builder.make({"a", a}), tb = builder.make({"b", b});
        builder.einsum("y", y, {ta, tb});
        for (ir::Tensor& t : r.tensors) {
            for (ir::DimId d : t.dims) t.placement.dims.push_back(d == 1 ? mesh.all() : mesh::AxisList{});
        }
        ops::MatmulShape s;
        if (!ops::is_matmul(mesh, r, r.ops[0], &s)) return std::string("none");
        return fmt::format("{}x{}x{}{}{}{}", s.m, s.n, s.k, s.a_transposed ? " a" : "", s.b_transposed ? " b" : "",
                           s.swapped ? " swapped" : "");
    };
    enum { m, n, k, j };
    EXPECT_EQ(shape({m, k}, {n, k}, {m, n}), "6x5x14");
    EXPECT_EQ(shape({k, m}, {n, k}, {m, n}), "6x5x14 a");
    EXPECT_EQ(shape({m, k}, {k, n}, {m, n}), "6x5x14 b");
    EXPECT_EQ(shape({k, m}, {k, n}, {m, n}), "6x5x14 a b");
    EXPECT_EQ(shape({n, k}, {m, k}, {m, n}), "6x5x14 swapped");
    EXPECT_EQ(shape({m, k, j}, {n, k, j}, {m, n}), "6x5x42");
    EXPECT_EQ(shape({m, k, j}, {n, j, k}, {m, n}), "none");     // the contraction in two orders
    EXPECT_EQ(shape({j, m, k}, {j, n, k}, {j, m, n}), "none");  // one product for each j
    EXPECT_EQ(shape({m, j, k}, {n, k}, {m, n, j}), "none");     // not row-major
    EXPECT_EQ(shape({m, k}, {k}, {m}), "none");
}

}  // namespace
}  // namespace lockstep::testing
