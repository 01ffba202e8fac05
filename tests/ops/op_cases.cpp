#include "tests/ops/op_cases.h"
#include "base/quantized.h"

#include <algorithm>
#include <limits>
#include <sstream>

namespace lockstep::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const std::string kQ = "batch seq kv_heads group head_dim", kK = "batch kv_seq kv_heads head_dim", kRows = "batch seq",
                  kNewK = "batch seq kv_heads head_dim", kQkv = "batch seq qkv kv_heads head_dim", kKeys = "batch kv_seq",
                  kLse = "batch seq kv_heads group";

Operand fixed(const std::string& dims, Fill fill = Fill::Normal) { return {dims, fill, false}; }
OpResult final_of(const std::string& dims) { return {dims, -1, false}; }

ir::Attrs rope(int64_t sign, double factor) {
    return {{"sign", sign},           {"theta", 10000.0},        {"factor", factor},
            {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_positions", 32.0}};
}

// Blocks of a ring's attention: what the first one takes and what later ones go on with.
struct BlockCase {
    std::string name;
    std::vector<Operand> masks;
    ir::Attrs attrs;
    std::vector<Operand> noise = {};
    std::string split = "";
    std::map<std::string, int64_t> sizes = {};
};
void add_block(std::vector<OpCase>& cases, const BlockCase& c, Fill outputs, Fill log_sums) {
    const auto part = [&](std::string kind, std::vector<Operand> in, std::vector<Operand> carry, std::vector<OpResult> out) {
        in.insert(in.end(), c.noise.begin(), c.noise.end());
        for (size_t i = 0; i < carry.size(); ++i) out[i].operand = static_cast<int>(in.size() + i);
        in.insert(in.end(), carry.begin(), carry.end());
        ir::Attrs attrs = c.attrs;
        attrs["hops"] = int64_t{3}, attrs["shift"] = int64_t{carry.empty() ? 0 : 2};
        cases.push_back({c.name, kind, in, out, attrs, c.split, c.sizes});
    };
    std::vector<Operand> in = {fixed(kQ), fixed(kK), fixed(kK)};
    in.insert(in.end(), c.masks.begin(), c.masks.end());
    const bool carries = outputs != Fill::Normal;
    const std::vector<Operand> carry = {fixed(kQ, outputs), fixed(kLse, log_sums)}, sum = {fixed(kQ)}, none;
    part("attention_block", in, carries ? carry : none, {final_of(kQ), final_of(kLse)});
    in.insert(in.begin(), fixed(kQ));
    in.insert(in.end(), {fixed(kQ), fixed(kLse, log_sums == Fill::NoLogSums ? log_sums : Fill::Normal)});
    part("attention_block_backward", in, carries ? sum : none, {final_of(kQ), final_of(kK), final_of(kK)});
}

std::vector<OpCase> block_cases() {
    const ir::Attrs whole = {{"scale", 0.4}, {"window", int64_t{0}}}, windowed = {{"scale", 0.4}, {"window", int64_t{2}}},
                    soft = {{"scale", 0.1}, {"window", int64_t{0}}}, wide_window = {{"scale", 0.1}, {"window", int64_t{70}}},
                    one = {{"scale", 0.1}, {"window", int64_t{0}}, {"one_document", int64_t{1}}, {"head_tail", int64_t{3}}};
    const auto dropping = [](ir::Attrs attrs) {
        attrs["dropout"] = 0.3, attrs["rng_key"] = int64_t{12345};
        return attrs;
    };
    const auto masks = [](Fill queries, Fill keys, Fill documents) {
        return std::vector<Operand>{fixed(kRows, queries), fixed(kKeys, keys), fixed(kRows, documents), fixed(kKeys, documents)};
    };
    const std::vector<Operand> mixed = masks(Fill::Positions, Fill::Positions, Fill::Documents),
                               hidden = masks(Fill::Positions, Fill::Later, Fill::Documents),
                               seen = masks(Fill::Later, Fill::Counted, Fill::Zero),
                               causal = masks(Fill::Counted, Fill::Counted, Fill::Zero), noise = {fixed(kRows, Fill::Noise)};
    const auto sizes = [](int64_t seq, int64_t keys, int64_t group, int64_t head_dim) {
        return std::map<std::string, int64_t>{{"batch", 1},    {"seq", seq},     {"kv_seq", keys},
                                              {"kv_heads", 2}, {"group", group}, {"head_dim", head_dim}};
    };
    std::vector<OpCase> cases;
    const auto first = [&](const BlockCase& c) { add_block(cases, c, Fill::Normal, Fill::Normal); };
    const auto later = [&](const BlockCase& c) { add_block(cases, c, Fill::Outputs, Fill::LogSums); };
    const auto after_nothing = [&](const BlockCase& c) { add_block(cases, c, Fill::NoOutputs, Fill::NoLogSums); };
    first({"first", mixed, whole});
    first({"first_in_a_window", mixed, windowed});
    first({"first_hidden", hidden, whole});
    first({"first_dropped", mixed, dropping(whole), noise});
    first({"first_200_128", causal, one, {}, "", sizes(200, 200, 2, 128)});
    first({"first_of_more_keys", seen, soft, {}, "", sizes(70, 200, 2, 64)});
    later({"later", mixed, whole});
    later({"later_in_a_window", mixed, windowed});
    later({"later_hidden", hidden, whole});
    later({"later_seen", seen, whole});
    later({"later_dropped", mixed, dropping(windowed), noise});
    later({"later_dropped_on_half_of_the_heads", mixed, dropping(whole), noise, "kv_heads"});
    later({"later_of_fewer_keys", causal, soft, {}, "", sizes(200, 72, 1, 128)});
    later({"later_of_more_keys", causal, wide_window, {}, "", sizes(72, 264, 2, 64)});
    later({"later_of_one_key", mixed, whole, {}, "", sizes(9, 1, 3, 6)});
    after_nothing({"after_nothing_hidden", hidden, whole});
    after_nothing({"after_nothing_hidden_200_64", hidden, dropping(soft), noise, "", sizes(200, 136, 1, 64)});
    add_block(cases, {"after_nothing", mixed, whole}, Fill::NoOutputs, Fill::NoLogSums);
    cases.pop_back();  // no backward: where a query sees a key, its sum of all blocks is finite
    return cases;
}

std::vector<OpCase> float8_cases() {
    const std::string x = "batch seq hidden", y = "batch seq ffn", w = "ffn hidden", tokens = "batch.g seq.g";
    const auto codes = [](const std::string& dims) { return fixed(dims, Fill::E4M3); };
    const auto gradients = [](const std::string& dims) { return fixed(dims, Fill::E5M2); };
    const auto scale = [](const std::string& dims) { return fixed(dims, Fill::Positive); };
    const ir::Attrs power_of_two = {{"power_of_two", int64_t{1}}}, fast = {{"fast", int64_t{1}}};
    const std::map<std::string, int64_t> long_sum = {{"batch", 2}, {"seq", 36}, {"hidden", 600}, {"ffn", 136}},
                                         many_blocks = {{"batch", 2}, {"seq", 550}, {"hidden", 24}, {"ffn", 2112}};
    std::vector<OpCase> cases;
    struct Groups {
        const char *name, *dims, *split;
    };
    for (const Groups& g : {Groups{"whole", "", ""},
                            {"tokens", "batch.g seq.g", ""},
                            {"sequences", "batch.g", "batch"},
                            {"rows", "batch seq", ""},
                            {"columns", "batch.g hidden", ""},
                            {"blocks", "batch seq hidden.g", ""},
                            {"tiles", "batch seq.g hidden.g", ""},
                            {"columns_of_sequences", "batch hidden", ""}}) {
        cases.push_back({g.name, "amax", {fixed(x)}, {final_of(g.dims)}, {}, g.split});
        for (const Dtype type : {Dtype::F8E4M3, Dtype::F8E5M2}) {
            const bool is_e4m3 = type == Dtype::F8E4M3;
            const std::string name = std::string(g.name) + (is_e4m3 ? "_e4m3" : "_e5m2");
            cases.push_back({name,
                             "to_float8",
                             {fixed(x), scale(g.dims)},
                             {{x, -1, false, type}, final_of(g.dims)},
                             is_e4m3 ? ir::Attrs{} : power_of_two,
                             g.split});
            cases.push_back(
                {name, "from_float8", {is_e4m3 ? codes(x) : gradients(x), scale(g.dims)}, {final_of(x)}, {}, g.split});
        }
    }
    // More than a block of a GPU takes at once.
    const std::map<std::string, int64_t> large = {{"batch", 2}, {"seq", 48}, {"hidden", 400}};
    for (const auto& [name, dims] : {std::pair{"large", ""}, {"large_sequences", "batch"}}) {
        cases.push_back({name, "amax", {fixed(x)}, {final_of(dims)}, {}, "", large});
        cases.push_back(
            {name, "to_float8", {fixed(x), scale(dims)}, {{x, -1, false, Dtype::F8E4M3}, final_of(dims)}, {}, "", large});
        cases.push_back({name, "from_float8", {codes(x), scale(dims)}, {final_of(x)}, {}, "", large});
    }
    const auto ranges = [](std::vector<int64_t> triples) {
        return std::pair<std::string, ir::Attr>("ranges", std::move(triples));
    };
    cases.push_back({"e4m3", "float8_scale", {scale("ffn")}, {final_of("ffn")}, {{"type", std::string("f8e4m3")}}, ""});
    cases.push_back({"e5m2_power_of_two",
                     "float8_scale",
                     {scale("ffn")},
                     {final_of("ffn")},
                     {{"type", std::string("f8e5m2")}, {"power_of_two", int64_t{1}}},
                     ""});
    cases.push_back({"of_two_segments",
                     "member_amax",
                     {fixed("blocks"), fixed("blocks")},
                     {final_of("")},
                     {ranges({0, 0, 100, 0, 300, 700, 1, 5, 6})},
                     ""});
    cases.push_back({"rounded",
                     "member_amax",
                     {fixed("blocks")},
                     {final_of("")},
                     {ranges({0, 64, 768}), {"rounded", std::string("bf16")}},
                     ""});
    cases.push_back({"with_padding",
                     "member_float8",
                     {fixed("blocks"), scale("")},
                     {{"blocks", -1, false, Dtype::F8E4M3}},
                     {ranges({0, 1, 300, 0, 333, 700})},
                     ""});
    cases.push_back({"power_of_two",
                     "member_float8",
                     {fixed("blocks"), scale("")},
                     {{"blocks", -1, false, Dtype::F8E4M3}},
                     {ranges({0, 0, 768}), {"power_of_two", int64_t{1}}},
                     ""});
    const auto exponents = [](const std::string& dims) { return fixed(dims, Fill::E8M0); };
    const auto blocks = [&](const char* name, const char* along, const char* rounding, Dtype type, const char* split = "",
                            const std::map<std::string, int64_t>& sizes = {}) {
        const std::string groups = std::string(along) == "seq" ? "batch seq.g hidden" : "batch seq hidden.g";
        ir::Attrs attrs = {{"along", std::string(along)}, {"block", int64_t{0}}};
        if (*rounding) attrs["rounding"] = std::string(rounding);
        const Dtype of_scale = *rounding ? Dtype::E8M0 : Dtype::F32;
        cases.push_back({name,
                         "to_blocks",
                         {fixed(x)},
                         {{x, -1, false, type}, {groups, -1, false, of_scale}},
                         std::move(attrs),
                         split,
                         sizes});
    };
    const std::map<std::string, int64_t> of_32 = {{"batch", 3}, {"seq", 64}, {"hidden", 96}},
                                         of_128 = {{"batch", 2}, {"seq", 256}, {"hidden", 384}},
                                         of_300 = {{"batch", 2}, {"seq", 600}, {"hidden", 300}};
    for (const char* along : {"hidden", "seq"}) {
        const bool is_last = std::string(along) == "hidden";
        blocks(is_last ? "floor" : "columns_floor", along, "floor", Dtype::F8E4M3);
        blocks(is_last ? "rceil" : "columns_rceil", along, "rceil", Dtype::F8E4M3);
        blocks(is_last ? "floor_e5m2" : "columns_floor_e5m2", along, "floor", Dtype::F8E5M2);
        blocks(is_last ? "rceil_e5m2" : "columns_rceil_e5m2", along, "rceil", Dtype::F8E5M2, is_last ? "batch" : "seq");
        blocks(is_last ? "floats" : "columns_floats", along, "", Dtype::F8E4M3, "batch");
        blocks(is_last ? "floats_e5m2" : "columns_floats_e5m2", along, "", Dtype::F8E5M2);
        blocks(is_last ? "floor_32" : "columns_floor_32", along, "floor", Dtype::F8E4M3, "", of_32);
        blocks(is_last ? "rceil_32" : "columns_rceil_32", along, "rceil", Dtype::F8E4M3, "", of_32);
        blocks(is_last ? "floats_128" : "columns_floats_128", along, "", Dtype::F8E4M3, "", of_128);
        blocks(is_last ? "floor_of_100" : "columns_floor_of_300", along, "floor", Dtype::F8E4M3, "", of_300);
    }
    cases.push_back({"codes", "from_float8", {codes(x)}, {final_of(x)}, {}, ""});
    cases.push_back({"powers", "from_float8", {codes(x), exponents("batch seq hidden.g")}, {final_of(x)}, {}, ""});
    cases.push_back({"one", "apply_scales", {fixed(x), scale("")}, {final_of(x)}, {}, ""});
    cases.push_back({"powers", "apply_scales", {fixed(x), exponents("batch seq"), exponents("hidden")}, {final_of(x)}, {}, ""});
    cases.push_back(
        {"groups", "apply_scales", {fixed(x), scale("batch.g seq.g"), scale("hidden.g")}, {final_of(x)}, {}, "batch"});
    const auto product = [&](const char* name, std::vector<Operand> in, const std::string& out, const char* split = "",
                             const std::map<std::string, int64_t>& sizes = {}, const ir::Attrs& attrs = {}) {
        cases.push_back({name, "scaled_einsum", std::move(in), {final_of(out)}, attrs, split, sizes});
    };
    product("forward", {codes(x), codes(w), scale(tokens), scale("")}, y, "", {}, fast);
    product("to_operand", {gradients(y), codes(w), scale("batch.g"), scale("")}, x);
    product("to_weight", {gradients(y), codes(x), scale(tokens), scale(tokens)}, w);
    product("to_weight_swapped", {codes(x), gradients(y), scale("batch.g"), scale("")}, w);
    product("of_rows", {codes(x), codes(w), scale("batch seq"), scale("ffn")}, y);
    product("of_blocks", {codes(x), gradients(w), scale("batch seq hidden.g"), scale("ffn.g hidden.g")}, y);
    product("of_tiles", {codes(x), codes(w), scale("batch seq hidden.g"), scale("ffn.g hidden.g")}, y);
    product("of_columns", {gradients(y), codes(x), scale("ffn"), scale("hidden")}, w);
    product("of_powers", {codes(x), codes(w), exponents("batch seq hidden.g"), exponents("ffn hidden.g")}, y);
    product("of_powers_along_tokens", {codes(y), codes(x), exponents("batch seq.g ffn"), exponents("batch seq.g hidden")}, w);
    product("of_powers_of_rows", {codes(x), codes(w), exponents("batch seq"), exponents("ffn hidden.g")}, y);
    product("of_powers_and_floats", {codes(x), codes(w), exponents("batch seq hidden.g"), scale("ffn")}, y);
    product("on_a_shard_of_powers", {codes(y), codes(x), exponents("batch seq.g ffn"), exponents("batch seq.g hidden")}, w,
            "seq");
    product("on_a_shard_of_the_sum", {codes(x), codes(w), scale("batch.g"), scale("")}, y, "hidden");
    product("on_a_shard_of_groups", {gradients(y), codes(x), scale(tokens), scale("batch.g")}, w, "batch");
    product("of_no_matrices", {codes(x), codes(x), scale("batch.g"), scale("")}, "batch seq");
    // What libraries serve: a scale for each factor, multiples of 16.
    const std::map<std::string, int64_t> of_blocks = {{"batch", 2}, {"seq", 40}, {"hidden", 96}, {"ffn", 112}};
    product("of_one_scale", {codes(x), codes(w), scale(""), scale("")}, y, "", of_blocks, fast);
    product("of_one_scale_to_operand", {gradients(y), codes(w), scale(""), scale("")}, x, "", of_blocks);
    product("of_one_scale_to_weight", {gradients(y), codes(x), scale(""), scale("")}, w, "", of_blocks);
    product("of_one_scale_swapped", {codes(x), gradients(y), scale(""), scale("")}, w, "", of_blocks);
    // And rows, 128 elements, 128 x 128, and powers of two for 32 elements, each as in the three products of a layer.
    product("of_rows_and_columns", {codes(x), codes(w), scale("batch seq"), scale("ffn")}, y, "", of_blocks, fast);
    product("of_rows_and_one_scale", {codes(y), codes(w), scale("batch seq"), scale("")}, x, "", of_blocks);
    product("of_rows_to_operand", {codes(y), codes(w), scale("batch seq"), scale("hidden")}, x, "", of_blocks);
    product("of_rows_to_weight", {codes(y), codes(x), scale("ffn"), scale("hidden")}, w, "", of_blocks);
    product("of_rows_swapped", {codes(x), codes(y), scale("hidden"), scale("ffn")}, w, "", of_blocks);
    const std::map<std::string, int64_t> by_128 = {{"batch", 1}, {"seq", 256}, {"hidden", 384}, {"ffn", 512}},
                                         by_32 = {{"batch", 1}, {"seq", 64}, {"hidden", 96}, {"ffn", 128}};
    const std::string of_tiles = "ffn.g hidden.g";
    product("of_128", {codes(x), codes(w), scale("batch seq hidden.g"), scale(of_tiles)}, y, "", by_128, fast);
    product("of_128_to_operand", {codes(y), codes(w), scale("batch seq ffn.g"), scale(of_tiles)}, x, "", by_128);
    product("of_128_to_weight", {codes(y), codes(x), scale("batch seq.g ffn"), scale("batch seq.g hidden")}, w, "", by_128);
    product("of_128_swapped", {codes(w), codes(x), scale(of_tiles), scale("batch seq hidden.g")}, y, "", by_128);
    product("of_32", {codes(x), codes(w), exponents("batch seq hidden.g"), exponents("ffn hidden.g")}, y, "", by_32, fast);
    product("of_32_to_operand", {codes(y), codes(w), exponents("batch seq ffn.g"), exponents("ffn.g hidden")}, x, "", by_32);
    product("of_32_to_weight", {codes(y), codes(x), exponents("batch seq.g ffn"), exponents("batch seq.g hidden")}, w, "", by_32);
    product("long_sum", {codes(x), codes(w), scale(tokens), scale("")}, y, "", long_sum);
    product("long_sum_of_blocks", {codes(x), codes(w), scale("batch hidden.g"), scale("ffn")}, y, "", long_sum);
    product("long_sum_of_powers", {codes(x), codes(w), exponents("batch seq hidden.g"), exponents("ffn hidden.g")}, y, "",
            long_sum);
    product("many_blocks_of_powers_turned", {codes(y), codes(x), exponents("batch seq.g ffn"), exponents("batch seq.g hidden")},
            w, "", many_blocks);
    product("many_blocks_of_tiles", {codes(x), codes(w), scale("batch seq hidden.g"), scale("ffn.g hidden.g")}, y, "",
            many_blocks);
    product("many_blocks", {codes(x), codes(w), scale(tokens), scale("")}, y, "", many_blocks);
    product("many_blocks_turned", {gradients(y), codes(x), scale(tokens), scale(tokens)}, w, "", many_blocks);
    return cases;
}

std::vector<OpCase> make_cases() {
    const std::pair<const std::string, ir::Attr> kBits8 = {"bits", int64_t{8}}, kBits4 = {"bits", int64_t{4}};
    const std::vector<Operand> masks = {fixed(kRows, Fill::Positions), fixed(kKeys, Fill::Positions),
                                        fixed(kRows, Fill::Documents), fixed(kKeys, Fill::Documents)};
    std::vector<Operand> attention = {{kQ}, {kK}, {kK}};
    attention.insert(attention.end(), masks.begin(), masks.end());
    const ir::Attrs norm = {{"eps", 1e-3}, {"over", std::string("hidden")}},
                    head_norm = {{"eps", 1e-3}, {"over", std::string("head_dim")}};
    const auto fn = [](const char* f) { return ir::Attrs{{"fn", std::string(f)}}; };
    const auto with = [](ir::Attrs attrs, const ir::Attrs& more) {
        attrs.insert(more.begin(), more.end());
        return attrs;
    };
    const ir::Attrs drop = {{"dropout", 0.3}, {"rng_key", int64_t{12345}}}, whole = {{"scale", 0.4}, {"window", int64_t{0}}},
                    windowed = {{"scale", 0.4}, {"window", int64_t{2}}};
    std::vector<Operand> attention_with_noise = attention;
    attention_with_noise.push_back(fixed(kRows, Fill::Noise));
    std::vector<Operand> of_one_document = {{kQ}, {kK}, {kK}};
    for (const Fill fill : {Fill::Counted, Fill::Zero}) {
        for (const std::string& dims : {kRows, kKeys}) of_one_document.push_back(fixed(dims, fill));
    }
    // Queries, keys and values in one row.
    std::vector<Operand> of_rows = {{kQkv}}, of_rows_of_one_document = {{kQkv}};
    of_rows.insert(of_rows.end(), masks.begin(), masks.end());
    of_rows_of_one_document.insert(of_rows_of_one_document.end(), of_one_document.begin() + 3, of_one_document.end());
    const ir::Attrs one = {{"scale", 0.1}, {"window", int64_t{0}}, {"one_document", int64_t{1}}},
                    one_windowed = {{"scale", 0.1}, {"window", int64_t{70}}, {"one_document", int64_t{1}}};
    const auto heads = [](int64_t seq, int64_t group, int64_t head_dim) {
        return std::map<std::string, int64_t>{
            {"batch", 1}, {"seq", seq}, {"kv_heads", 2}, {"group", group}, {"head_dim", head_dim}};
    };
    const std::vector<OpResult> attends = {{kQ}, final_of("batch seq kv_heads group")};
    const ir::Attrs nesterov = {{"momentum", 0.9}, {"nesterov", int64_t{1}}};
    const ir::Attrs adamw = {{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
    return {
        {"product", "einsum", {{"batch seq hidden"}, {"ffn hidden"}}, {{"batch seq ffn"}}, {}, ""},
        {"product_of_many_dims", "einsum", {{kQ}, {"hidden kv_heads group head_dim"}}, {{"batch seq hidden"}}, {}, ""},
        {"product_of_the_other_side", "einsum", {{"batch seq ffn"}, {"ffn hidden"}}, {{"batch seq hidden"}}, {}, ""},
        {"gradient_of_a_weight", "einsum", {{"batch seq ffn"}, {"batch seq hidden"}}, {{"ffn hidden"}}, {}, ""},
        {"gradient_of_a_weight_swapped", "einsum", {{"batch seq hidden"}, {"batch seq ffn"}}, {{"ffn hidden"}}, {}, ""},
        {"product_on_a_shard", "einsum", {{"batch seq ffn"}, {"hidden ffn"}}, {{"batch seq hidden"}}, {}, "ffn"},
        {"sum", "einsum", {{"batch seq hidden"}}, {{"seq"}}, {}, ""},
        {"sum_of_rows", "einsum", {{"batch seq hidden"}}, {{"hidden"}}, {}, ""},
        {"sum_of_rows_of_heads", "einsum", {{kQ}}, {{"kv_heads group head_dim"}}, {}, ""},
        {"sum_to_scalar", "einsum", {{kRows}, {kRows}}, {{""}}, {}, ""},
        {"broadcast", "einsum", {{"hidden"}, {kRows}}, {{"batch seq hidden"}}, {}, ""},
        {"three_operands", "einsum", {{"batch seq hidden"}, {"hidden"}, {kRows}}, {{"batch hidden"}}, {}, ""},
        {"two_terms", "add", {{"batch seq hidden"}, {"batch seq hidden"}}, {{"batch seq hidden"}}, {}, ""},
        {"four_terms", "add", {{kRows}, {kRows}, {kRows}, {kRows}}, {{kRows}}, {}, ""},
        {"minus_three", "scale", {{"batch seq hidden"}}, {{"batch seq hidden"}}, {{"c", -3.0}}, ""},
        {"other_type", "cast", {fixed("batch seq hidden")}, {final_of("batch seq hidden")}, {}, ""},
        {"log", "unary", {{kRows, Fill::Positive}}, {{kRows}}, fn("log"), ""},
        {"inverse_norm",
         "unary",
         {fixed("batch", Fill::Positive)},
         {final_of("batch")},
         with(fn("inverse_norm"), {{"eps", 0.7}}),
         ""},
        {"silu", "unary", {{"batch ffn"}}, {{"batch ffn"}}, fn("silu"), ""},
        {"dsilu", "unary", {fixed("batch ffn")}, {final_of("batch ffn")}, fn("dsilu"), ""},
        {"recip", "unary", {fixed("batch ffn", Fill::Positive)}, {final_of("batch ffn")}, fn("recip"), ""},
        {"rsqrt_mean",
         "unary",
         {{kRows, Fill::Positive}},
         {{kRows}},
         {{"fn", std::string("rsqrt_mean")}, {"n", int64_t{7}}, {"eps", 1e-2}},
         ""},
        {"valid", "unary", {fixed(kRows, Fill::Targets)}, {final_of(kRows)}, fn("valid"), ""},
        {"seq_to_kv_seq", "rename", {{"batch seq kv_heads head_dim"}}, {{kK}}, {}, ""},
        {"gated", "swiglu", {{"batch seq ffn"}, {"batch seq ffn"}}, {{"batch seq ffn"}}, {}, ""},
        {"gated_backward",
         "swiglu_backward",
         {fixed("batch ffn"), fixed("batch ffn"), fixed("batch ffn")},
         {final_of("batch ffn"), final_of("batch ffn")},
         {},
         ""},
        {"packed", "swiglu", {{"batch seq gate_up ffn"}}, {{"batch seq ffn"}}, {}, ""},
        {"packed_shard", "swiglu", {{"batch seq gate_up padded"}}, {{"batch seq padded"}}, {}, "padded"},
        {"packed_backward",
         "swiglu_backward",
         {fixed("batch ffn"), fixed("batch gate_up ffn")},
         {final_of("batch gate_up ffn")},
         {},
         ""},
        {"gated_backward_again",
         "swiglu_backward",
         {fixed("batch ffn"), fixed("batch ffn"), fixed("batch ffn")},
         {final_of("batch ffn"), final_of("batch ffn"), final_of("batch ffn")},
         {},
         ""},
        {"packed_backward_again",
         "swiglu_backward",
         {fixed("batch ffn"), fixed("batch gate_up ffn")},
         {final_of("batch gate_up ffn"), final_of("batch ffn")},
         {},
         ""},
        {"parts", "stack", {{"batch seq ffn"}, {"batch seq ffn"}}, {{"batch gate_up seq ffn"}}, {}, ""},
        {"parts", "unstack", {{"batch gate_up seq ffn"}}, {{"batch seq ffn"}, {"batch seq ffn"}}, {}, ""},
        {"over_hidden", "rmsnorm", {{"batch seq hidden"}, {"hidden"}}, {{"batch seq hidden"}, final_of(kRows)}, norm, ""},
        {"over_head_dim", "rmsnorm", {{kQ}, {"head_dim"}}, {{kQ}, final_of("batch seq kv_heads group")}, head_norm, ""},
        {"over_hidden_backward",
         "rmsnorm_backward",
         {fixed("batch seq hidden"), fixed("batch seq hidden"), fixed("hidden"), fixed(kRows, Fill::Positive)},
         {final_of("batch seq hidden"), final_of("hidden")},
         norm,
         ""},
        {"residual",
         "add_rmsnorm",
         {fixed("batch seq hidden"), fixed("batch seq hidden"), fixed("hidden")},
         {final_of("batch seq hidden"), final_of("batch seq hidden"), final_of(kRows)},
         norm,
         ""},
        {"residual",
         "rmsnorm_backward_add",
         {fixed("batch seq hidden"), fixed("batch seq hidden"), fixed("batch seq hidden"), fixed("hidden"),
          fixed(kRows, Fill::Positive)},
         {final_of("batch seq hidden"), final_of("hidden")},
         norm,
         ""},
        {"residual",
         "addmm",
         {fixed("batch seq hidden"), fixed("batch seq ffn"), fixed("hidden ffn")},
         {final_of("batch seq hidden")},
         {},
         ""},
        {"other_side",
         "addmm",
         {fixed("batch seq ffn"), fixed("hidden ffn"), fixed("batch seq hidden")},
         {final_of("batch seq ffn")},
         {},
         ""},
        {"long_enough",
         "qkv_rope",
         {fixed("batch long hidden"), fixed("qkv kv_heads head_dim hidden"), fixed("batch long", Fill::Positions)},
         {final_of("batch long kv_heads group head_dim"), final_of("batch long kv_heads head_dim"),
          final_of("batch long kv_heads head_dim")},
         rope(1, 1.0),
         ""},
        {"mean_too",
         "layernorm",
         {{"batch seq hidden"}, {"hidden"}, {"hidden"}},
         {{"batch seq hidden"}, final_of(kRows), final_of(kRows)},
         norm,
         ""},
        {"of_tokens", "bias", {{"batch seq hidden"}, {"hidden"}}, {{"batch seq hidden"}}, {}, ""},
        {"of_heads", "bias", {{kQ}, {"kv_heads group head_dim"}}, {{kQ}}, {}, ""},
        {"tanh", "bias_gelu", {{"batch seq ffn"}, {"ffn"}}, {{"batch seq ffn"}}, fn("gelu"), ""},
        {"error_function", "bias_gelu", {{"batch seq ffn"}, {"ffn"}}, {{"batch seq ffn"}}, fn("gelu_erf"), ""},
        {"tanh_backward",
         "bias_gelu_backward",
         {fixed("batch seq ffn"), fixed("batch seq ffn"), fixed("ffn")},
         {final_of("batch seq ffn"), final_of("ffn")},
         fn("gelu"),
         ""},
        {"tanh", "gelu", {{"batch seq ffn"}}, {{"batch seq ffn"}}, fn("gelu"), ""},
        {"error_function", "gelu", {{"batch seq ffn"}}, {{"batch seq ffn"}}, fn("gelu_erf"), ""},
        {"tanh_backward",
         "gelu_backward",
         {fixed("batch seq ffn"), fixed("batch seq ffn")},
         {final_of("batch seq ffn")},
         fn("gelu"),
         ""},
        {"of_tokens",
         "linear",
         {fixed("batch seq hidden"), fixed("hidden ffn"), fixed("ffn")},
         {final_of("batch seq ffn")},
         {},
         ""},
        {"of_packed_heads",
         "linear",
         {fixed("batch seq hidden"), fixed("qkv kv_heads head_dim hidden"), fixed("qkv kv_heads head_dim")},
         {final_of(kQkv)},
         {},
         ""},
        {"on_a_shard",
         "linear",
         {fixed("batch seq hidden"), fixed("hidden ffn"), fixed("ffn")},
         {final_of("batch seq ffn")},
         {},
         "ffn"},
        {"without_its_operand",
         "linear_gelu",
         {fixed("batch seq hidden"), fixed("hidden ffn"), fixed("ffn")},
         {final_of("batch seq ffn")},
         fn("gelu"),
         ""},
        {"with_its_operand",
         "linear_gelu",
         {fixed("batch seq hidden"), fixed("ffn hidden"), fixed("ffn")},
         {final_of("batch seq ffn"), final_of("batch seq ffn")},
         fn("gelu"),
         ""},
        {"with_its_operand_in_rows_of_8",
         "linear_gelu",
         {fixed("batch seq hidden"), fixed("hidden ffn"), fixed("ffn")},
         {final_of("batch seq ffn"), final_of("batch seq ffn")},
         fn("gelu"),
         "",
         {{"batch", 3}, {"seq", 7}, {"hidden", 24}, {"ffn", 40}}},
        {"of_a_projection",
         "matmul_dgelu",
         {fixed("batch seq hidden"), fixed("ffn hidden"), fixed("batch seq ffn")},
         {final_of("batch seq ffn")},
         fn("gelu"),
         ""},
        {"of_a_projection_in_rows_of_8",
         "matmul_dgelu",
         {fixed("batch seq hidden"), fixed("ffn hidden"), fixed("batch seq ffn")},
         {final_of("batch seq ffn")},
         fn("gelu"),
         "",
         {{"batch", 3}, {"seq", 7}, {"hidden", 24}, {"ffn", 40}}},
        {"gelu", "unary", {{"batch ffn"}}, {{"batch ffn"}}, fn("gelu"), ""},
        {"gelu_erf", "unary", {{"batch ffn"}}, {{"batch ffn"}}, fn("gelu_erf"), ""},
        {"tokens", "dropout", {{"batch seq hidden"}, fixed(kRows, Fill::Noise)}, {{"batch seq hidden"}}, drop, ""},
        {"tokens_shard", "dropout", {{"batch seq hidden"}, fixed(kRows, Fill::Noise)}, {{"batch seq hidden"}}, drop, "hidden"},
        {"heads", "dropout", {{kQ}, fixed(kRows, Fill::Noise)}, {{kQ}}, drop, "kv_heads"},
        {"residual",
         "bias_dropout_add",
         {{"batch seq hidden"}, {"hidden"}, {"batch seq hidden"}, fixed(kRows, Fill::Noise)},
         {{"batch seq hidden"}},
         drop,
         ""},
        {"residual_kept",
         "bias_dropout_add",
         {{"batch seq hidden"}, {"hidden"}, {"batch seq hidden"}},
         {{"batch seq hidden"}},
         {},
         ""},
        {"queries", "rope", {{kQ}, fixed(kRows, Fill::Positions)}, {{kQ}}, rope(1, 1.0), ""},
        {"keys_back_and_stretched",
         "rope",
         {{"batch seq kv_heads head_dim"}, fixed(kRows, Fill::Positions)},
         {{"batch seq kv_heads head_dim"}},
         rope(-1, 8.0),
         ""},
        {"rows", "rope", {{kQkv}, fixed(kRows, Fill::Positions)}, {{kQkv}}, rope(1, 1.0), ""},
        {"rows_back_of_a_ranks_heads", "rope", {{kQkv}, fixed(kRows, Fill::Positions)}, {{kQkv}}, rope(-1, 8.0), "kv_heads"},
        {"rows_of_wide_heads",
         "rope",
         {fixed(kQkv), fixed(kRows, Fill::Positions)},
         {final_of(kQkv)},
         rope(1, 1.0),
         "",
         {{"batch", 2}, {"seq", 9}, {"kv_heads", 2}, {"group", 3}, {"head_dim", 128}}},
        {"as_they_are", "split_qkv", {{kQkv}}, {{kQ}, {kNewK}, {kNewK}}, {}, ""},
        {"rotated", "split_qkv", {{kQkv}, fixed(kRows, Fill::Positions)}, {{kQ}, {kNewK}, {kNewK}}, rope(1, 1.0), ""},
        {"of_a_ranks_heads",
         "split_qkv",
         {{kQkv}, fixed(kRows, Fill::Positions)},
         {{kQ}, {kNewK}, {kNewK}},
         rope(1, 8.0),
         "kv_heads"},
        {"as_they_are", "join_qkv", {{kQ}, {kNewK}, {kNewK}}, {{kQkv}}, {}, ""},
        {"rotated_back", "join_qkv", {{kQ}, {kNewK}, {kNewK}, fixed(kRows, Fill::Positions)}, {{kQkv}}, rope(-1, 1.0), ""},
        {"wide_heads",
         "split_qkv",
         {fixed(kQkv), fixed(kRows, Fill::Positions)},
         {final_of(kQ), final_of(kNewK), final_of(kNewK)},
         rope(1, 1.0),
         "",
         {{"batch", 2}, {"seq", 9}, {"kv_heads", 2}, {"group", 3}, {"head_dim", 128}}},
        {"table", "gather", {{"vocab hidden"}, fixed(kRows, Fill::Ids)}, {{"batch seq hidden"}}, {}, ""},
        {"table_shard", "gather", {{"vocab hidden"}, fixed(kRows, Fill::Ids)}, {{"batch seq hidden"}}, {}, "vocab"},
        {"into_table", "scatter", {fixed("batch seq hidden"), fixed(kRows, Fill::Ids)}, {final_of("vocab hidden")}, {}, ""},
        {"into_table_shard",
         "scatter",
         {fixed("batch seq hidden"), fixed(kRows, Fill::Ids)},
         {final_of("vocab hidden")},
         {},
         "vocab"},
        {"target_logit", "pick", {{"batch seq vocab"}, fixed(kRows, Fill::Targets)}, {{kRows}}, {}, ""},
        {"into_logits", "unpick", {fixed(kRows), fixed(kRows, Fill::Targets)}, {final_of("batch seq vocab")}, {}, ""},
        {"causal_documents", "attention", attention, attends, whole, ""},
        {"window", "attention", attention, attends, windowed, ""},
        {"dropped", "attention", attention_with_noise, attends, with(whole, drop), ""},
        {"dropped_in_a_window", "attention", attention_with_noise, attends, with(windowed, drop), ""},
        {"dropped_on_half_of_the_heads", "attention", attention_with_noise, attends, with(whole, drop), "kv_heads"},
        {"one_document", "attention", of_one_document, attends, one, ""},
        {"one_document_128_64", "attention", of_one_document, attends, one, "", heads(128, 1, 64)},
        {"one_document_200_128", "attention", of_one_document, attends, one, "", heads(200, 2, 128)},
        {"one_document_in_a_window", "attention", of_one_document, attends, one_windowed, "", heads(136, 2, 64)},
        {"rows_of_documents", "attention", of_rows, attends, whole, ""},
        {"rows_in_a_window", "attention", of_rows, attends, windowed, ""},
        {"rows_of_half_of_the_heads", "attention", of_rows, attends, whole, "kv_heads"},
        {"rows_of_one_document_200_128", "attention", of_rows_of_one_document, attends, one, "", heads(200, 2, 128)},
        {"rows_of_one_document_in_a_window", "attention", of_rows_of_one_document, attends, one_windowed, "", heads(136, 2, 64)},
        {"keys",
         "append",
         {fixed(kK), fixed("batch seq kv_heads head_dim"), fixed(kRows, Fill::Places)},
         {{kK, 0, false}},
         {},
         ""},
        {"largest_logit", "max", {fixed("batch seq vocab")}, {final_of(kRows)}, {{"over", std::string("vocab")}}, ""},
        {"exponentials", "exp_shifted", {{"batch seq vocab"}, fixed(kRows)}, {{"batch seq vocab"}}, {}, ""},
        {"logits", "mask_padding", {fixed("batch seq padded")}, {final_of("batch seq padded")}, {{"fill", -kInfinity}}, ""},
        {"logits_shard",
         "mask_padding",
         {fixed("batch seq padded")},
         {final_of("batch seq padded")},
         {{"fill", -kInfinity}},
         "padded"},
        {"gradient_of_logits", "mask_padding", {{"batch seq padded"}}, {{"batch seq padded"}}, {{"fill", 0.0}}, ""},
        {"loss", "cross_entropy", {{"batch seq vocab"}, fixed(kRows), fixed(kRows, Fill::Targets)}, {{kRows}, {kRows}}, {}, ""},
        {"loss_shard",
         "cross_entropy",
         {{"batch seq vocab"}, fixed(kRows), fixed(kRows, Fill::Targets)},
         {{kRows}, {kRows}},
         {},
         "vocab"},
        {"loss_backward_shard",
         "cross_entropy_backward",
         {fixed(kRows), fixed(kRows), fixed("batch seq vocab"), fixed(kRows), fixed(kRows, Fill::Targets)},
         {final_of("batch seq vocab")},
         {},
         "vocab"},
        {"loss_and_gradient",
         "cross_entropy_gradient",
         {fixed(kRows), fixed(kRows), fixed("batch seq vocab"), fixed(kRows, Fill::Targets)},
         {final_of("batch seq vocab"), final_of(kRows), final_of(kRows), final_of(kRows)},
         {{"over", std::string("vocab")}},
         ""},
        {"step",
         "adamw",
         {fixed("flat"), fixed("flat"), fixed("flat"), fixed("flat", Fill::Positive), fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 2, false}, {"flat", 3, false}},
         adamw,
         ""},
        {"step",
         "adam",
         {fixed("flat"), fixed("flat"), fixed("flat"), fixed("flat", Fill::Positive), fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 2, false}, {"flat", 3, false}},
         adamw,
         ""},
        // A parameter that the shard begins within, short runs in groups, and the rest.
        {"step_of_narrow_moments",
         "adamw",
         {fixed("flat"), fixed("flat"), fixed("flat", Fill::Moment), fixed("flat", Fill::SecondMoment), fixed("", Fill::Count),
          fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 2, false}, {"flat", 3, false}},
         with(adamw, {{"seed", int64_t{3}},
                      {"shards", std::vector<int64_t>{0}},
                      {"places", std::vector<int64_t>{0, 5, 7, 3, 21, 170, 40, 33, 6, 90, 1, 90, 90, 200}}}),
         "flat"},
        {"step_of_narrow_moments",
         "adam",
         {fixed("flat"), fixed("flat"), fixed("flat", Fill::Moment), fixed("flat", Fill::SecondMoment), fixed("", Fill::Count),
          fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 2, false}, {"flat", 3, false}},
         with(adamw,
              {{"seed", int64_t{3}}, {"shards", std::vector<int64_t>{}}, {"places", std::vector<int64_t>{0, 5, 90, 1, 90, 90}}}),
         ""},
        {"step",
         "sgd",
         {fixed("flat"), fixed("flat"), fixed("flat"), fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 2, false}},
         with(nesterov, {{"weight_decay", 0.1}}),
         ""},
        {"step_without_nesterov",
         "sgd",
         {fixed("flat"), fixed("flat"), fixed("flat"), fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 2, false}},
         {{"momentum", 0.9}, {"nesterov", int64_t{0}}, {"weight_decay", 0.1}},
         ""},
        {"step_without_momentum",
         "sgd",
         {fixed("flat"), fixed("flat"), fixed("control", Fill::Control)},
         {final_of("flat")},
         {{"momentum", 0.0}, {"nesterov", int64_t{0}}, {"weight_decay", 0.1}},
         ""},
        {"momentum",
         "muon_momentum",
         {fixed("flat"), fixed("flat"), fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 1, false}},
         nesterov,
         ""},
        {"momentum_without_nesterov",
         "muon_momentum",
         {fixed("flat"), fixed("flat"), fixed("control", Fill::Control)},
         {final_of("flat"), {"flat", 1, false}},
         {{"momentum", 0.9}, {"nesterov", int64_t{0}}},
         ""},
        {"step",
         "muon",
         {fixed("flat"), fixed("flat"), fixed("control", Fill::Control)},
         {final_of("flat")},
         {{"weight_decay", 0.1}},
         ""},
        {"share", "outer_gradient", {fixed("flat"), fixed("flat")}, {final_of("flat")}, {{"scale", 0.25}}, ""},
        {"alone",
         "meet",
         {fixed("flat")},
         {final_of("flat")},
         {{"islands", int64_t{4}}, {"bits", int64_t{0}}, {"count_if", std::vector<int64_t>()}},
         ""},
        {"step",
         "outer_sgd",
         {fixed("flat"), fixed("flat"), fixed("flat"), fixed("flat")},
         {final_of("flat"), {"flat", 1, false}, {"flat", 3, false}},
         with(nesterov, {{"lr", 0.7}, {"alpha", 0.3}}),
         ""},
        {"step_without_momentum",
         "outer_sgd",
         {fixed("flat"), fixed("flat"), fixed("flat")},
         {final_of("flat"), {"flat", 1, false}},
         {{"lr", 0.7}, {"momentum", 0.0}, {"nesterov", int64_t{1}}, {"alpha", 0.0}},
         ""},
        {"wide", "orthogonalize", {fixed("ffn long")}, {final_of("ffn long")}, {{"ns_steps", int64_t{2}}, {"scale", 0.7}}, ""},
        {"tall", "orthogonalize", {fixed("long ffn")}, {final_of("long ffn")}, {{"ns_steps", int64_t{2}}, {"scale", 0.7}}, ""},
        {"two",
         "unpack",
         {fixed("long")},
         {final_of("group"), final_of("head_dim")},
         {{"begins", std::vector<int64_t>{3, 64}}},
         ""},
        {"two", "pack", {fixed("group"), fixed("head_dim")}, {final_of("long")}, {{"begins", std::vector<int64_t>{3, 64}}}, ""},
        {"same", "reshape", {fixed("batch seq")}, {final_of("seq batch")}, {}, ""},
        {"same", "copy", {fixed("batch seq")}, {final_of("batch seq")}, {}, ""},
        {"two_ranges",
         "zero_padding",
         {fixed("long")},
         {{"long", 0, false}},
         {{"ranges", std::vector<int64_t>{3, 7, 100, 128}}},
         ""},
        {"count", "inverse_count", {fixed("", Fill::Count)}, {final_of("")}, {}, ""},
        {"own", "owned", {fixed("", Fill::Count)}, {{"", -1, false, Dtype::F64}}, {{"count_if", std::vector<int64_t>{}}}, ""},
        {"step",
         "step_control",
         {fixed("", Fill::Count), fixed("", Fill::Count), fixed("", Fill::Positive), fixed("", Fill::Count),
          fixed("", Fill::Count)},
         {{"control", -1, false, Dtype::F64}, {"", 3, false}},
         {{"max_norm", 1.0}, {"beta1", 0.9}, {"beta2", 0.95}},
         ""},
        {"scaled_step",
         "step_control",
         {fixed("", Fill::Count), fixed("", Fill::Count), fixed("", Fill::Positive), fixed("", Fill::Count),
          fixed("", Fill::Count), fixed("", Fill::Count)},
         {{"control", -1, false, Dtype::F64}, {"", 3, false}},
         {{"max_norm", 0.0}, {"beta1", 0.9}, {"beta2", 0.95}},
         ""},
        {"step",
         "update_loss_scale",
         {fixed("", Fill::Count), fixed("", Fill::Count), fixed("", Fill::Count), fixed("control", Fill::Control)},
         {{"", 0, false}, {"", 1, false}},
         {{"least", 1.0}},
         ""},
        {"int8", "quantize", {fixed("blocks")}, {{"int8", -1, false, Dtype::I8}}, {kBits8, {"least", int64_t{-120}}}, ""},
        {"int4", "quantize", {fixed("blocks")}, {{"int4", -1, false, Dtype::I8}}, {kBits4, {"least", int64_t{-120}}}, ""},
        {"int8_at_random",
         "quantize",
         {fixed("blocks"), fixed("", Fill::Count)},
         {{"int8", -1, false, Dtype::I8}},
         {kBits8, {"least", int64_t{-120}}, {"stream", int64_t{5}}},
         ""},
        {"int4_at_random",
         "quantize",
         {fixed("blocks"), fixed("", Fill::Count)},
         {{"int4", -1, false, Dtype::I8}},
         {kBits4, {"least", int64_t{-120}}, {"stream", int64_t{5}}},
         ""},
        {"int8", "dequantize", {fixed("int8", Fill::Quantized)}, {final_of("blocks")}, {kBits8}, ""},
        {"int4", "dequantize", {fixed("int4", Fill::Quantized)}, {final_of("blocks")}, {kBits4}, ""},
        {"int8_rows", "dequantize_sum", {fixed("batch int8", Fill::Quantized)}, {final_of("blocks")}, {kBits8}, ""},
        {"int4_rows", "dequantize_sum", {fixed("batch int4", Fill::Quantized)}, {final_of("blocks")}, {kBits4}, ""},
        {"norm", "sum_squares", {fixed("flat")}, {{"", -1, false, Dtype::F64}}, {{"count_if", std::vector<int64_t>{}}}, ""},
        {"norm_on_one_owner",
         "sum_squares",
         {fixed("flat")},
         {{"", -1, false, Dtype::F64}},
         {{"count_if", std::vector<int64_t>{0}}},
         "hidden"},
    };
}

std::vector<std::string> words(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> out;
    for (std::string word; stream >> word;) out.push_back(word);
    return out;
}

}  // namespace

const std::vector<OpCase>& op_cases() {
    static const std::vector<OpCase> cases = [] {
        std::vector<OpCase> all = make_cases();
        for (OpCase& c : block_cases()) all.push_back(std::move(c));
        for (OpCase& c : float8_cases()) all.push_back(std::move(c));
        return all;
    }();
    return cases;
}

ir::Routine make_routine(const OpCase& c, const mesh::Mesh& mesh, std::mt19937& random, Results results) {
    const std::map<std::string, std::vector<int64_t>> sizes = {
        {"batch", {1, 2, 3}},   {"seq", {1, 5, 7}},       {"kv_seq", {1, 5, 7}}, {"hidden", {3, 17, 24}}, {"kv_heads", {1, 3}},
        {"group", {1, 2, 3}},   {"head_dim", {2, 6, 16}}, {"ffn", {5, 9, 32}},   {"vocab", {11, 19}},     {"padded", {8, 24}},
        {"flat", {1, 16, 100}}, {"control", {7}},         {"long", {128, 300}}};
    ir::Routine r;
    r.name = "case";
    for (const auto& [name, choices] : sizes) {
        int64_t n = choices[random() % choices.size()];
        if (const auto own = c.sizes.find(name); own != c.sizes.end()) n = own->second;
        if (c.split == name) n *= 2;
        r.dims.push_back({name, n, name == "padded" ? n - 3 : n});
    }
    constexpr int64_t kElements = 768, kInt8 = quantized_bytes(kElements, 8), kInt4 = quantized_bytes(kElements, 4);
    r.dims.push_back({"gate_up", 2, 2});
    const int64_t qkv = r.dims[r.dim("group")].size + 2;
    r.dims.push_back({"qkv", qkv, qkv, ir::DimRole::Qkv});
    r.dims.push_back({"blocks", kElements, kElements}), r.dims.push_back({"int8", kInt8, kInt8});
    r.dims.push_back({"int4", kInt4, kInt4});
    if (ir::Dim& keys = r.dims[r.dim("kv_seq")]; !c.sizes.contains("kv_seq")) keys.size = keys.valid = r.dims[r.dim("seq")].size;
    for (const auto& [name, most] : {std::pair("batch", 2), {"seq", 2}, {"hidden", 3}, {"ffn", 4}}) {
        const ir::DimId fine = r.dim(name);
        const int64_t size = r.dims[fine].size, groups = size % most == 0 ? most : 1;
        r.dims.push_back({std::string(name) + ".g", groups, groups, ir::DimRole::Other, fine, size / groups});
    }
    ops::Builder b(r);
    const auto dims = [&](const std::string& text) {
        std::vector<ir::DimId> out;
        for (const std::string& word : words(text)) out.push_back(r.dim(word));
        return out;
    };
    std::vector<ir::TensorId> in;
    for (size_t i = 0; i < c.in.size(); ++i) {
        const bool ids = c.in[i].fill == Fill::Ids || c.in[i].fill == Fill::Targets || c.in[i].fill == Fill::Positions ||
                         c.in[i].fill == Fill::Counted || c.in[i].fill == Fill::Places || c.in[i].fill == Fill::Documents ||
                         c.in[i].fill == Fill::Zero || c.in[i].fill == Fill::Later || c.in[i].fill == Fill::Noise;
        const bool updated =
            std::any_of(c.out.begin(), c.out.end(), [&](const OpResult& o) { return o.operand == static_cast<int>(i); });
        in.push_back(b.port("in" + std::to_string(i), ir::PortKind::Value, updated ? ir::Access::Update : ir::Access::Read,
                            dims(c.in[i].dims),
                            ids                                                                  ? Dtype::I32
                            : c.in[i].fill == Fill::Quantized                                    ? Dtype::I8
                            : c.in[i].fill == Fill::E4M3                                         ? Dtype::F8E4M3
                            : c.in[i].fill == Fill::E5M2                                         ? Dtype::F8E5M2
                            : c.in[i].fill == Fill::E8M0                                         ? Dtype::E8M0
                            : c.in[i].fill == Fill::Moment || c.in[i].fill == Fill::SecondMoment ? Dtype::BF16
                            : c.in[i].fill == Fill::Control || c.in[i].fill == Fill::Count       ? Dtype::F64
                                                                                                 : Dtype::F32));
    }
    ir::Op op;
    op.kind = c.kind;
    op.in = in;
    op.attrs = c.attrs;
    if (op.kind == ir::kToBlocks) op.attrs["block"] = r.dims[r.dim(op.text("along") + ".g")].each;
    for (size_t i = 0; i < c.out.size(); ++i) {
        const ir::TensorId made = c.out[i].operand >= 0
                                      ? in[c.out[i].operand]
                                      : b.make({"made" + std::to_string(i), dims(c.out[i].dims), c.out[i].dtype});
        op.out.push_back(made);
    }
    r.ops.push_back(op);
    for (size_t i = 0; i < c.out.size(); ++i) {
        if (c.out[i].operand >= 0) continue;
        const std::string name = "out" + std::to_string(i);
        if (results == Results::Accumulated && may_accumulate(c.out[i].dims) && !is_coded(c.out[i].dtype)) {
            b.accumulate(b.port(name, ir::PortKind::Value, ir::Access::Accumulate, dims(c.out[i].dims), c.out[i].dtype),
                         op.out[i]);
        } else {
            r.tensors[op.out[i]].name = name;
            r.tensors[op.out[i]].port = static_cast<int>(r.ports.size());
            r.ports.push_back({name, ir::PortKind::Value, ir::Access::Write, {}, ""});
        }
    }
    place(c, mesh, r);
    return r;
}

void place(const OpCase& c, const mesh::Mesh& mesh, ir::Routine& r) {
    for (ir::Tensor& t : r.tensors) {
        t.placement.dims.clear();
        for (ir::DimId d : t.dims) {
            const ir::DimId fine = r.dims[d].of < 0 ? d : r.dims[d].of;
            t.placement.dims.push_back(r.dims[fine].name == c.split ? mesh.all() : mesh::AxisList{});
        }
    }
}

std::vector<double> values_for(const OpCase& c, const ir::Routine& r, const mesh::Mesh& mesh, size_t position,
                               std::mt19937& random) {
    const ir::Tensor& t = r.tensors[r.find("in" + std::to_string(position))];
    std::vector<double> out(static_cast<size_t>(ir::local_elements(mesh, r, t)));
    if (c.in[position].fill == Fill::Control)
        return {1e-2, 0.5, 1, 0.19, 0.0975, 1, 2};  // lr, clip, commit, corrections, norm, loss
    const int64_t vocab = r.dims[r.dim("vocab")].size;
    const size_t row = t.dims.empty() ? 1 : static_cast<size_t>(r.dims[t.dims.back()].size);
    for (size_t i = 0; i < out.size(); ++i) {
        const double uniform = static_cast<double>(random() % 20001) / 10000 - 1;
        switch (c.in[position].fill) {
            case Fill::Normal:
            case Fill::Moment: out[i] = uniform; break;
            case Fill::SecondMoment:
            case Fill::Positive: out[i] = 0.3 + std::abs(uniform); break;
            case Fill::Ids: out[i] = static_cast<double>(random() % vocab); break;
            case Fill::Targets: out[i] = random() % 4 == 0 ? -1 : static_cast<double>(random() % vocab); break;
            case Fill::Positions: out[i] = static_cast<double>(i % row % 4); break;  // restarts with each document
            case Fill::Counted: out[i] = static_cast<double>(i % row); break;
            case Fill::Later: out[i] = static_cast<double>(1000 + i % row); break;
            case Fill::Zero:
            case Fill::NoOutputs: out[i] = 0; break;
            case Fill::LogSums: out[i] = i % 3 == 1 ? -kInfinity : uniform; break;
            case Fill::Outputs: out[i] = i / row % 3 == 1 ? 0 : uniform; break;
            case Fill::NoLogSums: out[i] = -kInfinity; break;
            case Fill::Places: out[i] = random() % 4 == 0 ? -1 : static_cast<double>(row - 1 - i % row); break;
            case Fill::Documents: out[i] = static_cast<double>(i % row / 4); break;
            case Fill::Noise: out[i] = static_cast<double>(static_cast<int32_t>(random())); break;
            case Fill::Quantized: {
                const int64_t bits = r.dims[t.dims.back()].name == "int4" ? 4 : 8;
                const int64_t block = quantized_bytes(quantized_block(bits), bits);
                out[i] = static_cast<double>(static_cast<int64_t>(i) % block == block - 1
                                                 ? -static_cast<int64_t>(random() % 12)
                                                 : static_cast<int64_t>(random() % 255) - 127);
                break;
            }
            case Fill::E4M3: out[i] = std::ldexp(uniform, 8 - static_cast<int>(random() % 12)); break;
            case Fill::E5M2: out[i] = std::ldexp(uniform, 10 - static_cast<int>(random() % 20)); break;
            case Fill::E8M0: out[i] = std::ldexp(1, static_cast<int>(random() % 10) - 7); break;
            case Fill::Count: out[i] = static_cast<double>(random() % 1000); break;
            case Fill::Control: break;
        }
    }
    return out;
}

}  // namespace lockstep::testing
