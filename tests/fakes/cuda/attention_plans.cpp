// cuDNN's attention, behind the interface of kernels/cuda/attention_plans.h. A plan uses its workspace: it fills it when it
// begins, and fails if the bytes are others when it ends.
#include "kernels/cuda/attention_plans.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "base/elements.h"
#include "base/error.h"
#include "kernels/cuda/attention_kernels.h"
#include "tests/fakes/cuda/machine.h"

namespace lockstep::fakes::cuda {
namespace {

using kernels::AttentionShape;
using kernels::cuda::AttentionProblem;

std::atomic<int64_t> most_scores = std::numeric_limits<int64_t>::max();

// Where the elements of a tensor are.
struct Tensor {
    void* first;
    Dtype type;
    int64_t tokens, of_sequence, stride, heads, width;  // as attention_plans.cpp describes them to cuDNN

    int64_t at(int64_t batch, int64_t token, int64_t head) const { return (batch * of_sequence + token) * stride + head * width; }
    double get(int64_t i) const { return element(first, type, i); }
    void set(int64_t i, double value) const { set_element(first, type, i, value); }
};

struct Tensors {
    Tensor q, k, v, out, lse, d_out, d_q, d_k, d_v;
    bool backward;
    std::vector<std::pair<const char*, const Tensor*>> all() const {
        if (!backward) return {{"q", &q}, {"k", &k}, {"v", &v}, {"out", &out}, {"lse", &lse}};
        return {{"q", &q},     {"k", &k},     {"v", &v},     {"out", &out}, {"d_out", &d_out},
                {"lse", &lse}, {"d_q", &d_q}, {"d_k", &d_k}, {"d_v", &d_v}};
    }
};
Tensors tensors_of(const AttentionProblem& p, void* const* t) {
    const AttentionShape& s = p.shape;
    const int64_t heads = s.kv_heads * s.group;
    const auto queries = [&](void* x) {
        return Tensor{x, p.type, s.seq, p.queries_of_row(), p.query_stride(), heads, s.head_dim};
    };
    const auto keys = [&](void* x) {
        return Tensor{x, p.type, s.kv_seq, p.keys_of_row(), p.key_stride(), s.kv_heads, s.head_dim};
    };
    const auto results = [&](void* x) {
        return Tensor{x, p.type, s.seq, p.queries_of_row(), p.result_stride(), heads, s.head_dim};
    };
    if (!p.backward) {
        const Tensor lse = {t[4], Dtype::F32, s.seq, p.queries_of_row(), heads, heads, 1};
        return {queries(t[0]), keys(t[1]), keys(t[2]), results(t[3]), lse, {}, {}, {}, {}, false};
    }
    // [batch, heads, seq]: a token's heads are `seq` apart.
    const Tensor lse = {t[5], Dtype::F32, s.seq, s.seq * heads, 1, heads, s.seq};
    return {queries(t[0]), keys(t[1]),    keys(t[2]), results(t[3]), lse,
            results(t[4]), queries(t[6]), keys(t[7]), keys(t[8]),    true};
}

bool is_seen(const AttentionProblem& p, int64_t query, int64_t key) {
    const int64_t apart = query + p.shape.kv_seq - p.shape.seq - key;
    return !p.causal || (apart >= 0 && (p.shape.window == 0 || apart < p.shape.window));
}

// Runs of head_dim elements.
double dot(const Tensor& a, int64_t i, const Tensor& b, int64_t j) {
    double sum = 0;
    for (int64_t x = 0; x < a.width; ++x) sum += a.get(i + x) * b.get(j + x);
    return sum;
}
void set_all(const Tensor& t, int64_t i, const std::vector<double>& values) {
    for (int64_t x = 0; x < t.width; ++x) t.set(i + x, values[static_cast<size_t>(x)]);
}
void add(std::vector<double>& to, double share, const Tensor& t, int64_t i) {
    for (int64_t x = 0; x < t.width; ++x) to[static_cast<size_t>(x)] += share * t.get(i + x);
}

void forward(const AttentionProblem& p, const Tensors& t, int64_t b, int64_t head, int64_t query) {
    const AttentionShape& s = p.shape;
    const int64_t of_keys = head / s.group, q = t.q.at(b, query, head);
    std::vector<double> scores, out(static_cast<size_t>(s.head_dim));
    double most = -INFINITY, sum = 0;
    for (int64_t key = 0; key < s.kv_seq; ++key) {
        scores.push_back(is_seen(p, query, key) ? s.scale * dot(t.q, q, t.k, t.k.at(b, key, of_keys)) : -INFINITY);
        most = std::max(most, scores.back());
    }
    for (double& score : scores) sum += score = std::exp(score - most);
    for (int64_t key = 0; key < s.kv_seq; ++key) add(out, scores[static_cast<size_t>(key)] / sum, t.v, t.v.at(b, key, of_keys));
    set_all(t.out, t.out.at(b, query, head), out);
    t.lse.set(t.lse.at(b, query, head), most + std::log(sum));
}

// The gradients of a key head, and of its queries.
void backward(const AttentionProblem& p, const Tensors& t, int64_t b, int64_t of_keys) {
    const AttentionShape& s = p.shape;
    const std::vector<double> zeros(static_cast<size_t>(s.head_dim));
    std::vector<std::vector<double>> d_k(static_cast<size_t>(s.kv_seq), zeros), d_v = d_k;
    for (int64_t head = of_keys * s.group; head < (of_keys + 1) * s.group; ++head) {
        for (int64_t query = 0; query < s.seq; ++query) {
            const int64_t q = t.q.at(b, query, head), row = t.out.at(b, query, head);
            const double lse = t.lse.get(t.lse.at(b, query, head)), delta = dot(t.out, row, t.d_out, row);
            std::vector<double> d_q = zeros;
            for (int64_t key = 0; key < s.kv_seq; ++key) {
                if (!is_seen(p, query, key)) continue;
                const int64_t k = t.k.at(b, key, of_keys);
                const double of_key = std::exp(s.scale * dot(t.q, q, t.k, k) - lse);
                const double ds = s.scale * of_key * (dot(t.d_out, row, t.v, t.v.at(b, key, of_keys)) - delta);
                add(d_q, ds, t.k, k);
                add(d_k[static_cast<size_t>(key)], ds, t.q, q);
                add(d_v[static_cast<size_t>(key)], of_key, t.d_out, row);
            }
            set_all(t.d_q, t.d_q.at(b, query, head), d_q);
        }
    }
    for (int64_t key = 0; key < s.kv_seq; ++key) {
        set_all(t.d_k, t.d_k.at(b, key, of_keys), d_k[static_cast<size_t>(key)]);
        set_all(t.d_v, t.d_v.at(b, key, of_keys), d_v[static_cast<size_t>(key)]);
    }
}

void compute(const AttentionProblem& p, const Tensors& t) {
    const AttentionShape& s = p.shape;
    for (int64_t b = 0; b < s.batch; ++b) {
        for (int64_t of_keys = 0; p.backward && of_keys < s.kv_heads; ++of_keys) backward(p, t, b, of_keys);
        for (int64_t head = 0; !p.backward && head < s.kv_heads * s.group; ++head) {
            for (int64_t query = 0; query < s.seq; ++query) forward(p, t, b, head, query);
        }
    }
}

void refuse(const std::string& why) { throw InternalError("cuDNN: " + why); }

// The bytes of it that a plan reads or writes are memory of the device.
void require_tensor(const AttentionProblem& p, const char* name, const Tensor& t) {
    if (reinterpret_cast<uintptr_t>(t.first) % kernels::cuda::kTensorAlignment != 0)
        refuse(fmt::format("{} is not aligned to {} bytes", name, kernels::cuda::kTensorAlignment));
    const int64_t end = t.at(p.shape.batch - 1, t.tokens - 1, t.heads - 1) + (t.type == Dtype::F32 ? 1 : t.width);
    const std::string why = unusable(t.first, static_cast<size_t>(end * bytes_of(t.type)), current_device(), false);
    if (!why.empty()) refuse(fmt::format("{}: {}", name, why));
}

class Plan final : public kernels::cuda::AttentionPlan {
public:
    Plan(const AttentionProblem& p, int64_t workspace_bytes) : p_(p), workspace_bytes_(workspace_bytes) {}
    int64_t workspace_bytes() const override { return workspace_bytes_; }
    std::string engine() const override { return "fake"; }
    void run(void* stream, void* const* tensors, void* workspace) const override {
        const Tensors t = tensors_of(p_, tensors);
        for (const auto& [name, tensor] : t.all()) require_tensor(p_, name, *tensor);
        if (workspace_bytes_ > 0) {
            if (reinterpret_cast<uintptr_t>(workspace) % kernels::cuda::kPlanAlignment != 0)
                refuse(fmt::format("the workspace is not aligned to {} bytes", kernels::cuda::kPlanAlignment));
            const std::string why = unusable(workspace, static_cast<size_t>(workspace_bytes_), current_device(), false);
            if (!why.empty()) refuse("the workspace: " + why);
        }
        const auto handle = static_cast<cudaStream_t>(stream);
        const cudaError_t error = call("cudnnExecute", [&](Machine& m, Lock& lock) {
            require_current_device(m, handle);
            issue(m, lock, handle, &Counts::launches, issue_of(t, static_cast<char*>(workspace)));
        });
        if (error != cudaSuccess) refuse(refusal());
    }

private:
    // Two pieces, so that another stream's work may come between them.
    Issue issue_of(const Tensors& t, char* workspace) const {
        static std::atomic<unsigned> plans = 0;
        const auto noise = [number = ++plans](int64_t i) {
            return static_cast<char>(number * 37 + static_cast<unsigned>(i) * 11);
        };
        const Issue begin = plain("cudnnExecute", [workspace, noise, bytes = workspace_bytes_] {
            for (int64_t i = 0; i < bytes; ++i) workspace[i] = noise(i);
        });
        const Issue end = plain("cudnnExecute", [workspace, noise, bytes = workspace_bytes_, p = p_, t] {
            for (int64_t i = 0; i < bytes; ++i) {
                if (workspace[i] != noise(i)) throw std::runtime_error("something else has used its workspace meanwhile");
            }
            compute(p, t);
        });
        return [=](int queue) {
            begin(queue);
            end(queue);
        };
    }

    const AttentionProblem p_;
    const int64_t workspace_bytes_;
};

std::string why_no_plan(const AttentionProblem& p) {
    const AttentionShape& s = p.shape;
    if (p.type != Dtype::BF16 && p.type != Dtype::F16) return "the type is none of 16 bits";
    if (s.head_dim % 8 != 0 || s.head_dim > 256) return fmt::format("heads of {} elements", s.head_dim);
    if (p.causal && s.seq > s.kv_seq) return "a causal mask, aligned to the last key, over more queries than keys";
    if (s.window > 0 && (!p.causal || s.seq != s.kv_seq)) return "a window, but no causal square";
    return "";
}

}  // namespace

void set_most_scores_of_attention(int64_t scores) { most_scores = scores; }

}  // namespace lockstep::fakes::cuda

namespace lockstep::kernels::cuda {

std::string cudnn_text() { return "cuDNN 9.19.0"; }
bool has_cudnn() { return true; }

PlanOrRefusal attention_plan(const AttentionProblem& p) {
    namespace fakes = lockstep::fakes::cuda;
    const std::string why = fakes::why_no_plan(p);
    if (!why.empty()) return {nullptr, why};
    const fakes::DeviceProperties& device = fakes::machine().properties;
    const std::optional<int64_t> bytes = attention_bytes_of_cudnn(p, device.major * 10 + device.minor);
    if (!bytes) return {nullptr, "a backward of such heads on this device"};
    const AttentionShape& s = p.shape;
    const bool is_small = !p.backward || s.batch * s.kv_heads * s.group * s.seq * s.kv_seq <= fakes::most_scores;
    return {std::make_shared<fakes::Plan>(p, is_small ? *bytes : kPartBytes + 1), ""};
}
PlanOrRefusal attention_plan_for(const AttentionProblem&, const DescribedDevice&) {
    return {nullptr, "the fake plans for its own device"};
}

}  // namespace lockstep::kernels::cuda
