#include "kernels/cuda/attention.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/round.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/gpu/attention_merge.h"
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
std::shared_ptr<const AttentionPlan> plan_to_run(const AttentionProblem& problem, int64_t planned_bytes) {
    PlanOrRefusal found = attention_plan(problem);
    if (!found.plan) throw InternalError("cuDNN has no plan for attention that it had one for: " + found.why);
    ensure(found.plan->workspace_bytes() <= planned_bytes,
           "cuDNN: attention asks for more workspace on this device than was planned");
    return std::move(found.plan);
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

// A piece of a rank's attention, as cuDNN computes it.
struct Step {
    Piece piece;
    AttentionParts parts;
    std::vector<std::shared_ptr<const AttentionPlan>> of_rows;  // one for each of the parts of its queries
};
struct Steps {
    DividedAttention attention;
    BlockWorkspace workspace;
    std::vector<Step> all;
};
template <class T>
Steps steps_of(const KernelContext& c, size_t query) {
    const std::optional<DividedAttention> d = divided_attention<T>(c, query);
    ensure(d.has_value(), "cuDNN: attention of an unknown order of tokens");
    const std::optional<int64_t> most = most_bytes(*d, Library::workspace_bytes, divides(c));
    ensure(most.has_value(), "cuDNN has no plan for attention that it had one for");
    Steps steps{*d, block_workspace(*d, *most, is_block(c)), {}};
    ensure(steps.workspace.bytes <= c.op.workspace_bytes,
           "cuDNN: attention asks for more workspace on this device than was planned");
    const std::vector<Piece> largest = largest_pieces(d->ranks, d->all.shape.seq);
    for (const Piece& piece : own_pieces(c, query, *d)) {
        // Divided as the largest piece is, so that no part needs more than that one's.
        const auto as = std::find_if(largest.begin(), largest.end(), [&](const Piece& l) { return l.queries == piece.queries; });
        std::optional<AttentionParts> parts = parts_of(d->problem_of(*as), Library::workspace_bytes, rows_of_part(divides(c)));
        ensure(parts.has_value(), "cuDNN has no plan for a part of attention");
        parts->part.shape.kv_seq = piece.keys;
        Step step{piece, *parts, {}};
        for (int64_t row = 0; row < parts->rows; ++row) step.of_rows.push_back(plan_to_run(parts->part_of_rows(row), *most));
        steps.all.push_back(std::move(step));
    }
    return steps;
}

// From the token `first` on of tensors whose tokens are `stride` elements apart.
void* from_token(void* tensor, int64_t first, int64_t stride, int64_t bytes) { return Rows::at(tensor, first * stride * bytes); }

// Where keys and values are in plain order: in the workspace, if the kernel brings them there.
struct KeysAndValues {
    void *keys, *values;
    KeysAndValues(const KernelArgs& k, const Steps& steps, int queries, char* workspace)
        : keys(Rows(steps.attention.all).keys(k.in, queries)), values(Rows(steps.attention.all).values(k.in, queries)) {
        if (!steps.attention.orders_keys()) return;
        keys = in_order(k, steps, keys, workspace + steps.workspace.keys);
        values = in_order(k, steps, values, workspace + steps.workspace.values);
    }

private:
    static void* in_order(const KernelArgs& k, const Steps& steps, const void* x, void* to) {
        const AttentionProblem& p = steps.attention.all;
        const gpu::OrderedRows rows = {p.shape.batch, p.shape.kv_seq, p.key_stride() * bytes_of(p.type),
                                       steps.attention.ranks.count};
        gpu::in_plain_order(k.queue.handle(), rows, x, to);
        return to;
    }
};

// The forward of all steps: the rows that they have, of tensors like the result and lse of attention.
void run_forward(const KernelArgs& k, const Steps& steps, void* out, void* lse, char* workspace) {
    const AttentionProblem& all = steps.attention.all;
    const KeysAndValues plain(k, steps, 0, workspace);
    const int64_t bytes = bytes_of(all.type), heads = all.shape.kv_heads * all.shape.group;
    for (const Step& step : steps.all) {
        const int64_t first = step.piece.first_query;
        const std::array tensors = {from_token(k.in[0], first, all.query_stride(), bytes), plain.keys, plain.values,
                                    from_token(out, first, all.result_stride(), bytes),
                                    from_token(lse, first, heads, sizeof(float))};
        step.of_rows[0]->run(k.queue.handle(), tensors.data(), workspace);
    }
}
void require_one_part(const Steps& steps) {
    for (const Step& step : steps.all)
        ensure(step.parts.batches * step.parts.groups * step.parts.rows == 1, "cuDNN: a forward of attention in parts");
}

// Queries [first, first + rows) of lse [batch, seq, heads], as [batch, heads, rows].
void heads_first(const KernelArgs& k, const AttentionShape& s, int64_t first, int64_t rows, const float* lse, float* to) {
    const int64_t heads = s.kv_heads * s.group;
    if (rows == s.seq) return gpu::transpose(k.queue.handle(), s.batch, rows, heads, lse, to);
    for (int64_t b = 0; b < s.batch; ++b)
        gpu::transpose(k.queue.handle(), 1, rows, heads, lse + (b * s.seq + first) * heads, to + b * heads * rows);
}

// The first bytes of a backward's tensors, of all queries and all keys.
struct BackwardTensors {
    void *q, *k, *v, *out, *d_out;
    float* lse;  // of the part's queries, heads first
    void *d_q, *d_k, *d_v;
};
// All sequences and heads of the queries from `first` on, one part after the other.
void run_backward(const KernelArgs& k, const AttentionParts& parts, const AttentionPlan& plan, int64_t first,
                  const BackwardTensors& t, void* workspace) {
    const AttentionProblem& p = parts.part;
    const auto from = [&](void* tensor, int64_t elements) { return Rows::at(tensor, elements * bytes_of(p.type)); };
    for (int64_t b = 0; b < parts.batches; ++b) {
        for (int64_t g = 0; g < parts.groups; ++g) {
            const int64_t query = parts.begin_of_queries(b, g) + first * p.query_stride(), key = parts.begin_of_keys(b, g),
                          result = parts.begin_of_results(b, g) + first * p.result_stride();
            const std::array<void*, 9> tensors = {from(t.q, query),    from(t.k, key),        from(t.v, key),
                                                  from(t.out, result), from(t.d_out, result), t.lse + parts.begin_of_sums(b, g),
                                                  from(t.d_q, query),  from(t.d_k, key),      from(t.d_v, key)};
            plan.run(k.queue.handle(), tensors.data(), workspace);
        }
    }
}

}  // namespace

template <class T>
std::unique_ptr<Kernel> make_attention(const KernelContext& c) {
    Steps steps = steps_of<T>(c, 0);
    require_one_part(steps);
    return kernel_from(
        [steps = std::move(steps)](const KernelArgs& k) { run_forward(k, steps, k.out[0], k.out[1], aligned(k.workspace)); });
}

std::unique_ptr<Kernel> make_attention_backward(const KernelContext& c, const AttentionProblem& problem) {
    const std::optional<AttentionParts> parts = parts_of(problem, Library::workspace_bytes);
    ensure(parts.has_value(), "cuDNN has no plan for attention that it had one for");
    ensure(whole_workspace_bytes(parts->bytes, problem) <= c.op.workspace_bytes,
           "cuDNN: attention asks for more workspace on this device than was planned");
    return kernel_from([parts = *parts, plan = plan_to_run(parts->part, parts->bytes), s = problem.shape,
                        row = Rows(problem)](const KernelArgs& k) {
        char* const workspace = aligned(k.workspace);
        auto* const lse = reinterpret_cast<float*>(workspace + lse_offset_bytes(parts.bytes));
        const int out = row.behind(1) + 4;
        heads_first(k, s, 0, s.seq, static_cast<const float*>(k.in[out + 1]), lse);
        run_backward(k, parts, *plan, 0,
                     {k.in[1], row.keys(k.in, 1), row.values(k.in, 1), k.in[out], k.in[0], lse, k.out[0], row.keys(k.out, 0),
                      row.values(k.out, 0)},
                     workspace);
    });
}

template <class T>
std::unique_ptr<Kernel> make_attention_block(const KernelContext& c) {
    Steps steps = steps_of<T>(c, 0);
    require_one_part(steps);
    return kernel_from([steps = std::move(steps), carries = registry::carries(c)](const KernelArgs& k) {
        if (steps.all.empty()) return;  // the block is of later tokens
        const AttentionShape& s = steps.attention.all.shape;
        char* const workspace = aligned(k.workspace);
        auto* const part = reinterpret_cast<T*>(workspace + steps.workspace.queries);
        auto* const lse = reinterpret_cast<float*>(workspace + steps.workspace.lse);
        run_forward(k, steps, part, lse, workspace);
        const int64_t first = steps.all.front().piece.first_query;
        gpu::merge_attention<T>(k.queue.handle(), {s.batch, s.seq, first, s.kv_heads * s.group, s.head_dim, carries}, part, lse,
                                static_cast<float*>(k.out[0]), static_cast<float*>(k.out[1]));
    });
}

template <class T>
std::unique_ptr<Kernel> make_attention_block_backward(const KernelContext& c) {
    return kernel_from([steps = steps_of<T>(c, 1), carries = registry::carries(c)](const KernelArgs& k) {
        const DividedAttention& d = steps.attention;
        const AttentionShape& s = d.all.shape;
        char* const workspace = aligned(k.workspace);
        const KeysAndValues plain(k, steps, 1, workspace);
        auto* const lse = reinterpret_cast<float*>(workspace + steps.workspace.lse);
        T* const d_q = reinterpret_cast<T*>(workspace + steps.workspace.queries);
        T* const d_k = reinterpret_cast<T*>(workspace + steps.workspace.d_keys);
        T* const d_v = reinterpret_cast<T*>(workspace + steps.workspace.d_values);
        const auto add_keys = [&](int64_t keys, bool adds) {
            const gpu::WidenedRows rows = {
                s.batch, s.kv_seq, 0, keys, s.kv_heads * s.head_dim, d.orders_keys() ? d.ranks.count : 1, adds};
            gpu::widen_tokens<T>(k.queue.handle(), rows, d_k, static_cast<float*>(k.out[1]));
            gpu::widen_tokens<T>(k.queue.handle(), rows, d_v, static_cast<float*>(k.out[2]));
        };
        bool adds = false;
        for (const Step& step : steps.all) {
            for (int64_t i = 0; i < step.parts.rows; ++i) {
                const AttentionShape part = step.parts.part_of_rows(i).shape;
                const int64_t first = step.piece.first_query + i * part.seq;
                heads_first(k, s, first, part.seq, static_cast<const float*>(k.in[9]), lse);
                run_backward(k, step.parts, *step.of_rows[static_cast<size_t>(i)], first,
                             {k.in[1], plain.keys, plain.values, k.in[8], k.in[0], lse, d_q, d_k, d_v}, workspace);
                add_keys(part.kv_seq, adds);
                adds = true;
            }
        }
        if (steps.all.empty()) return add_keys(0, false);  // the block is of later tokens
        const int64_t first = steps.all.front().piece.first_query;
        gpu::widen_tokens<T>(k.queue.handle(), {s.batch, s.seq, first, s.seq, s.kv_heads * s.group * s.head_dim, 1, carries}, d_q,
                             static_cast<float*>(k.out[0]));
    });
}

#define COPY(T)                                                                     \
    template std::unique_ptr<Kernel> make_attention<T>(const KernelContext&);       \
    template std::unique_ptr<Kernel> make_attention_block<T>(const KernelContext&); \
    template std::unique_ptr<Kernel> make_attention_block_backward<T>(const KernelContext&);
LOCKSTEP_OF_16_BITS(COPY)
#undef COPY

const std::vector<Registered>& attention_kernels() {
    static const std::vector<Registered> all = list_of_attention<Library>();
    return all;
}

}  // namespace lockstep::kernels::cuda
