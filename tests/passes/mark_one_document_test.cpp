// Which ops of attention carry the promise that their sequences are one document each.
#include "passes/mark_one_document.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "check/check.h"
#include "kernels/kernel.h"
#include "ops/rule.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

using ir::EntryKind;

// Ops of attention, forward and backward, by entry: those with the promise, of all.
struct Count {
    int marked = 0, all = 0;
};
std::map<EntryKind, Count> marked(const ir::Program& p) {
    std::map<EntryKind, Count> out;
    for (const ir::Routine& r : p.routines) {
        for (const ir::Op& op : r.ops) {
            if (op.kind != "attention" && op.kind != "attention_backward") continue;
            ++out[r.entry].all;
            out[r.entry].marked += op.attrs.contains("one_document") ? 1 : 0;
        }
    }
    return out;
}

ir::Program compiled(const Settings& settings, const std::vector<EntryKind>& entries) {
    compile::CompileOptions options;
    options.catalog = kernels::reference_catalog();
    options.entries = entries;
    return compile::compile(small_recipe(settings), options).programs[0];
}

TEST(MarkOneDocument, ForwardBackwardAndValidationOfWholeSequences) {
    for (const char* model : {"llama3", "gpt2"}) {
        for (const char* tensor_parallel : {"1", "2"}) {
            const ir::Program p = program_after("plan_memory", {{"model.name", model},
                                                                {"validation.enable", "true"},
                                                                {"activation_checkpoint.mode", "full"},
                                                                {"parallelism.tensor_parallel_degree", tensor_parallel}});
            auto counts = marked(p);
            // Forward, the forward again before backward, backward; validation's forward.
            EXPECT_EQ(counts[EntryKind::Train].all, 3) << model;
            EXPECT_EQ(counts[EntryKind::Train].marked, 3) << model;
            EXPECT_EQ(counts[EntryKind::Eval].all, 1) << model;
            EXPECT_EQ(counts[EntryKind::Eval].marked, 1) << model;
            EXPECT_FALSE(ops::verify(p));
        }
    }
}

// runtime.deterministic says whether a backward may add up in any order.
TEST(AllowAnyOrder, OnlyWhereARecipeAsksForIt) {
    for (const bool deterministic : {true, false}) {
        const ir::Program p = program_after("plan_memory", {{"runtime.deterministic", deterministic ? "true" : "false"}});
        int backward = 0;
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                backward += op.kind == ir::kAttentionBackward ? 1 : 0;
                EXPECT_EQ(op.attrs.contains("any_order"), !deterministic && op.kind == ir::kAttentionBackward) << op.kind;
            }
        }
        EXPECT_GT(backward, 0);
        EXPECT_FALSE(ops::verify(p));
    }
}

TEST(MarkOneDocument, NotWithDocumentMasks) {
    auto counts = marked(program_after("plan_memory", {{"training.document_mask", "true"}, {"validation.enable", "true"}}));
    EXPECT_GT(counts[EntryKind::Train].all, 0);
    EXPECT_EQ(counts[EntryKind::Train].marked, 0);
    EXPECT_EQ(counts[EntryKind::Eval].marked, 0);
}

// In each form, and in both orders: blocks of a ring have the promise of the attention that they are of.
TEST(MarkOneDocument, WhereQueriesAreDividedOverContextRanks) {
    const std::string context = "parallelism.context_parallel_";
    for (const auto& [method, heads] :
         {std::pair{"allgather", "1"}, {"alltoall", "1"}, {"ulysses", "0"}, {"allgather", "2"}, {"alltoall", "2"}}) {
        for (const char* balancer : {"headtail", "none"}) {
            const ir::Program p = program_after("plan_memory", {{context + "degree", "4"},
                                                                {context + "rotate_method", method},
                                                                {context + "head_degree", heads},
                                                                {context + "load_balancer", balancer},
                                                                {"training.mixed_precision_param", "bfloat16"}});
            EXPECT_FALSE(ops::verify(p));
            int attention = 0;
            for (const ir::Routine& r : p.routines) {
                for (const ir::Op& op : r.ops) {
                    const int query = ops::rule(op.kind).queries;
                    if (query < 0) continue;
                    ++attention;
                    EXPECT_TRUE(op.attrs.contains("one_document")) << method << ", " << op.kind;
                    const ir::Tensor& q = r.tensors[op.in[static_cast<size_t>(query)]];
                    const bool is_divided = !q.placement.dims[1].empty();
                    EXPECT_EQ(op.attrs.contains("head_tail"), p.head_tail > 1 && is_divided) << method << ", " << op.kind;
                }
            }
            EXPECT_GE(attention, 2);
        }
    }
}

TEST(MarkOneDocument, NotWhereKeysStandInACache) {
    auto counts = marked(compiled({}, {EntryKind::Prefill, EntryKind::Decode}));
    for (const EntryKind entry : {EntryKind::Prefill, EntryKind::Decode}) {
        EXPECT_GT(counts[entry].all, 0);
        EXPECT_EQ(counts[entry].marked, 0);
    }
}

}  // namespace
}  // namespace lockstep::testing
