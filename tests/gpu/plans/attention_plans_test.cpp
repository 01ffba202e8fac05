// cuDNN plans attention for an H100 that is not here, and says which workspace it takes. Skipped where cuDNN is not.
#include "kernels/cuda/attention_plans.h"

#include <gtest/gtest.h>

#include <string>

#include "base/round.h"
#include "base/text_file.h"
#include "kernels/cuda/attention.h"

namespace lockstep::testing {
namespace {

using kernels::cuda::AttentionProblem;

std::string title(const AttentionProblem& p) {
    const kernels::AttentionShape& s = p.shape;
    return "batch" + std::to_string(s.batch) + "_seq" + std::to_string(s.seq) + "_heads" + std::to_string(s.kv_heads) + "x" +
           std::to_string(s.group) + "_dim" + std::to_string(s.head_dim) + "_window" + std::to_string(s.window) +
           (p.type == Dtype::BF16 ? "_bf16" : "_f16");
}

AttentionProblem problem(Dtype type, int64_t batch, int64_t seq, int64_t kv_heads, int64_t group, int64_t head_dim,
                         int64_t window = 0) {
    return {{batch, seq, seq, kv_heads, group, head_dim, 0.125f, window}, type, false};
}
const AttentionProblem kProblems[] = {
    problem(Dtype::BF16, 2, 128, 2, 1, 64),      problem(Dtype::F16, 2, 128, 2, 2, 128),
    problem(Dtype::BF16, 2, 200, 2, 2, 64),      problem(Dtype::BF16, 2, 200, 2, 1, 128),
    problem(Dtype::BF16, 8, 1024, 12, 1, 64),    problem(Dtype::F16, 2, 2048, 8, 4, 128),
    problem(Dtype::BF16, 1, 4096, 8, 4, 128),    problem(Dtype::BF16, 1, 1000, 2, 7, 64),
    problem(Dtype::BF16, 2, 64, 2, 2, 64),       problem(Dtype::BF16, 1, 65, 1, 1, 32),
    problem(Dtype::F16, 2, 512, 4, 1, 8),        problem(Dtype::BF16, 2, 512, 4, 1, 72),
    problem(Dtype::BF16, 2, 512, 2, 2, 256),     problem(Dtype::BF16, 2, 200, 2, 2, 64, 70),
    problem(Dtype::F16, 2, 512, 4, 2, 128, 512), problem(Dtype::BF16, 2, 512, 4, 1, 64, 1),
};

// With sums in one order, before cuDNN 9.25: the gradients of the scores in tiles, those of keys and values for each query head
// before a group is added up, and a sum a row.
int64_t expected_bytes(const kernels::AttentionShape& s) {
    const int64_t heads = s.batch * s.kv_heads * s.group;
    const int64_t scores = heads * round_up(s.seq, 64) * round_up(s.seq, 128) * 2;
    const int64_t keys_and_values = s.group > 1 ? 2 * heads * s.seq * s.head_dim * 2 : 0;
    return scores + keys_and_values + heads * s.seq * 4;
}
constexpr int64_t kSlack = 1024;

class AttentionPlans : public ::testing::TestWithParam<AttentionProblem> {
protected:
    void SetUp() override {
        if (!kernels::cuda::has_cudnn()) GTEST_SKIP() << "there is no cuDNN here: " << kernels::cuda::cudnn_text();
    }
    static kernels::cuda::PlanOrRefusal plan(const AttentionProblem& p) {
        return attention_plan_for(p, {read_text_file(LOCKSTEP_SOURCE_DIR "/tests/gpu/plans/h100.json").text, 90});
    }
};

TEST_P(AttentionPlans, OfForwardHaveHardlyAnyWorkspace) {
    const auto found = plan(GetParam());
    ASSERT_TRUE(found.plan) << found.why;
    EXPECT_LE(found.plan->workspace_bytes(), kSlack);
}

TEST_P(AttentionPlans, OfBackwardHaveTheWorkspaceOfSumsInOneOrder) {
    AttentionProblem p = GetParam();
    p.backward = true;
    const auto found = plan(p);
    ASSERT_TRUE(found.plan) << found.why;
    EXPECT_GE(found.plan->workspace_bytes(), expected_bytes(p.shape)) << found.plan->engine();
    EXPECT_LE(found.plan->workspace_bytes(), expected_bytes(p.shape) + kSlack) << found.plan->engine();
}

TEST_P(AttentionPlans, CannotBeRunWithoutTheirDevice) {
    const auto found = plan(GetParam());
    ASSERT_TRUE(found.plan) << found.why;
    EXPECT_ANY_THROW(found.plan->run(nullptr, nullptr, nullptr));
}

INSTANTIATE_TEST_SUITE_P(H100, AttentionPlans, ::testing::ValuesIn(kProblems),
                         [](const auto& info) { return title(info.param); });

TEST(AttentionPlansText, NamesTheVersion) {
    EXPECT_TRUE(kernels::cuda::cudnn_text().starts_with(kernels::cuda::has_cudnn() ? "cuDNN 9." : ""))
        << kernels::cuda::cudnn_text();
}

}  // namespace
}  // namespace lockstep::testing
