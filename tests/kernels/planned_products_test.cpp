// Files of algorithms of cuBLASLt: what they say, what is refused, and which ops of a program they serve.
#include "kernels/cuda/planned_products.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "ir/text.h"
#include "kernels/cuda/planned.h"
#include "kernels/cuda/product_kernels.h"
#include "ops/verify.h"
#include "tests/base/scratch_folder.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

using namespace kernels::cuda;

TEST(PlannedProducts, NamesOfKernelsHoldVersionAndWords) {
    const ProductAlgorithm a{{0x2f, 0, 0xffffffffffffffff, 7}, 1 << 20};
    EXPECT_EQ(kernel_of(130100, a), "cublaslt.matmul@130100_2f_0_ffffffffffffffff_7");
    const auto chosen = chosen_by(kernel_of(130100, a));
    ASSERT_TRUE(chosen);
    EXPECT_EQ(chosen->version, 130100);
    EXPECT_EQ(chosen->words, a.words);
    EXPECT_EQ(kernel_of(1, {}), "cublaslt.matmul@1_0");
    EXPECT_FALSE(chosen_by("cublaslt.matmul"));
    for (const char* wrong : {"cublaslt.matmul@", "cublaslt.matmul@7", "cublaslt.matmul@7_", "cublaslt.matmul@x_1",
                              "cublaslt.matmul@7_g", "cublaslt.matmul@7_1_2_3_4_5_6_7_8_9"})
        EXPECT_THROW(chosen_by(wrong), InternalError) << wrong;
}

compile::Compiled compiled(const ChosenProducts* products) {
    compile::CompileOptions options;
    options.catalog = planned_catalog("a test", 90);
    if (products) add_chosen(options.catalog, *products);
    return compile::compile(small_recipe({{"training.mixed_precision_param", "bfloat16"}}), options);
}
// Of a program: its products, each with the same words.
ChosenProducts all_of(const ir::Program& p) {
    ChosenProducts out{"NVIDIA H100 80GB HBM3", 130100, {}};
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (!op.kernel.starts_with("cublaslt.")) continue;
            const auto product = product_of({p.mesh, r, op, 0, 1});
            EXPECT_TRUE(product) << op.kind;
            if (product) out.rows.push_back({*product, {{0xa, out.rows.size()}, 1 << 20}, 1e-5, 2e-5});
        }
    }
    return out;
}

TEST(PlannedProducts, AreWrittenAndRead) {
    const ChosenProducts all = all_of(compiled(nullptr).programs[0]);
    ASSERT_GT(all.rows.size(), 8u);
    const ScratchFolder folder;
    const std::string file = folder.path("products.toml");
    folder.write("products.toml", print(all));
    const ChosenProducts read = read_chosen_products(file);
    EXPECT_EQ(read.device, all.device);
    EXPECT_EQ(read.version, all.version);
    EXPECT_EQ(print(read), print(all));
}

TEST(PlannedProducts, ServeTheirProductsAndNoOthers) {
    const ir::Program before = compiled(nullptr).programs[0];
    ChosenProducts some = all_of(before);
    for (size_t i = 0; i < some.rows.size(); ++i) {
        if (i % 2 == 1) some.rows[i].product.m += 1;  // of another size
    }
    const ir::Program after = compiled(&some).programs[0];
    EXPECT_EQ(ir::parse(ir::print(after)), after);
    EXPECT_FALSE(ops::verify(after));
    size_t chosen = 0, others = 0;
    for (const ir::Routine& r : after.routines) {
        for (const ir::Op& op : r.ops) {
            if (!op.kernel.starts_with("cublaslt.")) continue;
            const auto words = chosen_by(op.kernel);
            ++(words ? chosen : others);
            if (!words) continue;
            EXPECT_EQ(words->version, 130100);
            EXPECT_EQ(op.workspace_bytes, whole_product_bytes(1 << 20));
            auto own = product_of({after.mesh, r, op, 0, 1});
            EXPECT_TRUE(std::any_of(some.rows.begin(), some.rows.end(), [&](const ChosenProduct& row) {
                own->adds = row.product.adds;
                return *own == row.product && row.algorithm.words == words->words;
            }));
        }
    }
    EXPECT_GT(chosen, 0u);
    EXPECT_GT(others, 0u);
}

TEST(PlannedProducts, HaveTheirTimesInPlans) {
    const ir::Program before = compiled(nullptr).programs[0];
    const ChosenProducts all = all_of(before);
    const ir::Program after = compiled(&all).programs[0];
    ops::CostTable table;
    table.flops_per_s["bf16"] = {1e15}, table.flops_per_s["f32"] = {1e14}, table.bytes_per_s = {3e12};
    add_times(table, all);
    int seen = 0;
    for (const ir::Routine& r : after.routines) {
        for (const ir::Op& op : r.ops) {
            if (!chosen_by(op.kernel)) continue;
            ++seen;
            EXPECT_NEAR(ops::cost_of(table, ops::cost_key(after.mesh, r, op, 1), 1).core_s, 1e-5, 1e-7) << op.kind;
        }
    }
    EXPECT_GT(seen, 8);
}

TEST(PlannedProducts, WrongFilesAreRefusedInWords) {
    const ScratchFolder folder;
    const std::string row =
        "op = \"einsum\"\nm = 8\nn = 8\nk = 8\na_transposed = false\nb_transposed = true\nin = \"bf16\"\nout = \"bf16\"\n"
        "epilogue = \"none\"\nadds = false\nworkspace_bytes = 0\nwords = \"1_2\"\nseconds = 1e-5\nfirst_seconds = 1e-5\n";
    const std::string head = "device = \"d\"\nversion = 1\n[[products]]\n";
    const auto refusal = [&](const std::string& text) -> std::string {
        folder.write("p.toml", text);
        try {
            read_chosen_products(folder.path("p.toml"));
            return "";
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "runtime.products");
            EXPECT_EQ(e.key(), "runtime.products");
            return e.what();
        }
    };
    EXPECT_EQ(refusal(head + row), "");
    EXPECT_EQ(refusal("device = \"d\"\nversion = 1\n"), "") << "no product is one";
    const auto has = [](const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; };
    const auto changed = [&](const std::string& from, const std::string& to) {
        std::string text = head + row;
        text.replace(text.find(from), from.size(), to);
        return refusal(text);
    };
    EXPECT_TRUE(has(refusal("device ="), "line 1 is no TOML"));
    EXPECT_TRUE(has(refusal("[machine]\n"), "it has no device, version and [[products]], as a file of products has"));
    EXPECT_TRUE(has(changed("m = 8", "m = 0"), "line 5: m must be a whole number of at least 1"));
    EXPECT_TRUE(has(changed("\"einsum\"", "\"rope\""), "line 4: op must be a product's op"));
    EXPECT_TRUE(has(changed("\"1_2\"", "\"1_z\""), "words must be up to eight words in hexadecimal"));
    EXPECT_TRUE(has(changed("seconds = 1e-5", "seconds = -1.0"), "seconds must be seconds, more than 0"));
    EXPECT_TRUE(has(changed("in = \"bf16\"", "in = \"i8\""), "in must be f32, bf16 or f16"));
    EXPECT_TRUE(has(changed("adds = false\n", ""), "adds must be true or false"));
    EXPECT_TRUE(has(changed("workspace_bytes = 0", "workspace_bytes = -1"), "workspace_bytes must be a number of bytes"));
    try {
        read_chosen_products(folder.path("none.toml"));
        FAIL();
    } catch (const UserError& e) {
        EXPECT_TRUE(has(e.what(), "cannot be read")) << e.what();
        EXPECT_TRUE(has(e.what(), "lockstep bench --products RECIPE --out")) << e.what();
    }
}

// Workspaces of products of float8: the library's, and a copy of each factor that is turned. GPUs of 10.0 turn none.
TEST(PlannedFloat8, IsTurnedInTheWorkspaceWhereTheGpuTakesOneOrder) {
    const Settings settings = {{"model.converters", "quantize.linear.float8"},
                               {"training.mixed_precision_param", "bfloat16"},
                               {"model.dim", "32"},
                               {"model.head_dim", "16"},
                               {"model.ffn_dim", "48"},
                               {"training.seq_len", "16"}};
    for (const int capability : {80, 86, 89, 90, 100, 120}) {
        SCOPED_TRACE(capability);
        compile::CompileOptions options;
        options.catalog = planned_catalog("a test", capability);
        const ir::Program p = compile::compile(small_recipe(settings), options).programs[0];
        EXPECT_FALSE(ops::verify(p));
        int whole = 0, parts = 0, turned = 0;
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                parts += !why_not_float8(op, capability).empty();
                if (op.kernel != "cublaslt.scaled_matmul") continue;
                ++whole;
                ops::MatmulShape s;
                ASSERT_TRUE(ops::is_matmul(p.mesh, r, op, &s));
                const int64_t copies =
                    (s.a_transposed ? turned_bytes(s.m, s.k) : 0) + (s.b_transposed ? turned_bytes(s.n, s.k) : 0);
                turned += copies > 0;
                EXPECT_EQ(op.workspace_bytes, whole_product_bytes(kProductWorkspaceBytes + (capability == 100 ? 0 : copies)));
            }
        }
        EXPECT_EQ(whole > 0, capability >= 89);
        EXPECT_EQ(turned > 0, capability >= 89);
        EXPECT_EQ(parts > 0, capability < 89);
    }
}

// Which recipes' products cuBLASLt has, by compute capability; all others are made of parts.
TEST(PlannedFloat8, IsWholeWhereTheGpuTakesItsScales) {
    struct Row {
        const char *converter, *recipe;
        std::vector<int> whole;
    };
    for (const Row& row : {Row{"quantize.linear.float8", "tensorwise", {89, 90, 100, 120}},
                           {"quantize.linear.float8", "rowwise", {90, 100}},
                           {"quantize.linear.float8", "rowwise_with_gw_hp", {90, 100}},
                           {"quantize.linear.float8", "blockwise", {90}},
                           {"quantize.linear.mx", "mxfp8_cublas", {100}},
                           {"quantize.linear.mx", "mxfp8_cublas_rceil", {100}}}) {
        for (const int capability : {80, 89, 90, 100, 120}) {
            SCOPED_TRACE(fmt::format("{} on {}", row.recipe, capability));
            const std::string converter = row.converter;
            compile::CompileOptions options;
            options.catalog = planned_catalog("a test", capability);
            const compile::Recipe recipe = small_recipe({{"model.converters", converter},
                                                         {converter + ".recipe_name", row.recipe},
                                                         {converter + ".filter_fqns", "attention"},
                                                         {"training.mixed_precision_param", "bfloat16"},
                                                         {"model.dim", "256"},
                                                         {"model.ffn_dim", "512"},
                                                         {"training.seq_len", "256"}});
            const ir::Program p = compile::compile(recipe, options).programs[0];
            EXPECT_FALSE(ops::verify(p));
            int whole = 0, parts = 0;
            for (const ir::Routine& r : p.routines) {
                for (const ir::Op& op : r.ops) {
                    parts += !why_not_float8(op, capability).empty();
                    if (op.kernel != "cublaslt.scaled_matmul") continue;
                    ++whole;
                    const auto problem = scaled_problem({p.mesh, r, op, 0, 1}, kind_of(capability));
                    ASSERT_TRUE(problem);
                    EXPECT_EQ(op.workspace_bytes,
                              whole_product_bytes(kProductWorkspaceBytes + problem->bytes(turns_float8(kind_of(capability)))));
                }
            }
            const bool is_whole = std::find(row.whole.begin(), row.whole.end(), capability) != row.whole.end();
            EXPECT_EQ(whole > 0, is_whole);
            EXPECT_EQ(parts > 0, !is_whole);
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
