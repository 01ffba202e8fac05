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
struct PlanInParts {
    AttentionParts parts;
    std::shared_ptr<const AttentionPlan> plan;  // of one part
};
PlanInParts plan_to_run(const KernelContext& c, const AttentionProblem& problem) {
    const std::optional<AttentionParts> parts = parts_of(problem, Library::workspace_bytes);
    PlanOrRefusal found = attention_plan(parts ? parts->part : problem);
    if (!found.plan) throw InternalError("cuDNN has no plan for attention that it had one for: " + found.why);
    ensure(whole_workspace_bytes(parts->bytes, problem) <= c.op.workspace_bytes,
           "cuDNN: attention asks for more workspace on this device than was planned");
    return {*parts, std::move(found.plan)};
}

}  // namespace

std::unique_ptr<Kernel> make_attention(const KernelContext& c, const AttentionProblem& problem) {
    const PlanInParts found = plan_to_run(c, problem);
    ensure(found.parts.batches * found.parts.groups == 1, "cuDNN: a forward of attention in parts");
    return kernel_from([plan = found.plan](const KernelArgs& k) {
        const std::array tensors = {k.in[0], k.in[1], k.in[2], k.out[0], k.out[1]};
        plan->run(k.queue.handle(), tensors.data(), aligned(k.workspace));
    });
}

std::unique_ptr<Kernel> make_attention_backward(const KernelContext& c, const AttentionProblem& problem) {
    return kernel_from([found = plan_to_run(c, problem), s = problem.shape](const KernelArgs& k) {
        const AttentionParts& parts = found.parts;
        char* const workspace = aligned(k.workspace);
        auto* const lse = reinterpret_cast<float*>(workspace + lse_offset_bytes(parts.bytes));
        gpu::transpose(k.queue.handle(), s.batch, s.seq, s.kv_heads * s.group, static_cast<const float*>(k.in[9]), lse);
        for (int64_t b = 0; b < parts.batches; ++b) {
            for (int64_t g = 0; g < parts.groups; ++g) {
                const auto rows = [&](const void* tensor, int64_t heads) -> void* {
                    return const_cast<char*>(static_cast<const char*>(tensor)) +
                           parts.begin_of_row(b, g, heads, s.head_dim) * bytes_of(parts.part.type);
                };
                const auto queries = [&](const void* tensor) { return rows(tensor, s.group); };
                const auto keys = [&](const void* tensor) { return rows(tensor, 1); };
                const std::array<void*, 9> tensors = {queries(k.in[1]),  keys(k.in[2]),    keys(k.in[3]),
                                                      queries(k.in[8]),  queries(k.in[0]), lse + parts.begin_of_sums(b, g),
                                                      queries(k.out[0]), keys(k.out[1]),   keys(k.out[2])};
                found.plan->run(k.queue.handle(), tensors.data(), workspace);
            }
        }
    });
}

const std::vector<Registered>& attention_kernels() {
    static const std::vector<Registered> all = list_of_attention<Library>();
    return all;
}

}  // namespace lockstep::kernels::cuda
