#include "kernels/cuda/attention.h"

#include <array>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/gpu/movement.h"

namespace lockstep::kernels::cuda {
namespace {

struct Library {
    static constexpr const char* kName = kAttentionName;
    // As cuDNN plans for the GPU that is here.
    static std::optional<int64_t> workspace_bytes(const AttentionProblem& problem) {
        const PlanOrRefusal found = attention_plan(problem);
        return found.plan ? std::optional(found.plan->workspace_bytes()) : std::nullopt;
    }
};

char* aligned(void* workspace) { return reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(workspace), kPlanAlignment)); }

// The plan of the device that the kernel will run on.
std::shared_ptr<const AttentionPlan> plan_to_run(const KernelContext& c, const AttentionProblem& problem) {
    PlanOrRefusal found = attention_plan(problem);
    if (!found.plan) throw InternalError("cuDNN has no plan for attention that it had one for: " + found.why);
    ensure(whole_workspace_bytes(found.plan->workspace_bytes(), problem) <= c.op.workspace_bytes,
           "cuDNN: attention asks for more workspace on this device than was planned");
    return std::move(found.plan);
}

}  // namespace

std::unique_ptr<Kernel> make_attention(const KernelContext& c, const AttentionProblem& problem) {
    return kernel_from([plan = plan_to_run(c, problem)](const KernelArgs& k) {
        const std::array tensors = {k.in[0], k.in[1], k.in[2], k.out[0], k.out[1]};
        plan->run(k.queue.handle(), tensors.data(), aligned(k.workspace));
    });
}

std::unique_ptr<Kernel> make_attention_backward(const KernelContext& c, const AttentionProblem& problem) {
    const AttentionShape& s = problem.shape;
    return kernel_from(
        [plan = plan_to_run(c, problem), batch = s.batch, seq = s.seq, heads = s.kv_heads * s.group](const KernelArgs& k) {
            char* const workspace = aligned(k.workspace);
            auto* const lse = reinterpret_cast<float*>(workspace + lse_offset_bytes(plan->workspace_bytes()));
            gpu::transpose(k.queue.handle(), batch, seq, heads, static_cast<const float*>(k.in[9]), lse);
            const std::array<void*, 9> tensors = {k.in[1], k.in[2], k.in[3], k.in[8], k.in[0], lse, k.out[0], k.out[1], k.out[2]};
            plan->run(k.queue.handle(), tensors.data(), workspace);
        });
}

const std::vector<Registered>& attention_kernels() {
    static const std::vector<Registered> all = list_of_attention<Library>();
    return all;
}

}  // namespace lockstep::kernels::cuda
