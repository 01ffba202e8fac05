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

// Where keys and values are beside queries: operands, or results, behind the one that has the queries, or parts of it.
struct Rows {
    bool packed;
    int64_t keys_bytes, values_bytes;
    explicit Rows(const AttentionProblem& p)
        : packed(p.shape.packed),
          keys_bytes(p.shape.first_key() * bytes_of(p.type)),
          values_bytes(p.shape.first_value() * bytes_of(p.type)) {}
    void* keys(void* const* all, int queries) const { return packed ? at(all[queries], keys_bytes) : all[queries + 1]; }
    void* values(void* const* all, int queries) const { return packed ? at(all[queries], values_bytes) : all[queries + 2]; }
    // The operand behind them.
    int behind(int queries) const { return queries + (packed ? 1 : 3); }
    static void* at(void* tensor, int64_t bytes) { return static_cast<char*>(tensor) + bytes; }
};

}  // namespace

std::unique_ptr<Kernel> make_attention(const KernelContext& c, const AttentionProblem& problem) {
    const PlanInParts found = plan_to_run(c, problem);
    ensure(found.parts.batches * found.parts.groups == 1, "cuDNN: a forward of attention in parts");
    return kernel_from([plan = found.plan, row = Rows(problem)](const KernelArgs& k) {
        const std::array tensors = {k.in[0], row.keys(k.in, 0), row.values(k.in, 0), k.out[0], k.out[1]};
        plan->run(k.queue.handle(), tensors.data(), aligned(k.workspace));
    });
}

std::unique_ptr<Kernel> make_attention_backward(const KernelContext& c, const AttentionProblem& problem) {
    return kernel_from([found = plan_to_run(c, problem), s = problem.shape, row = Rows(problem)](const KernelArgs& k) {
        const AttentionParts& parts = found.parts;
        char* const workspace = aligned(k.workspace);
        auto* const lse = reinterpret_cast<float*>(workspace + lse_offset_bytes(parts.bytes));
        const int out = row.behind(1) + 4;
        gpu::transpose(k.queue.handle(), s.batch, s.seq, s.kv_heads * s.group, static_cast<const float*>(k.in[out + 1]), lse);
        const auto from = [&](void* tensor, int64_t elements) { return Rows::at(tensor, elements * bytes_of(parts.part.type)); };
        for (int64_t b = 0; b < parts.batches; ++b) {
            for (int64_t g = 0; g < parts.groups; ++g) {
                const int64_t query = parts.begin_of_queries(b, g), key = parts.begin_of_keys(b, g),
                              result = parts.begin_of_results(b, g);
                const std::array<void*, 9> tensors = {
                    from(k.in[1], query),    from(row.keys(k.in, 1), key),  from(row.values(k.in, 1), key),
                    from(k.in[out], result), from(k.in[0], result),         lse + parts.begin_of_sums(b, g),
                    from(k.out[0], query),   from(row.keys(k.out, 0), key), from(row.values(k.out, 0), key)};
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
