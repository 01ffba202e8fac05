// CUDA's runtime: capture of streams, and graphs.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "tests/fakes/cuda/machine.h"

namespace lockstep::fakes::cuda {

void invalidate(Capture& capture, std::string_view why) {
    if (capture.invalid.empty()) capture.invalid = why;
}

void require_valid(const Capture& capture) {
    require(capture.invalid.empty(), cudaErrorStreamCaptureInvalidated, "the capture has become invalid: " + capture.invalid);
}

void forbid_capture(const Stream& stream, std::string_view why) {
    if (!stream.capture) return;
    invalidate(*stream.capture, why);
    throw Refusal{cudaErrorStreamCaptureUnsupported, fmt::format("the stream captures: {}", why)};
}

void forbid_unsafe_call(Machine& m, std::string_view why) {
    const cudaStreamCaptureMode of_thread = exchange_capture_mode(cudaStreamCaptureModeGlobal);
    exchange_capture_mode(of_thread);
    if (of_thread == cudaStreamCaptureModeRelaxed) return;
    bool forbidden = false;
    for (const std::shared_ptr<Capture>& capture : m.captures) {
        const bool mine = capture->thread == std::this_thread::get_id() && capture->mode != cudaStreamCaptureModeRelaxed;
        const bool others = capture->thread != std::this_thread::get_id() && capture->mode == cudaStreamCaptureModeGlobal &&
                            of_thread == cudaStreamCaptureModeGlobal;
        if (!mine && !others) continue;
        invalidate(*capture, why);
        forbidden = true;
    }
    require(!forbidden, cudaErrorStreamCaptureUnsupported, fmt::format("{} during a capture whose mode forbids it", why));
}

namespace {

void require_mode(cudaStreamCaptureMode mode) {
    require(
        mode == cudaStreamCaptureModeGlobal || mode == cudaStreamCaptureModeThreadLocal || mode == cudaStreamCaptureModeRelaxed,
        cudaErrorInvalidValue, "there is no such mode of capture");
}

// All nodes lead to one of the origin's last.
bool all_joined(const Capture& capture, const std::vector<size_t>& last) {
    std::vector<bool> joined(capture.nodes.size());
    for (size_t node : last) joined[node] = true;
    for (size_t i = capture.nodes.size(); i-- > 0;) {
        if (!joined[i]) return false;
        for (size_t earlier : capture.nodes[i].after) joined[earlier] = true;
    }
    return true;
}

std::shared_ptr<const Graph>& graph_of(Machine& m, cudaGraph_t handle) { return m.graphs.at(handle, "graph"); }

ExecutableGraph& executable_of(Machine& m, cudaGraphExec_t handle) { return m.executable_graphs.at(handle, "executable graph"); }

// Behind what the stream was given and the last launch. Returns the launch's end.
Order::Mark launch(Order& order, const ExecutableGraph& e, int stream) {
    if (e.end) order.wait(stream, e.end);
    const Order::Mark begin = order.give(stream);
    for (int queue : e.queues) order.wait(queue, begin);
    std::vector<Order::Mark> marks;
    for (const Node& node : e.graph->nodes) {
        const int queue = e.queues[static_cast<size_t>(node.lane)];
        for (size_t earlier : node.after) order.wait(queue, marks[earlier]);
        node.issue(queue);
        marks.push_back(order.last(queue));
    }
    for (int queue : e.queues) order.wait(stream, order.last(queue));
    return order.give(stream);
}

}  // namespace
}  // namespace lockstep::fakes::cuda

using namespace lockstep::fakes::cuda;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
    return call(__func__, [&](Machine& m, Lock&) {
        Stream& s = m.stream(stream);
        require_mode(mode);
        require(!s.capture, cudaErrorInvalidValue, "the stream captures already");
        s.capture = std::make_shared<Capture>(Capture{.origin = stream, .thread = std::this_thread::get_id(), .mode = mode});
        s.lane = s.capture->lanes++;
        m.captures.push_back(s.capture);
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
    return call(__func__, [&](Machine& m, Lock&) {
        const Stream& s = m.stream(stream);
        const std::shared_ptr<Capture> capture = s.capture;
        require(capture != nullptr, cudaErrorInvalidValue, "the stream does not capture");
        require(graph != nullptr, cudaErrorInvalidValue, "the address for the graph is null");
        require(capture->origin == stream, cudaErrorStreamCaptureUnmatched, "the capture has begun in another stream");
        require(capture->mode == cudaStreamCaptureModeRelaxed || capture->thread == std::this_thread::get_id(),
                cudaErrorStreamCaptureWrongThread, "another thread has begun the capture, in a mode that is not relaxed");
        *graph = nullptr;
        const std::vector<size_t> last = s.after;
        capture->ended = true;
        std::erase(m.captures, capture);
        for (auto& [handle, member] : m.streams) {
            if (member.capture == capture) member.capture = nullptr, member.after.clear();
        }
        require_valid(*capture);
        require(all_joined(*capture, last), cudaErrorStreamCaptureUnjoined,
                "a stream that joined the capture has work that the first stream does not wait for");
        *graph = m.graphs.add(std::make_shared<Graph>(Graph{std::move(capture->nodes), capture->lanes}));
        ++m.counts.graphs;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
    return call(__func__, [&](Machine& m, Lock&) {
        const Stream& s = m.stream(stream);
        require(status != nullptr, cudaErrorInvalidValue, "the address for the status is null");
        *status = !s.capture                   ? cudaStreamCaptureStatusNone
                  : s.capture->invalid.empty() ? cudaStreamCaptureStatusActive
                                               : cudaStreamCaptureStatusInvalidated;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return call(__func__, [&](Machine&, Lock&) {
        require(mode != nullptr, cudaErrorInvalidValue, "the address for the mode is null");
        require_mode(*mode);
        *mode = exchange_capture_mode(*mode);
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(executable != nullptr, cudaErrorInvalidValue, "the address for the executable graph is null");
        require(flags == 0, cudaErrorNotSupported, "the fake knows no flags of instantiation");
        ExecutableGraph e{.graph = graph_of(m, graph)};
        for (int lane = 0; lane < e.graph->lanes; ++lane) e.queues.push_back(m.order.add_queue());
        *executable = m.executable_graphs.add(std::move(e));
        ++m.counts.executable_graphs;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
    return call(__func__, [&](Machine& m, Lock& lock) {
        const ExecutableGraph e = executable_of(m, executable);
        const Stream& s = m.stream(stream);
        forbid_capture(s, "a graph was launched in it, and the fake has no graphs in graphs");
        ++m.counts.graph_launches;
        const int queue = s.queue;
        lock.unlock();
        Order::Mark end = launch(m.order, e, queue);
        lock.lock();
        executable_of(m, executable).end = std::move(end);
    });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return call(__func__, [&](Machine& m, Lock&) {
        require(count != nullptr, cudaErrorInvalidValue, "the address for the number of nodes is null");
        const std::vector<Node>& all = graph_of(m, graph)->nodes;
        for (size_t i = 0; nodes && i < *count; ++i)
            nodes[i] = i < all.size() ? reinterpret_cast<cudaGraphNode_t>(const_cast<Node*>(&all[i])) : nullptr;
        *count = nodes ? std::min(*count, all.size()) : all.size();
    });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return call(__func__, [&](Machine& m, Lock&) {
        graph_of(m, graph);
        m.graphs.remove(graph);
    });
}

// A launch under way goes on.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
    return call(__func__, [&](Machine& m, Lock&) {
        executable_of(m, executable);
        m.executable_graphs.remove(executable);
    });
}

}  // extern "C"
