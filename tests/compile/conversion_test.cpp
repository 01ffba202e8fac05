// Which linear layers model.converters converts, how filters divide blocks of layers, and what is refused.
#include "compile/conversion.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

using compile::Config;
using compile::Converter;
using compile::Float8;
using compile::Float8Name;
using compile::MxName;
using Strings = std::vector<std::string>;
using Keys = std::set<std::string>;

// Four layers whose matrices have sides of 16 and more.
const Settings kWhole = {{"model.dim", "32"}, {"model.head_dim", "8"}, {"model.ffn_dim", "48"}, {"model.n_layers", "4"}};

Settings joined(Settings a, const Settings& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

Config with_float8(const Settings& settings, const Strings& filters = {}) {
    Config config = compile::config_of(small_recipe(settings));
    config.model.converters = {Converter::Float8};
    config.linear_float8.filter_fqns = filters;
    return config;
}

ir::Program after(const Config& config, const std::string& pass, const std::vector<ir::EntryKind>& entries = {}) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.stop_after = pass;
    options.entries = entries;
    return compile::compile(config, options).programs[0];
}

Keys converted_of(const ir::Program& p, const std::string& block) {
    Keys out;
    for (const ir::Parameter& x : p.params) {
        if (x.block == block && x.converted) out.insert(x.key);
    }
    return out;
}

Keys converted_keys(const Config& config) {
    Keys out;
    for (const ir::Parameter& x : compile::build_blocks(config).params) {
        if (x.converted) out.insert(x.key);
    }
    return out;
}

std::string blocks_of(const ir::Program& p) {
    std::string out;
    for (const ir::Block& b : p.blocks) out += fmt::format("{}{} {}+{}", out.empty() ? "" : ", ", b.name, b.first, b.count);
    return out;
}

TEST(Conversion, TakesTheLinearLayersOfEachModel) {
    const Keys of_llama = {"wq", "wk", "wv", "wo", "w1", "w2", "w3"}, of_gpt2 = {"wq", "wk", "wv", "wo", "w1", "w2"};
    EXPECT_EQ(converted_keys(with_float8(kWhole)), of_llama);
    EXPECT_EQ(converted_keys(with_float8(joined(kWhole, {{"model.qkv_bias", "1"}, {"model.qk_norm", "1"}}))), of_llama);
    EXPECT_EQ(converted_keys(with_float8(joined(kWhole, {{"model.tie_embeddings", "1"}}))), of_llama);
    EXPECT_EQ(converted_keys(with_float8(joined(kWhole, {{"model.name", "gpt2"}}))), of_gpt2);
}

TEST(Conversion, LeavesSidesThatAreNoMultipleOf16) {
    // Keys and values: 2 heads of 4. The feed-forward width: 24.
    EXPECT_EQ(converted_keys(with_float8(joined(kWhole, {{"model.head_dim", "4"}}))), (Keys{"wq", "wo", "w1", "w2", "w3"}));
    EXPECT_EQ(converted_keys(with_float8(joined(kWhole, {{"model.ffn_dim", "24"}}))), (Keys{"wq", "wk", "wv", "wo"}));
    EXPECT_EQ(converted_keys(with_float8(joined(kWhole, {{"model.dim", "24"}}))), Keys{});
}

TEST(Conversion, LeavesWhatAFilterIsAPartOf) {
    EXPECT_EQ(converted_keys(with_float8(kWhole, {"output"})).size(), 7u);
    EXPECT_EQ(converted_keys(with_float8(kWhole, {"attention.w", "feed_forward.w2"})), (Keys{"w1", "w3"}));
    EXPECT_EQ(converted_keys(with_float8(kWhole, {"wk"})), (Keys{"wq", "wv", "wo", "w1", "w2", "w3"}));
    EXPECT_EQ(converted_keys(with_float8(kWhole, {"layers"})), Keys{});
    EXPECT_EQ(converted_keys(with_float8(kWhole, {""})), Keys{}) << "every name has it";
    Config mx = with_float8(kWhole);
    mx.model.converters = {Converter::Mx};
    mx.linear_mx.filter_fqns = {"feed_forward"};
    EXPECT_EQ(converted_keys(mx), (Keys{"wq", "wk", "wv", "wo"})) << "each family has its own filters";
}

// K and N of the packed products of Llama 3 8B: 4096 and 6144, 4096 and 28672.
TEST(Conversion, LeavesSmallProductsWhereAsked) {
    const Settings llama_8b = {{"model.dim", "4096"},   {"model.n_heads", "32"},    {"model.n_kv_heads", "8"},
                               {"model.head_dim", "0"}, {"model.ffn_dim", "14336"}, {"model.vocab_size", "128256"}};
    const Strings automatic = {"auto_filter_small_kn"};
    const Keys all = {"wq", "wk", "wv", "wo", "w1", "w2", "w3"}, without_kv = {"wq", "wo", "w1", "w2", "w3"};
    const Settings apart = joined(llama_8b, {{"training.pack_products", "false"}});
    EXPECT_EQ(converted_keys(with_float8(llama_8b, automatic)), all);
    EXPECT_EQ(converted_keys(with_float8(apart, automatic)), without_kv);
    EXPECT_EQ(converted_keys(with_float8(apart)), all);
    // Where wq is out, keys and values have products of their own.
    EXPECT_EQ(converted_keys(with_float8(llama_8b, {"auto_filter_small_kn", "wq"})), (Keys{"wo", "w1", "w2", "w3"}));
    const auto by_rows = [&](const Settings& settings) {
        Config config = with_float8(settings, automatic);
        config.linear_float8.recipe_name = Float8Name::Rowwise;
        return converted_keys(config);
    };
    EXPECT_EQ(by_rows(llama_8b), all);
    EXPECT_EQ(by_rows(apart), without_kv);
    // N = 2048 is small for rowwise scales, whatever K; K = 1024, whatever N.
    const Settings narrow = joined(llama_8b, {{"model.dim", "2048"}, {"model.n_heads", "16"}});
    EXPECT_EQ(by_rows(narrow), (Keys{"w1", "w3"}));
    EXPECT_EQ(by_rows(joined(llama_8b, {{"model.dim", "1024"}, {"model.n_heads", "8"}})), Keys{});
}

// The rules as torchao states them of torch.nn.Linear, whose weight is [N, K].
TEST(Conversion, JudgesSmallProductsAsTorchaoDoes) {
    const auto stays = [](Float8Name recipe, int64_t n, int64_t k) {
        if (recipe == Float8Name::Tensorwise) return k <= 4096 && n <= 1024;
        return n <= 2048 || k <= 1024 || (n <= 4096 && k <= 2048);
    };
    for (const auto recipe : {Float8Name::Tensorwise, Float8Name::Rowwise}) {
        for (const auto& [dim, ffn] : {std::pair{512, 8192}, std::pair{1024, 4096}, std::pair{2048, 4096}, std::pair{2048, 8192},
                                       std::pair{4096, 2048}, std::pair{4096, 1024}, std::pair{8192, 512}}) {
            Config config = with_float8({{"model.dim", std::to_string(dim)},
                                         {"model.n_heads", "4"},
                                         {"model.n_kv_heads", "4"},
                                         {"model.head_dim", "0"},
                                         {"model.ffn_dim", std::to_string(ffn)},
                                         {"training.pack_products", "false"}},
                                        {"auto_filter_small_kn"});
            config.linear_float8.recipe_name = recipe;
            Keys expected;
            if (!stays(recipe, dim, dim)) expected = {"wq", "wk", "wv", "wo"};
            if (!stays(recipe, ffn, dim)) expected.merge(Keys{"w1", "w3"});
            if (!stays(recipe, dim, ffn)) expected.insert("w2");
            EXPECT_EQ(converted_keys(config), expected) << dim << " x " << ffn << " " << compile::word_of(recipe);
        }
    }
}

TEST(Conversion, SaysWhichLayersStayAndWhy) {
    const Config config = with_float8(joined(kWhole, {{"model.head_dim", "4"}}), {"auto_filter_small_kn", "layers.3."});
    Config plain = config;
    plain.model.converters.clear();
    const compile::ConvertedLayers layers = compile::converted_layers(compile::build_blocks(plain), *config.float8(), true);
    using Modules = compile::ConvertedLayers::Modules;
    const std::vector<int64_t> first = {0, 1, 2};
    EXPECT_EQ(layers.converted, 0);
    EXPECT_EQ(layers.all, 28);
    EXPECT_EQ(layers.filtered, 7);
    EXPECT_EQ(layers.uneven, (Modules{{"attention.wk", first}, {"attention.wv", first}}));
    EXPECT_EQ(layers.small, (Modules{{"attention.wq", first},
                                     {"attention.wo", first},
                                     {"feed_forward.w1", first},
                                     {"feed_forward.w2", first},
                                     {"feed_forward.w3", first}}));
}

TEST(Conversion, NamesOfDividedBlocksAreThoseOfTheModel) {
    const ir::Program p = compile::build_blocks(with_float8(kWhole, {"layers.0."}));
    EXPECT_EQ(compile::module_name(*p.param("wq_1"), 2), "layers.2.attention.wq");
    EXPECT_EQ(compile::name_in_model("layer_1"), "layer");
    EXPECT_EQ(compile::name_in_model("layer"), "layer");
    EXPECT_EQ(compile::name_in_model("tok_embeddings"), "tok_embeddings");
}

TEST(Conversion, OfAllLayersDividesNoBlock) {
    for (const char* name : {"llama3", "gpt2"}) {
        const Settings settings = joined(kWhole, {{"model.name", name}});
        ir::Program marked = compile::build_blocks(with_float8(settings));
        EXPECT_EQ(blocks_of(marked), "embed 0+1, layer 0+4, head 0+1");
        const std::string text = ir::print(marked);
        EXPECT_EQ(ir::print(ir::parse(text)), text);
        EXPECT_NE(text.find(" converted\n"), std::string::npos);
        for (ir::Parameter& p : marked.params) p.converted = false;
        EXPECT_EQ(marked, compile::build_blocks(compile::config_of(small_recipe(settings))));
    }
}

TEST(Conversion, OfSomeLayersDividesTheBlock) {
    const ir::Program p = compile::build_blocks(with_float8(kWhole, {"layers.0.", "layers.3.feed_forward.w1"}));
    EXPECT_EQ(blocks_of(p), "embed 0+1, layer 0+1, layer_1 1+2, layer_3 3+1, head 0+1");
    EXPECT_EQ(converted_of(p, "layer"), Keys{});
    EXPECT_EQ(converted_of(p, "layer_1"), (Keys{"wq_1", "wk_1", "wv_1", "wo_1", "w1_1", "w2_1", "w3_1"}));
    EXPECT_EQ(converted_of(p, "layer_3"), (Keys{"wq_3", "wk_3", "wv_3", "wo_3", "w2_3", "w3_3"}));
    Strings names, routines;
    for (const ir::Parameter& x : p.params) names.push_back(x.key);
    for (const ir::Routine& r : p.routines) routines.push_back(r.name + " of " + r.block);
    const Strings of_layer = {"attention_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w1", "w3", "w2"};
    Strings expected = {"tok_embeddings"};
    for (const char* suffix : {"", "_1", "_3"}) {
        for (const std::string& key : of_layer) expected.push_back(key + suffix);
        EXPECT_EQ(p.param(std::string("wq") + suffix)->name, "model.layers.{}.self_attn.q_proj.weight");
    }
    expected.insert(expected.end(), {"norm", "output"});
    EXPECT_EQ(names, expected);
    EXPECT_EQ(routines, (Strings{"embed.forward of embed", "layer.forward of layer", "layer_1.forward of layer_1",
                                 "layer_3.forward of layer_3", "head.forward of head"}));
    const std::string text = ir::print(p);
    EXPECT_EQ(ir::print(ir::parse(text)), text);
    // Layer 1 is no part of "layers.10.".
    const Settings twelve = joined(kWhole, {{"model.n_layers", "12"}});
    EXPECT_EQ(blocks_of(compile::build_blocks(with_float8(twelve, {"layers.1."}))),
              "embed 0+1, layer 0+1, layer_1 1+1, layer_2 2+10, head 0+1");
    EXPECT_EQ(blocks_of(compile::build_blocks(with_float8(twelve, {"layers.1"}))),
              "embed 0+1, layer 0+1, layer_1 1+1, layer_2 2+8, layer_10 10+2, head 0+1");
}

// Weights of one product all convert or all stay.
TEST(Conversion, PacksProductsThatConvertAlike) {
    const auto sources = [](const ir::Program& p, const std::string& block) {
        Keys out;
        for (const ir::Tensor& t : p.routine(ir::RoutineKind::Forward, block)->tensors) {
            if (t.source.find('w') != std::string::npos) out.insert(t.source);
        }
        return out;
    };
    const ir::Program p =
        after(with_float8(kWhole, {"layers.1.attention.wk", "layers.2.feed_forward.w3", "layers.3."}), "pack_products");
    EXPECT_EQ(sources(p, "layer"), (Keys{"wq+wk+wv", "wo", "w1+w3", "w2"}));
    EXPECT_EQ(sources(p, "layer_1"), (Keys{"wq_1", "wk_1", "wv_1", "wo_1", "w1_1+w3_1", "w2_1"}));
    EXPECT_EQ(sources(p, "layer_2"), (Keys{"wq_2+wk_2+wv_2", "wo_2", "w1_2", "w3_2", "w2_2"}));
    EXPECT_EQ(sources(p, "layer_3"), (Keys{"wq_3+wk_3+wv_3", "wo_3", "w1_3+w3_3", "w2_3"}));
}

TEST(Conversion, IsNotOfGeneration) {
    const Config config = with_float8(kWhole, {"layers.0."});
    const Config plain = compile::config_of(small_recipe(kWhole));
    const std::vector<ir::EntryKind> entries = {ir::EntryKind::Prefill, ir::EntryKind::Decode};
    EXPECT_EQ(ir::print(after(config, "plan_memory", entries)), ir::print(after(plain, "plan_memory", entries)));
    EXPECT_EQ(blocks_of(after(config, "set_precision", {ir::EntryKind::Eval})), "embed 0+1, layer 0+1, layer_1 1+3, head 0+1");
}

TEST(Conversion, IsAPartOfThePrefix) {
    const Config config = with_float8(kWhole);
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    const compile::Prefix prefix = compile::compile_prefix(config, options);
    EXPECT_FALSE(compile::refusal_of(compile::compile(prefix, config, options)));
    Config filtered = config, by_rows = config, without = config, scaled = config;
    filtered.linear_float8.filter_fqns = {"wk"};
    by_rows.linear_float8.recipe_name = Float8Name::Rowwise;
    without.model.converters.clear();
    scaled.quantize.scale_sequences = 1;
    for (const Config& other : {filtered, by_rows, without, scaled})
        EXPECT_THROW(compile::compile(prefix, other, options), InternalError);
}

TEST(Conversion, KeysMakeOneDescription) {
    Config config = with_float8(kWhole, {"output", "auto_filter_small_kn", "layers.0."});
    EXPECT_EQ(compile::config_of(small_recipe(kWhole)).float8(), std::nullopt);
    Float8 expected;
    expected.filter_fqns = {"output", "layers.0."}, expected.auto_filter_small_kn = true;
    EXPECT_EQ(config.float8(), expected);
    config.linear_float8.enable_fsdp_float8_all_gather = true, config.quantize = {2, 4};
    expected.fsdp_gather = true, expected.scale_sequences = 2, expected.scale_context_blocks = 4;
    for (const auto& [name, recipe] :
         {std::pair{Float8Name::Unnamed, Float8::Recipe::Tensorwise},
          std::pair{Float8Name::Tensorwise, Float8::Recipe::Tensorwise}, std::pair{Float8Name::Rowwise, Float8::Recipe::Rowwise},
          std::pair{Float8Name::RowwiseWithGwHp, Float8::Recipe::RowwiseGwHp},
          std::pair{Float8Name::Blockwise, Float8::Recipe::Blockwise}}) {
        config.linear_float8.recipe_name = name, expected.recipe = recipe;
        EXPECT_EQ(config.float8(), expected);
    }
    config.model.converters = {Converter::Mx};
    expected = Float8{};
    expected.filter_fqns = {"output"}, expected.scale_sequences = 2, expected.scale_context_blocks = 4;
    for (const auto& [name, recipe] :
         {std::pair{MxName::Cublas, Float8::Recipe::MxFloor}, std::pair{MxName::Emulated, Float8::Recipe::MxFloor},
          std::pair{MxName::CublasRceil, Float8::Recipe::MxRceil}}) {
        config.linear_mx.recipe_name = name, expected.recipe = recipe;
        EXPECT_EQ(config.float8(), expected);
    }
    config.model.converters = {Converter::GroupedFloat8};
    EXPECT_EQ(config.float8(), std::nullopt);
}

std::string missing_of(const Settings& settings) {
    std::string out;
    for (const compile::Missing& m : small_recipe(settings).missing()) out += m.text() + "\n";
    return out;
}

TEST(Conversion, NamesWhatIsMissing) {
    const std::string recipe = "quantize.linear.float8.recipe_name",
                      gather = "quantize.linear.float8.enable_fsdp_float8_all_gather";
    const Settings asked = {{"model.converters", "float8"}};
    EXPECT_EQ(missing_of(asked), "");
    EXPECT_EQ(missing_of(joined(asked, {{recipe, "tensorwise"}, {"quantize.linear.float8.filter_fqns", "output"}})), "");
    EXPECT_EQ(missing_of(joined(asked, {{gather, "true"}})), "");
    for (const char* name : {"rowwise", "rowwise_with_gw_hp", "blockwise"})
        EXPECT_EQ(missing_of(joined(asked, {{recipe, name}})), "");
    EXPECT_EQ(missing_of(joined(asked, {{recipe, "blockwise"}, {gather, "true"}})),
              "all-gathers in float8 with a scale for each block (" + gather + " = true)\n");
    EXPECT_EQ(missing_of({{"model.converters", "quantize.linear.mx"}}), "");
    EXPECT_EQ(missing_of({{"model.converters", "quantize.linear.mx"}, {"quantize.linear.mx.recipe_name", "mxfp4_cutlass"}}),
              "4-bit types (quantize.linear.mx.recipe_name = \"mxfp4_cutlass\")\n");
    EXPECT_EQ(missing_of({{"model.converters", "quantize.grouped_mm.mx"}}),
              "experts (model.converters = [\"quantize.grouped_mm.mx\"])\n");
    EXPECT_EQ(missing_of({{recipe, "rowwise"}, {gather, "true"}}), "") << "nothing is converted";
}

std::string refusal_of_layout(const Config& config) {
    try {
        compile::layout_of(config);
    } catch (const UserError& e) {
        return fmt::format("{} {}: {}", e.id(), e.key(), e.what());
    }
    return "";
}

TEST(Conversion, BlocksAreWholeOnARank) {
    const auto refusal = [](const Config& config) {
        compile::CompileOptions options;
        options.catalog = kernels::reference_catalog();
        options.stop_after = "shard";
        const auto compiled = compile::compile(compile::compile_prefix(config, options), config, options);
        const UserError* no = compile::refusal_of(compiled);
        return no ? fmt::format("{} {}: {}", no->id(), no->key(), no->what()) : "";
    };
    Config config =
        with_float8({{"model.dim", "128"}, {"model.head_dim", "128"}, {"model.ffn_dim", "256"}, {"training.seq_len", "256"}});
    config.linear_float8.recipe_name = Float8Name::Blockwise;
    EXPECT_EQ(refusal(config), "");
    config.parallelism.tensor_parallel_degree = 4;
    EXPECT_EQ(
        refusal(config),
        "recipe.divides training.seq_len: flag --training.seq_len: training.seq_len = 256 in 4 pieces: 128 tokens next to each "
        "other share a scale; choose a multiple of 512");
    config.parallelism.sequence_parallel = false;
    EXPECT_EQ(
        refusal(config),
        "recipe.divides model.converters: model.converters: 128 neighbours share a scale, and these sizes of linear layers are "
        "no multiples of 128 on a rank:\n  ffn = 256 on 4 tensor-parallel ranks: w1, w3, w2\nChange the sizes, leave the layers "
        "out (quantize.linear.float8.filter_fqns = [\"w1\", \"w3\", \"w2\"]), or choose the recipe tensorwise or rowwise");
    config.linear_float8.filter_fqns = {"feed_forward"};
    EXPECT_EQ(refusal(config), "");
    config.parallelism.tensor_parallel_degree = 1, config.parallelism.context_parallel_degree = 2;
    EXPECT_NE(refusal(config).find("256 in 4 pieces"), std::string::npos) << "two of each context rank, in head-tail order";
    // MX: 32, of keys' heads of 16 elements, too.
    config = with_float8({{"model.dim", "128"}, {"model.head_dim", "16"}, {"model.ffn_dim", "96"}, {"training.seq_len", "32"}});
    config.model.converters = {Converter::Mx};
    EXPECT_EQ(
        refusal(config),
        "recipe.divides model.converters: model.converters: 32 neighbours share a scale, and these sizes of linear layers are no "
        "multiples of 32 on a rank:\n  head_dim = 16: wq, wk, wv, wo\nChange the sizes, leave the layers out "
        "(quantize.linear.mx.filter_fqns = [\"output\", \"wq\", \"wk\", \"wv\", \"wo\"]), or take the converter float8, whose recipes "
        "tensorwise and rowwise have no blocks");
    config.linear_mx.filter_fqns = {"attention"};
    EXPECT_EQ(refusal(config), "");
    config.linear_mx.filter_fqns = {"layers"};
    config.training.seq_len = 31;
    EXPECT_EQ(refusal(config), "") << "nothing converts";
}

TEST(Conversion, ScalesAreOfWholeSequencesAndPartsOfARank) {
    Config config = with_float8(joined(kWhole, {{"training.local_batch_size", "6"}, {"training.seq_len", "24"}}));
    const auto scales = [&] {
        const compile::Layout l = compile::layout_of(config);
        return std::pair(l.scale_sequences, l.scale_context_blocks);
    };
    EXPECT_EQ(scales(), std::pair(int64_t{6}, int64_t{1}));
    config.parallelism.context_parallel_degree = 2;
    EXPECT_EQ(scales(), std::pair(int64_t{6}, int64_t{2}));
    config.quantize = {3, 4};
    EXPECT_EQ(scales(), std::pair(int64_t{3}, int64_t{4}));
    config.quantize = {4, 0};
    EXPECT_EQ(refusal_of_layout(config),
              "recipe.divides quantize.scale_sequences: quantize.scale_sequences = 4 does not divide the 6 sequences of a "
              "microbatch on a data rank: choose a divisor, or 0 for all of them");
    config.quantize = {0, 3};
    EXPECT_EQ(
        refusal_of_layout(config),
        "recipe.divides quantize.scale_context_blocks: quantize.scale_context_blocks = 3 would divide a block between ranks, "
        "or join two pieces of a sequence (2 context ranks, head-tail order): choose 1, 2, or a multiple of 4");
    config.quantize = {0, 16};
    EXPECT_EQ(refusal_of_layout(config),
              "recipe.divides quantize.scale_context_blocks: quantize.scale_context_blocks = 16 does not divide "
              "training.seq_len = 24: choose 1, 2, or a multiple of 4 that divides it");
    config.parallelism.context_parallel_degree = 1;
    EXPECT_EQ(refusal_of_layout(config),
              "recipe.divides quantize.scale_context_blocks: quantize.scale_context_blocks = 16 does not divide "
              "training.seq_len = 24: choose a number that divides it");
    config.parallelism.tensor_parallel_degree = 2, config.quantize = {0, 3};
    EXPECT_EQ(refusal_of_layout(config),
              "recipe.divides quantize.scale_context_blocks: quantize.scale_context_blocks = 3 would divide a block between "
              "ranks, or join two pieces of a sequence (2 tensor-parallel ranks with sequence parallelism): choose 1, or a "
              "multiple of 2");
    config.parallelism.tensor_parallel_degree = 1, config.parallelism.context_parallel_degree = 2;
    config.quantize = {0, 1};
    EXPECT_EQ(scales(), std::pair(int64_t{6}, int64_t{1})) << "of all context ranks together";
    config.model.converters.clear();
    EXPECT_EQ(scales(), std::pair(int64_t{0}, int64_t{0})) << "nothing has a scale";
    // With a pipeline a microbatch has its own size.
    config = with_float8(joined(kWhole, {{"training.local_batch_size", "6"},
                                         {"parallelism.pipeline_parallel_degree", "2"},
                                         {"parallelism.pipeline_parallel_microbatch_size", "3"}}));
    EXPECT_EQ(scales(), std::pair(int64_t{3}, int64_t{1}));
}

}  // namespace
}  // namespace lockstep::testing
