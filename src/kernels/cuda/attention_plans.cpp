#include "kernels/cuda/attention_plans.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

#include "base/error.h"
#include "kernels/cuda/attention_kernels.h"

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;  // where the frontend looks cuDNN's functions up
}

namespace lockstep::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

void check(fe::error_t error, std::string_view what) {
    if (error.is_bad()) throw InternalError(fmt::format("cuDNN: {}: {}", what, error.get_message()));
}
void check(cudnnStatus_t status, const char* call) {
    if (status != CUDNN_STATUS_SUCCESS) throw InternalError(fmt::format("{}: {}", call, fe::detail::get_error_string(status)));
}
void check(cudaError_t error, const char* call) {
    if (error != cudaSuccess) throw InternalError(fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

// cuDNN, and what of CUDA the frontend asks for by name. Opened once and never closed.
struct Library {
    bool is_open = false;
    std::string text = "no cuDNN";

    Library() {
        fe::cudnn_dlhandle = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
        if (!fe::cudnn_dlhandle) return;
        const size_t version = fe::detail::get_backend_version();
        text = fmt::format("cuDNN {}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
        // The frontend takes the first CUDA runtime that it finds, and warns where there are several.
        setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", kRuntime, 0);
        // From 9.25 on: beyond this workspace the ordered sums that need little (the frontend's own words).
        setenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT", std::to_string(kAttentionWorkspaceBytes).c_str(), 0);
        try {
            int runtime = 0;
            is_open = fe::detail::cuda_runtime_get_version(&runtime) == cudaSuccess;
        } catch (const std::exception&) {
        }
        if (!is_open) text += fmt::format(" without {}", kRuntime);
    }

private:
    static constexpr const char* kRuntime = "libcudart.so.13";
};
const Library& library() {
    static const Library opened;
    return opened;
}

// One at a time calls cuDNN: neither a handle nor a plan is for several threads at once.
std::mutex& turn() {
    static std::mutex mutex;
    return mutex;
}

class Plan final : public AttentionPlan {
public:
    Plan(std::unique_ptr<fe::graph::Graph> graph, cudnnHandle_t handle, int tensors)
        : graph_(std::move(graph)), handle_(handle), tensors_(tensors) {
        std::vector<int64_t> numbers(static_cast<size_t>(tensors));
        std::iota(numbers.begin(), numbers.end(), 1);
        ensure(graph_->get_variant_pack_uids_sorted() == numbers, "cuDNN: a plan asks for other tensors than attention has");
        check(graph_->get_workspace_size(workspace_bytes_), "the size of its workspace");
        check(graph_->get_plan_name(engine_), "its name");
    }
    int64_t workspace_bytes() const override { return workspace_bytes_; }
    std::string engine() const override { return engine_; }
    void run(void* stream, void* const* tensors, void* workspace) const override {
        ensure(handle_ != nullptr, "cuDNN: a plan for a device that is elsewhere");
        const std::lock_guard mine(turn());
        check(fe::detail::set_stream(handle_, static_cast<cudaStream_t>(stream)), "cudnnSetStream");
        // The pointers in the order of the tensors' numbers, which the frontend only reads.
        check(graph_->execute(handle_, const_cast<void**>(tensors), tensors_, workspace), engine_);
    }

private:
    const std::unique_ptr<fe::graph::Graph> graph_;
    const cudnnHandle_t handle_;  // null: it was planned for another machine
    const int tensors_;
    int64_t workspace_bytes_ = 0;
    std::string engine_;
};

// A graph's tensors as Lockstep has them, numbered in the order in which they are named.
class Tensors {
public:
    Tensors(fe::graph::Graph& graph, const AttentionProblem& p)
        : graph_(graph),
          s_(p.shape),
          queries_{s_.seq, p.queries_of_row(), s_.kv_heads * s_.group, p.query_stride(), s_.head_dim},
          keys_{s_.kv_seq, p.keys_of_row(), s_.kv_heads, p.key_stride(), s_.head_dim},
          results_{s_.seq, p.queries_of_row(), queries_.heads, p.result_stride(), s_.head_dim},
          statistics_{s_.seq, p.queries_of_row(), queries_.heads, queries_.heads, 1, true} {}
    int count() const { return static_cast<int>(next_) - 1; }

    Tensor queries(const char* name) { return operand(name, queries_); }
    Tensor keys(const char* name) { return operand(name, keys_); }
    Tensor results(const char* name) { return operand(name, results_); }
    // [batch, heads, seq]: cuDNN before 9.26 reads no other layout.
    Tensor statistics(const char* name) {
        fe::graph::Tensor_attributes t;
        describe(t, name, statistics_);
        return graph_.tensor(t.set_stride({statistics_.heads * s_.seq, s_.seq, 1, 1}));
    }
    void give_queries(const char* name, const Tensor& t) { give(name, t, queries_); }
    void give_keys(const char* name, const Tensor& t) { give(name, t, keys_); }
    void give_results(const char* name, const Tensor& t) { give(name, t, results_); }
    void give_statistics(const char* name, const Tensor& t) { give(name, t, statistics_); }

private:
    struct Rows {                      // of tokens
        int64_t tokens, of_sequence;   // that are there, and from a sequence to the next one
        int64_t heads, stride, width;  // stride: elements to the next token
        bool is_float = false;
    };
    // [batch, tokens, heads, width], in cuDNN's order of dims.
    void describe(fe::graph::Tensor_attributes& t, const char* name, const Rows& r) {
        t.set_name(name).set_uid(next_++).set_dim({s_.batch, r.heads, r.tokens, r.width});
        t.set_stride({r.of_sequence * r.stride, r.width, r.stride, 1});
        if (r.is_float) t.set_data_type(fe::DataType_t::FLOAT);
    }
    Tensor operand(const char* name, const Rows& r) {
        fe::graph::Tensor_attributes t;
        describe(t, name, r);
        return graph_.tensor(t);
    }
    void give(const char* name, const Tensor& t, const Rows& r) { describe(t->set_output(true), name, r); }

    fe::graph::Graph& graph_;
    const AttentionShape s_;
    const Rows queries_, keys_, results_, statistics_;
    int64_t next_ = 1;
};

// What forward and backward have in common.
template <class Attributes>
Attributes attributes_of(const AttentionProblem& p) {
    const AttentionShape& s = p.shape;
    Attributes a;
    a.set_name("attention").set_attn_scale(s.scale);
    if (!p.causal) return a;
    const bool is_square = s.seq == s.kv_seq;
    a.set_diagonal_alignment(is_square ? fe::DiagonalAlignment_t::TOP_LEFT : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    a.set_diagonal_band_right_bound(0);
    if (s.window > 0) a.set_diagonal_band_left_bound(static_cast<int>(s.window));  // itself and those before it
    return a;
}

// Its number of tensors.
int describe(fe::graph::Graph& graph, const AttentionProblem& problem) {
    Tensors t(graph, problem);
    const Tensor q = t.queries("q"), k = t.keys("k"), v = t.keys("v");
    if (!problem.backward) {
        const auto [out, lse] = graph.sdpa(q, k, v, attributes_of<fe::graph::SDPA_attributes>(problem).set_generate_stats(true));
        t.give_results("out", out);
        t.give_statistics("lse", lse);
        return t.count();
    }
    const Tensor out = t.results("out"), d_out = t.results("d_out"), lse = t.statistics("lse");
    const auto [d_q, d_k, d_v] = graph.sdpa_backward(
        q, k, v, out, d_out, lse,
        attributes_of<fe::graph::SDPA_backward_attributes>(problem).set_deterministic_algorithm(!problem.any_order));
    t.give_queries("d_q", d_q);
    t.give_keys("d_k", d_k);
    t.give_keys("d_v", d_v);
    return t.count();
}

fe::DataType_t type_of(Dtype type) {
    switch (type) {
        case Dtype::BF16: return fe::DataType_t::BFLOAT16;
        case Dtype::F16: return fe::DataType_t::HALF;
        case Dtype::F32:
        case Dtype::F64:
        case Dtype::I32:
        case Dtype::I8:
        case Dtype::F8E4M3:
        case Dtype::F8E5M2:
        case Dtype::E8M0: break;
    }
    throw InternalError(fmt::format("cuDNN: no attention in {}", name_of(type)));
}

// With a handle for its device, else for the device that is described.
PlanOrRefusal build(const AttentionProblem& problem, cudnnHandle_t handle, std::shared_ptr<fe::DeviceProperties> device,
                    int compute_capability) {
    const AttentionShape& s = problem.shape;
    ensure(!problem.causal || s.seq <= s.kv_seq, "cuDNN: causal attention of more queries than keys");
    ensure(s.window == 0 || (problem.causal && s.seq == s.kv_seq), "cuDNN: a window over other keys than those of the queries");
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(type_of(problem.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    graph->set_cuda_graph_retention(fe::CudaGraphRetention_t::NONE);  // plans outlive the graphs that were captured of them
    if (device) graph->set_device_properties(std::move(device)).set_sm_version(compute_capability);
    try {
        const int tensors = describe(*graph, problem);
        fe::error_t error = handle ? graph->build(handle, {fe::HeurMode_t::A}) : graph->build({fe::HeurMode_t::A});
        if (error.is_bad()) return {nullptr, error.get_message()};
        return {std::make_shared<Plan>(std::move(graph), handle, tensors), ""};
    } catch (const std::runtime_error& e) {  // of the frontend: a library that cannot be opened
        return {nullptr, e.what()};
    }
}

// One a device; cuDNN's turn is the caller's.
cudnnHandle_t handle_of(int device) {
    static std::map<int, cudnnHandle_t>& handles = *new std::map<int, cudnnHandle_t>;  // as long as the process: see plans
    const auto [at, is_new] = handles.try_emplace(device);
    if (is_new) {
        try {
            check(fe::detail::create_handle(&at->second), "cudnnCreate");
        } catch (...) {
            handles.erase(at);
            throw;
        }
    }
    return at->second;
}

auto key_of(const AttentionProblem& p, int device) {
    const AttentionShape& s = p.shape;
    return std::tuple(device, p.type, p.backward, p.any_order, p.causal, s.batch, s.seq, s.kv_seq, p.queries_of_row(),
                      p.keys_of_row(), s.kv_heads, p.kv_heads_of_row(), s.group, s.head_dim, s.scale, s.window, s.packed);
}

}  // namespace

std::string cudnn_text() { return library().text; }
bool has_cudnn() { return library().is_open; }

PlanOrRefusal attention_plan(const AttentionProblem& problem) {
    if (!has_cudnn()) return {nullptr, library().text};
    // Never destroyed: graphs of CUDA may hold what plans hold, and at the end of a process CUDA goes first.
    static auto& plans = *new std::map<decltype(key_of(problem, 0)), PlanOrRefusal>;
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    const std::lock_guard mine(turn());
    const auto [at, is_new] = plans.try_emplace(key_of(problem, device));
    if (is_new) {
        try {
            at->second = build(problem, handle_of(device), nullptr, 0);
        } catch (...) {
            plans.erase(at);
            throw;
        }
    }
    return at->second;
}

PlanOrRefusal attention_plan_for(const AttentionProblem& problem, const DescribedDevice& described) {
    if (!has_cudnn()) return {nullptr, library().text};
    const std::lock_guard mine(turn());
    auto device = std::make_shared<fe::DeviceProperties>();
    fe::error_t error = device->deserialize({described.json.begin(), described.json.end()});
    if (error.is_bad()) return {nullptr, error.get_message()};
    return build(problem, nullptr, std::move(device), described.compute_capability);
}

}  // namespace lockstep::kernels::cuda
