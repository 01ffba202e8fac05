// Plans of cuDNN's graph interface for attention of one document each: of whole sequences, causal or causal with a window, or of
// some of their tokens to some of their keys, causal or without a mask.
// libcudnn.so.9 is opened at the first call; a build without cuDNN's headers, or a machine without the library, has no plans.
// Plans are kept as long as the process, by problem and device. Any thread may ask for and run them: cuDNN gets one call at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"
#include "kernels/attention_shape.h"

namespace lockstep::kernels::cuda {

// "cuDNN 9.19.0", or "no cuDNN".
std::string cudnn_text();
bool has_cudnn();

struct AttentionProblem {
    AttentionShape shape;  // `packed` too is part of a plan; with other keys than queries there is no window
    Dtype type = Dtype::BF16;
    bool backward = false;
    bool any_order = false;  // of a backward's sums, so that bits differ from run to run; else one order
    // Key heads of a token's row in memory. The shape may have fewer if it has one sequence. 0: it has all of them.
    int64_t row_kv_heads = 0;
    // Tokens from a sequence to the next one in memory: of queries and results, and of keys. 0: as many as the shape has.
    int64_t row_seq = 0, row_kv_seq = 0;
    bool causal = true;  // the last query sees all keys, and each one before it one key less; else each query sees all keys

    int64_t kv_heads_of_row() const { return row_kv_heads > 0 ? row_kv_heads : shape.kv_heads; }
    int64_t queries_of_row() const { return row_seq > 0 ? row_seq : shape.seq; }
    int64_t keys_of_row() const { return row_kv_seq > 0 ? row_kv_seq : shape.kv_seq; }
    // Elements from a token to the next one: of queries, of keys and of values, and of their gradients; of results.
    int64_t query_stride() const { return of_row().query_stride(); }
    int64_t key_stride() const { return of_row().key_stride(); }
    int64_t result_stride() const { return of_row().first_key(); }
    // With all key heads of a row.
    AttentionShape of_row() const {
        AttentionShape s = shape;
        s.kv_heads = kv_heads_of_row();
        return s;
    }
};

class AttentionPlan {
public:
    virtual ~AttentionPlan() = default;
    virtual int64_t workspace_bytes() const = 0;
    virtual std::string engine() const = 0;  // cuDNN's name of it
    // Forward: q, k, v, out, lse. Backward: q, k, v, out, d_out, lse as [batch, kv_heads, group, seq], d_q, d_k, d_v.
    // Of some key heads of a row: each tensor from the first element of these heads on. The workspace is aligned to
    // kPlanAlignment. Throws InternalError with cuDNN's words.
    virtual void run(void* stream, void* const* tensors, void* workspace) const = 0;
};
// Of tensors' first bytes and of the workspace.
inline constexpr int64_t kTensorAlignment = 16, kPlanAlignment = 256;

struct PlanOrRefusal {
    std::shared_ptr<const AttentionPlan> plan;  // nothing: see why
    std::string why;
};
// For the current device of the calling thread.
PlanOrRefusal attention_plan(const AttentionProblem& problem);
struct DescribedDevice {
    std::string json;            // as cuDNN serializes the properties of a device
    int compute_capability = 0;  // 90
};
// For a device that need not be here. It cannot be run.
PlanOrRefusal attention_plan_for(const AttentionProblem& problem, const DescribedDevice& device);

}  // namespace lockstep::kernels::cuda
