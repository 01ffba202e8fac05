// cuDNN plans attention for GPUs that are not here, and says which workspace it takes. Skipped where cuDNN is not.
#include "kernels/cuda/attention_plans.h"

#include <gtest/gtest.h>

#include <iterator>
#include <string>
#include <tuple>

#include "base/text_file.h"
#include "kernels/cuda/attention_kernels.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

using kernels::cuda::AttentionProblem;

std::string title(const AttentionProblem& p) {
    const kernels::AttentionShape& s = p.shape;
    return "batch" + std::to_string(s.batch) + "_seq" + std::to_string(s.seq) + "_heads" + std::to_string(s.kv_heads) + "x" +
           std::to_string(s.group) + "_dim" + std::to_string(s.head_dim) + "_window" + std::to_string(s.window) +
           (p.any_order ? "_any" : "") + (p.row_kv_heads > 0 ? "_of" + std::to_string(p.row_kv_heads) : "") +
           (s.packed ? "_rows" : "") + (s.kv_seq != s.seq ? "_keys" + std::to_string(s.kv_seq) : "") + (p.causal ? "" : "_all") +
           (p.row_seq > 0 ? "_rows" + std::to_string(p.row_seq) : "") + (p.type == Dtype::BF16 ? "_bf16" : "_f16");
}

AttentionProblem problem(Dtype type, int64_t batch, int64_t seq, int64_t kv_heads, int64_t group, int64_t head_dim,
                         int64_t window = 0) {
    return {{batch, seq, seq, kv_heads, group, head_dim, 0.125f, window}, type, false};
}
// Some key heads of longer rows, as parts of a backward have them.
AttentionProblem of_rows(AttentionProblem p, int64_t row_kv_heads) {
    p.row_kv_heads = row_kv_heads;
    return p;
}
// Queries, keys and values in one row, and their gradients.
AttentionProblem in_rows(AttentionProblem p) {
    p.shape.packed = true;
    return p;
}
// Of a ring's block, or of gathered keys: other keys than queries, and only some rows of the tensors.
AttentionProblem of_block(AttentionProblem p, int64_t keys, bool causal, int64_t row_seq, int64_t row_kv_seq) {
    p.shape.kv_seq = keys, p.causal = causal, p.row_seq = row_seq, p.row_kv_seq = row_kv_seq;
    return p;
}
AttentionProblem in_any_order(AttentionProblem p) {
    p.any_order = true;
    return p;
}
const AttentionProblem kProblems[] = {
    problem(Dtype::BF16, 2, 128, 2, 1, 64),
    problem(Dtype::F16, 2, 128, 2, 2, 128),
    problem(Dtype::BF16, 2, 200, 2, 2, 64),
    problem(Dtype::BF16, 2, 200, 2, 1, 128),
    problem(Dtype::BF16, 8, 1024, 12, 1, 64),
    problem(Dtype::F16, 2, 2048, 8, 4, 128),
    problem(Dtype::BF16, 1, 4096, 8, 4, 128),
    problem(Dtype::BF16, 1, 1000, 2, 7, 64),
    problem(Dtype::BF16, 2, 64, 2, 2, 64),
    problem(Dtype::BF16, 1, 65, 1, 1, 32),
    problem(Dtype::F16, 2, 512, 4, 1, 8),
    problem(Dtype::BF16, 2, 512, 4, 1, 72),
    problem(Dtype::BF16, 2, 512, 2, 2, 256),
    problem(Dtype::BF16, 2, 200, 2, 2, 64, 70),
    problem(Dtype::F16, 2, 512, 4, 2, 128, 512),
    problem(Dtype::BF16, 2, 512, 4, 1, 64, 1),
    of_rows(problem(Dtype::BF16, 1, 8192, 1, 4, 128), 8),
    of_rows(problem(Dtype::F16, 1, 1000, 3, 1, 64), 12),
    in_any_order(problem(Dtype::BF16, 2, 128, 2, 1, 64)),
    in_any_order(problem(Dtype::F16, 2, 128, 2, 2, 128)),
    in_any_order(problem(Dtype::BF16, 8, 1024, 12, 1, 64)),
    in_any_order(problem(Dtype::BF16, 2, 8192, 8, 4, 128)),
    in_any_order(problem(Dtype::BF16, 2, 512, 2, 2, 256)),
    in_any_order(of_rows(problem(Dtype::BF16, 1, 8192, 1, 4, 128), 8)),
    in_rows(problem(Dtype::BF16, 8, 1024, 12, 1, 64)),
    in_rows(problem(Dtype::BF16, 1, 4096, 8, 4, 128)),
    in_rows(of_rows(problem(Dtype::BF16, 1, 8192, 1, 4, 128), 8)),
    in_rows(of_rows(problem(Dtype::F16, 1, 1000, 3, 1, 64), 12)),
    in_rows(problem(Dtype::F16, 2, 512, 4, 2, 128, 512)),
    in_rows(problem(Dtype::BF16, 2, 512, 2, 2, 256)),
    in_rows(problem(Dtype::BF16, 1, 1000, 2, 7, 64)),
    in_rows(problem(Dtype::BF16, 2, 64, 2, 2, 64)),
    in_rows(problem(Dtype::BF16, 2, 512, 4, 1, 72)),
    in_any_order(in_rows(problem(Dtype::BF16, 2, 8192, 8, 4, 128))),
    in_any_order(in_rows(of_rows(problem(Dtype::BF16, 1, 8192, 1, 4, 128), 8))),
    of_block(problem(Dtype::BF16, 2, 512, 2, 2, 128), 256, false, 512, 512),
    of_block(problem(Dtype::BF16, 2, 256, 2, 2, 128), 512, false, 512, 512),
    of_block(problem(Dtype::F16, 2, 256, 2, 1, 64), 256, false, 256, 256),
    of_block(problem(Dtype::BF16, 1, 256, 2, 2, 128), 1024, true, 512, 2048),
    of_block(problem(Dtype::BF16, 2, 200, 2, 1, 64), 1000, true, 400, 1600),
    of_block(of_rows(problem(Dtype::BF16, 1, 4096, 1, 4, 128), 8), 16384, true, 32768, 32768),
    of_block(of_rows(problem(Dtype::BF16, 1, 4096, 1, 4, 128), 8), 32768, false, 32768, 32768),
    in_any_order(of_block(problem(Dtype::BF16, 1, 256, 2, 2, 128), 1024, true, 512, 2048)),
    in_any_order(of_block(problem(Dtype::BF16, 2, 512, 2, 2, 128), 256, false, 512, 512)),
    of_block(problem(Dtype::BF16, 1, 72, 2, 2, 72), 360, false, 72, 360),
    of_block(problem(Dtype::BF16, 1, 72, 1, 1, 72), 360, true, 72, 360),
};

struct Device {
    const char* name;  // of its description
    int compute_capability;
};
using DeviceAndProblem = std::tuple<Device, AttentionProblem>;

class AttentionPlans : public ::testing::TestWithParam<DeviceAndProblem> {
protected:
    void SetUp() override {
        if (!kernels::cuda::has_cudnn()) GTEST_SKIP() << "there is no cuDNN here: " << kernels::cuda::cudnn_text();
    }
};

// A program that is compiled without a GPU has the workspace that cuDNN asks for.
TEST_P(AttentionPlans, HaveTheWorkspaceThatIsPlannedWithoutCudnn) {
    const auto& [device, problem] = GetParam();
    const std::string described =
        read_text_file(std::string(LOCKSTEP_SOURCE_DIR "/tests/gpu/plans/") + device.name + ".json").text;
    AttentionProblem p = problem;
    for (const bool backward : {false, true}) {
        p.backward = backward;
        const auto found = attention_plan_for(p, {described, device.compute_capability});
        const auto bytes = kernels::cuda::attention_bytes_of_cudnn(p, device.compute_capability);
        ASSERT_EQ(found.plan != nullptr, bytes.has_value()) << found.why;
        if (!bytes) continue;
        EXPECT_EQ(found.plan->workspace_bytes(), *bytes) << found.plan->engine();
        EXPECT_ANY_THROW(found.plan->run(nullptr, nullptr, nullptr)) << "without its device";
    }
}

std::string name_of(const ::testing::TestParamInfo<DeviceAndProblem>& info) {
    return std::string(std::get<0>(info.param).name) + "_" + title(std::get<1>(info.param));
}
constexpr Device kH100 = {"h100", 90}, kOthers[] = {{"a100", 80},    {"a10", 86},   {"rtx3090", 86}, {"l40s", 89},
                                                    {"rtx4090", 89}, {"b200", 100}, {"rtx5090", 120}};
INSTANTIATE_TEST_SUITE_P(H100, AttentionPlans, ::testing::Combine(::testing::Values(kH100), ::testing::ValuesIn(kProblems)),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Others, AttentionPlans,
                         ::testing::Combine(::testing::ValuesIn(kOthers),
                                            ::testing::Values(kProblems[2], kProblems[4], kProblems[12], kProblems[14],
                                                              kProblems[16], kProblems[18], kProblems[19], kProblems[20],
                                                              kProblems[21], kProblems[22])),
                         name_of);

constexpr Device kOthersOfRows[] = {{"a100", 80}, {"b200", 100}};
INSTANTIATE_TEST_SUITE_P(Rows, AttentionPlans,
                         ::testing::Combine(::testing::ValuesIn(kOthersOfRows),
                                            ::testing::Values(kProblems[24], kProblems[26], kProblems[28])),
                         name_of);

// Of rings and of gathered keys.
INSTANTIATE_TEST_SUITE_P(Blocks, AttentionPlans,
                         ::testing::Combine(::testing::ValuesIn(kOthersOfRows),
                                            ::testing::ValuesIn(std::begin(kProblems) + 35, std::end(kProblems))),
                         name_of);

TEST(AttentionPlansText, NamesTheVersion) {
    EXPECT_TRUE(kernels::cuda::cudnn_text().starts_with(kernels::cuda::has_cudnn() ? "cuDNN 9." : ""))
        << kernels::cuda::cudnn_text();
}

}  // namespace
}  // namespace lockstep::testing
