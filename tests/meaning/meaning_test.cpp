// What the trial of a block says of single mistakes, and that it can carry out every kind of op.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

#include "kernels/kernel.h"
#include "meaning/meaning.h"
#include "ops/rule.h"
#include "tests/equivalence/draw.h"
#include "tests/equivalence/edit.h"

namespace lockstep::meaning_test {
namespace {

using Settings = std::map<std::string, std::string>;

compile::Recipe recipe(const Settings& more) {
    compile::Recipe r = compile::Recipe::from_text(
        "[training]\nseq_len = 8\nlocal_batch_size = 2\nglobal_batch_size = 8\ndtype = \"float64\"\n[parallelism]\n"
        "data_parallel_shard_degree = 2\ntensor_parallel_degree = 2\n[validation]\nenable = true\n[model]\nname = \"llama3\"\n"
        "dim = 16\nn_layers = 2\nn_heads = 8\nn_kv_heads = 4\nhead_dim = 4\nffn_dim = 24\nvocab_size = 30\nsliding_window = 5\n",
        "test");
    for (const auto& [key, value] : more) r.set(key, value);
    return r;
}

std::string refusal_of(const std::function<bool(ir::Program&)>& edit, const Settings& more = {}) {
    const compile::Recipe r = recipe(more);
    compile::Compiled compiled = testing::compile_recipe(r, testing::Backend::Reference);
    bool any = false;
    for (ir::Program& p : compiled.programs) any = edit(p) || any;
    EXPECT_TRUE(any) << "no place for it";
    return testing::refusal(r, compiled);
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Meaning, ASoundProgramIsAccepted) {
    for (const Settings& more : {Settings{},
                                 {{"model.qk_norm", "1"}},
                                 {{"model.tie_embeddings", "1"}},
                                 {{"activation_checkpoint.mode", "full"}},
                                 {{"training.fuse_loss", "false"}}})
        EXPECT_EQ(refusal_of([](ir::Program&) { return true; }, more), "");
}

TEST(Meaning, AGradientThatIsAddedTwiceIsNoDerivative) {
    const std::string wrong = refusal_of([](ir::Program& p) {
        for (ir::Routine& r : p.routines) {
            for (size_t i = 0; r.block == "layer" && ir::is_backward(r.kind) && i < r.ops.size(); ++i) {
                if (r.ops[i].accumulate.empty() || r.ops[i].out.size() > 1) continue;
                const ir::Op again = r.ops[i];
                r.ops.insert(r.ops.begin() + static_cast<long>(i), again);
                return true;
            }
        }
        return false;
    });
    EXPECT_TRUE(has(wrong, "meaning: rank 0, train: layer[")) << wrong;
    EXPECT_TRUE(has(wrong, " is not the derivative: ")) << wrong;
}

TEST(Meaning, GradientsOfTwoParametersOfOneShapeAreNotExchanged) {
    const std::string wrong = refusal_of([](ir::Program& p) {
        for (ir::Routine& r : p.routines) {
            const ir::TensorId a = r.find("grad.attention_norm"), b = r.find("grad.ffn_norm");
            if (a < 0 || b < 0) continue;
            for (ir::Op& op : r.ops) {
                for (ir::TensorId& t : op.out) t = t == a ? b : t == b ? a : t;
            }
            return true;
        }
        return false;
    });
    EXPECT_TRUE(has(wrong, "the gradient of attention_norm is not the derivative")) << wrong;
}

TEST(Meaning, AWindowIsThatOfTheModelToTheToken) {
    for (const int64_t window : {4, 6, 0}) {
        const std::string wrong =
            refusal_of([&](ir::Program& p) { return testing::set_attr(p, testing::kForwards, "attention", "window", window); });
        EXPECT_TRUE(has(wrong, "layer[0] in microbatch 0: the result differs from the model's by ")) << window << ": " << wrong;
    }
}

TEST(Meaning, ValidationIsTriedToo) {
    const std::string wrong = refusal_of([](ir::Program& p) {
        bool any = false;
        for (ir::Routine& r : p.routines) {
            for (ir::Op& op : r.ops) {
                if (r.entry != ir::EntryKind::Eval || op.kind != "split_qkv") continue;
                op.attrs["sign"] = int64_t{-1};
                any = true;
            }
        }
        return any;
    });
    EXPECT_TRUE(has(wrong, "meaning: rank 0, eval: layer[0]")) << wrong;
}

TEST(Meaning, ThePaddingOfAGradientIsZero) {
    const auto fill = [](ir::Program& p) {
        return testing::each_op(p, testing::kCompute, "mask_padding", [](ir::Routine&, ir::Op& op) {
            if (op.number("fill") != 0) return false;
            op.attrs["fill"] = 0.1;
            return true;
        });
    };
    const std::string wrong = refusal_of(fill, {{"parallelism.tensor_parallel_degree", "4"}});
    EXPECT_TRUE(has(wrong, "the gradient of output has values in its padding")) << wrong;
}

// `check` refuses this before anything is tried.
TEST(Meaning, TargetsAreCountedOverAllRanks) {
    const compile::Recipe r = recipe({});
    compile::Compiled compiled = testing::compile_recipe(r, testing::Backend::Reference);
    ir::Program& p = compiled.programs[0];
    ir::Routine& begin = p.routines[static_cast<size_t>(p.routine_index("begin"))];
    for (const ir::Op& op : begin.ops) {
        if (op.kind == "all_reduce") begin.tensors[static_cast<size_t>(op.in[0])].placement.reduce = ir::Reduce::Max;
    }
    const std::string wrong = meaning::wrong_meaning(compiled.of_ranks(), compile::config_of(r));
    EXPECT_TRUE(has(wrong, "counts[0] in microbatch 0: inv_n becomes ")) << wrong;
}

// What training gave is no result of validation.
TEST(Meaning, AWayWithoutAResultIsRefused) {
    const compile::Recipe r = recipe({{"parallelism.enable_async_tensor_parallel", "true"}});
    compile::Compiled compiled = testing::compile_recipe(r, testing::Backend::Reference);
    ir::Program& p = compiled.programs[0];
    for (ir::Entry& e : p.entries) {
        if (e.kind != ir::EntryKind::Eval) continue;
        const auto gives_y = [&](const ir::Call& c) {
            const ir::Routine& routine = p.routines[static_cast<size_t>(c.routine)];
            const int y = routine.port(ir::PortRole::Y);
            return routine.block == "layer" && y >= 0 && routine.ports[static_cast<size_t>(y)].access == ir::Access::Write;
        };
        std::erase_if(e.calls, gives_y);
    }
    const std::string wrong = meaning::wrong_meaning(compiled.of_ranks(), compile::config_of(r));
    EXPECT_TRUE(has(wrong, "eval: layer[0] in microbatch 0: no call gives y")) << wrong;
}

// A kind that is new must be tried: by a reference kernel, by its expansion, or as a collective. These few are of the end
// of a step, of states and of generation, which check/ follows.
// Each may occur once, so that nothing else of the program contradicts it.
TEST(Meaning, NumbersOfTheStepsEndAreThoseOfTheRecipe) {
    struct Case {
        const char *op, *attribute;
        Settings more;
        const char* key;
    };
    const Settings float16 = {{"training.dtype", "float32"}, {"training.mixed_precision_param", "float16"}};
    const Settings islands = {
        {"fault_tolerance.enable", "true"}, {"fault_tolerance.semi_sync_method", "diloco"}, {"fault_tolerance.group_size", "2"}};
    for (const Case& c : {Case{"step_control", "max_norm", {}, "training.max_norm"},
                          {"step_control", "beta2", {}, "optimizer.beta2"},
                          {"sgd", "momentum", {{"optimizer.name", "SGD"}}, "optimizer.momentum"},
                          {"muon_momentum", "momentum", {{"optimizer.name", "Muon"}}, "optimizer.momentum"},
                          {"update_loss_scale", "least", float16, "training.min_loss_scale"},
                          {"outer_sgd", "lr", islands, "fault_tolerance.outer_lr"},
                          {"outer_sgd", "alpha", islands, "fault_tolerance.fragment_update_alpha"}}) {
        const std::string wrong = refusal_of(
            [&](ir::Program& p) {
                bool any = false;
                for (ir::Routine& r : p.routines) {
                    for (ir::Op& op : r.ops) {
                        if (op.kind != c.op) continue;
                        op.attrs.at(c.attribute) = op.number(c.attribute) + 0.25, any = true;
                    }
                }
                return any;
            },
            c.more);
        EXPECT_TRUE(has(wrong, c.attribute)) << c.op << ": " << wrong;
        // Bias corrections are held to the moments before.
        EXPECT_TRUE(has(wrong, c.key) || std::string_view(c.attribute) == "beta2") << c.op << ": " << wrong;
    }
}

TEST(Meaning, MomentsAreOfTheRecipesTypeAndRoundedFromItsSeed) {
    const Settings narrow = {{"optimizer.implementation", "fused_opt_states_bf16"}};
    EXPECT_EQ(refusal_of([](ir::Program&) { return true; }, narrow), "");
    const std::string wrong = refusal_of(
        [](ir::Program& p) {
            bool any = false;
            for (ir::Routine& r : p.routines) {
                for (ir::Op& op : r.ops) {
                    if (op.kind == "adamw") op.attrs.at("seed") = int64_t{1}, any = true;
                }
            }
            return any;
        },
        narrow);
    EXPECT_TRUE(has(wrong, "op adamw: seed is 1, and 0 in the recipe (debug.seed)")) << wrong;
    const compile::Recipe wide = recipe({});
    const compile::Compiled compiled = testing::compile_recipe(recipe(narrow), testing::Backend::Reference);
    EXPECT_TRUE(has(testing::refusal(wide, compiled), "exp_avg.embed is bf16, and f64 in the recipe (optimizer.implementation)"))
        << testing::refusal(wide, compiled);
}

TEST(Meaning, TheLossScaleBeginsWhereTheRecipeSays) {
    const std::string wrong = refusal_of(
        [](ir::Program& p) {
            ir::State& s = p.states[static_cast<size_t>(p.state(ir::StateRole::LossScale))];
            s.init = *s.init * 2;
            return true;
        },
        {{"training.dtype", "float32"}, {"training.mixed_precision_param", "float16"}});
    EXPECT_TRUE(has(wrong, "training.initial_loss_scale")) << wrong;
}

TEST(Meaning, EveryKindOfOpCanBeCarriedOut) {
    const ops::KernelCatalog catalog = kernels::reference_catalog();
    for (const ops::OpRule& rule : ops::all_rules()) {
        const bool served = std::any_of(catalog.entries.begin(), catalog.entries.end(),
                                        [&](const ops::KernelEntry& e) { return e.op == rule.name; });
        EXPECT_TRUE(served || rule.expand || rule.collective) << rule.name;
    }
}

}  // namespace
}  // namespace lockstep::meaning_test
