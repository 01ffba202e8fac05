#include "kernels/cuda/attention.h"

#include <array>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cuda/attention_plans.h"
#include "kernels/gpu/movement.h"
#include "kernels/registry/attention.h"

namespace lockstep::kernels::cuda {
namespace {

using namespace registry;

// cuDNN is not asked for shorter sequences, of which it refuses some, nor for odd ones, which would set its own workspace, behind
// sums of 4 bytes a row, to odd addresses.
constexpr int64_t kLeastSeq = 64, kSeqMultiple = 8, kHeadDimMultiple = 8;

// query: which operand the queries are.
template <class T>
AttentionProblem problem_of(const KernelContext& c, size_t query) {
    return {attention_shape(c, query), kDtypeOf<T>, query == 1};
}

template <class T>
bool serves_attention(const KernelContext& c, size_t query) {
    if (!c.op.attrs.contains("one_document") || c.op.attrs.contains("dropout")) return false;
    const AttentionProblem problem = problem_of<T>(c, query);
    const AttentionShape& s = problem.shape;
    if (s.seq != s.kv_seq || s.seq < kLeastSeq || s.seq % kSeqMultiple != 0 || s.head_dim % kHeadDimMultiple != 0) return false;
    const PlanOrRefusal found = attention_plan(problem);
    return found.plan && found.plan->workspace_bytes() <= kAttentionWorkspaceBytes;
}

std::shared_ptr<const AttentionPlan> plan_of(const AttentionProblem& problem) {
    PlanOrRefusal found = attention_plan(problem);
    if (!found.plan) throw InternalError("cuDNN has no plan for attention that it had one for: " + found.why);
    return std::move(found.plan);
}

// Behind what cuDNN uses of the workspace: lse with heads first, as its backward reads it.
int64_t lse_offset_bytes(const AttentionPlan& plan) { return round_up(plan.workspace_bytes(), kTensorAlignment); }
int64_t lse_bytes(const AttentionProblem& p) {
    const AttentionShape& s = p.shape;
    return p.backward ? s.batch * s.seq * s.kv_heads * s.group * static_cast<int64_t>(sizeof(float)) : 0;
}
// Kernels get theirs aligned to kAlignmentBytes.
int64_t workspace_of(const AttentionPlan& plan, const AttentionProblem& problem) {
    return lse_offset_bytes(plan) + lse_bytes(problem) + kPlanAlignment - kAlignmentBytes;
}
template <class T>
int64_t planned_bytes(const KernelContext& c, size_t query) {
    const AttentionProblem problem = problem_of<T>(c, query);
    return workspace_of(*plan_of(problem), problem);
}
char* aligned(void* workspace) { return reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(workspace), kPlanAlignment)); }

// The plan of the device that the kernel will run on.
std::shared_ptr<const AttentionPlan> plan_to_run(const KernelContext& c, const AttentionProblem& problem) {
    std::shared_ptr<const AttentionPlan> plan = plan_of(problem);
    ensure(workspace_of(*plan, problem) <= c.op.workspace_bytes,
           "cuDNN: attention asks for more workspace on this device than was planned");
    return plan;
}

template <class T>
struct AttentionOf {  // q, k, v, pos, kv_pos, doc, kv_doc -> out, lse
    static constexpr Family kFamily{"attention", "attention"};
    using Types = std::tuple<T, float>(T, T, T, int32_t);
    static bool serves(const KernelContext& c) { return serves_attention<T>(c, 0); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<T>(c, 0); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        return kernel_from([plan = plan_to_run(c, problem_of<T>(c, 0))](const KernelArgs& k) {
            const std::array tensors = {k.in[0], k.in[1], k.in[2], k.out[0], k.out[1]};
            plan->run(k.queue.handle(), tensors.data(), aligned(k.workspace));
        });
    }
};
template <class T>
struct AttentionBackwardOf {  // d_out, q, k, v, pos, kv_pos, doc, kv_doc, out, lse -> d_q, d_k, d_v
    static constexpr Family kFamily{"attention_backward", "attention_backward"};
    using Types = std::tuple<T, T, T>(T, T, T, T, int32_t, int32_t, int32_t, int32_t, T, float);
    static bool serves(const KernelContext& c) { return serves_attention<T>(c, 1); }
    static int64_t workspace_bytes(const KernelContext& c) { return planned_bytes<T>(c, 1); }
    static std::unique_ptr<Kernel> make(const KernelContext& c) {
        const AttentionProblem problem = problem_of<T>(c, 1);
        const AttentionShape& s = problem.shape;
        return kernel_from([plan = plan_to_run(c, problem), batch = s.batch, seq = s.seq,
                            heads = s.kv_heads * s.group](const KernelArgs& k) {
            char* const workspace = aligned(k.workspace);
            auto* const lse = reinterpret_cast<float*>(workspace + lse_offset_bytes(*plan));
            gpu::transpose(k.queue.handle(), batch, seq, heads, in(k, 9), lse);
            const std::array<void*, 9> tensors = {k.in[1], k.in[2], k.in[3], k.in[8], k.in[0], lse, k.out[0], k.out[1], k.out[2]};
            plan->run(k.queue.handle(), tensors.data(), workspace);
        });
    }
};

struct Library {
    static constexpr const char* kName = "cudnn";
};

}  // namespace

const std::vector<Registered>& attention_kernels() {
    static const std::vector<Registered> all = [] {
        std::vector<Registered> r;
        add_all<Library, AttentionOf<Bf16>, AttentionOf<F16>, AttentionBackwardOf<Bf16>, AttentionBackwardOf<F16>>(r);
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels::cuda
