// The fake of CUDA's runtime does what the documentation says: capture of streams, and graphs.
#include <thread>
#include <vector>

#include "tests/fakes/cuda/test_calls.h"

namespace lockstep::fakes::cuda {
namespace {

class FakesGraphs : public ::testing::Test {
protected:
    void SetUp() override { reset(1); }
};

void begin(cudaStream_t stream, cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ok(cudaStreamBeginCapture(stream, mode));
}

cudaGraph_t end(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    ok(cudaStreamEndCapture(stream, &graph));
    return graph;
}

cudaGraphExec_t executable(cudaGraph_t graph) {
    cudaGraphExec_t executable = nullptr;
    ok(cudaGraphInstantiate(&executable, graph, 0));
    return executable;
}

size_t node_count(cudaGraph_t graph) {
    size_t count = 0;
    ok(cudaGraphGetNodes(graph, nullptr, &count));
    return count;
}

void append(cudaStream_t stream, std::vector<int>& to, int number) {
    ok(enqueue(stream, "append", [&to, number] { to.push_back(number); }));
}

// The capture became invalid: its streams are of no use until it ends, and then there is no graph.
void expect_invalidated(cudaStream_t stream) {
    cudaStreamCaptureStatus status;
    ok(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
    refused(enqueue(stream, "kernel", [] {}), cudaErrorStreamCaptureInvalidated, "the capture has become invalid");
    auto graph = reinterpret_cast<cudaGraph_t>(1);
    refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated, "the capture has become invalid");
    EXPECT_EQ(graph, nullptr);
    ok(cudaStreamSynchronize(stream));
}

TEST_F(FakesGraphs, CapturedWorkRunsWhenTheGraphIsLaunched) {
    const cudaStream_t stream = new_stream();
    char *const memory = device_memory<char>(4), *const host = pinned_memory<char>(4);
    std::vector<int> ran;
    begin(stream);
    cudaStreamCaptureStatus status;
    ok(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusActive);
    append(stream, ran, 1);
    ok(cudaMemsetAsync(memory, 5, 4, stream));
    ok(cudaMemcpyAsync(host, memory, 4, cudaMemcpyDeviceToHost, stream));
    ok(cudaLaunchHostFunc(
        stream, [](void* data) { static_cast<std::vector<int>*>(data)->push_back(2); }, &ran));
    const cudaGraph_t graph = end(stream);
    ok(cudaStreamIsCapturing(stream, &status));
    EXPECT_EQ(status, cudaStreamCaptureStatusNone);
    EXPECT_EQ(node_count(graph), 4u);
    ok(cudaDeviceSynchronize());
    EXPECT_TRUE(ran.empty());
    const cudaGraphExec_t e = executable(graph);
    for (int i = 0; i < 2; ++i) ok(cudaGraphLaunch(e, stream));
    ok(cudaStreamSynchronize(stream));
    EXPECT_EQ(ran, (std::vector<int>{1, 2, 1, 2}));
    EXPECT_EQ(host[3], 5);
    EXPECT_EQ(counts().graph_launches, 2);
    EXPECT_EQ(counts().launches, 1);
    EXPECT_EQ(counts().graphs, 1);
    EXPECT_EQ(counts().executable_graphs, 1);
}

TEST_F(FakesGraphs, NodesAreCountedWithoutWaitsAndEvents) {
    const cudaStream_t a = new_stream(), b = new_stream();
    begin(a);
    ok(enqueue(a, "kernel", [] {}));
    wait_for(b, a);
    ok(enqueue(b, "kernel", [] {}));
    wait_for(a, b);
    const cudaGraph_t graph = end(a);
    cudaGraphNode_t nodes[3] = {};
    size_t count = 3;
    ok(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT_EQ(count, 2u);
    EXPECT_NE(nodes[0], nodes[1]);
    EXPECT_EQ(nodes[2], nullptr);
    count = 1;
    ok(cudaGraphGetNodes(graph, nodes, &count));
    EXPECT_EQ(count, 1u);
}

// a -> {b, c} -> d, with the fork and the join on events; `left_out` of its four waits.
std::vector<int> diamond(bool captures, int left_out) {
    const cudaStream_t one = new_stream(), other = new_stream();
    std::vector<int> ran;
    if (captures) begin(one);
    append(one, ran, 1);
    wait_for(other, one);
    append(other, ran, 2);
    append(one, ran, 3);
    leave_out_wait(left_out);
    wait_for(one, other);
    append(one, ran, 4);
    if (captures) {
        const cudaGraphExec_t e = executable(end(one));
        ok(cudaGraphLaunch(e, one));
    }
    ok(cudaDeviceSynchronize());
    return ran;
}

TEST_F(FakesGraphs, EdgesOrderAReplayAsEventsOrderStreams) {
    const std::set<std::vector<int>> legal = {{1, 2, 3, 4}, {1, 3, 2, 4}};
    EXPECT_EQ(results([] { return diamond(false, -1); }), legal);
    EXPECT_EQ(results([] { return diamond(true, -1); }), legal);
    EXPECT_EQ(results([] { return diamond(false, 0); }), (std::set<std::vector<int>>{{1, 2, 3, 4}, {1, 3, 2, 4}, {1, 3, 4, 2}}));
}

TEST_F(FakesGraphs, ForkThatIsNotJoinedIsRefused) {
    const cudaStream_t one = new_stream(), other = new_stream();
    begin(one);
    ok(enqueue(one, "kernel", [] {}));
    wait_for(other, one);
    ok(enqueue(other, "kernel", [] {}));
    auto graph = reinterpret_cast<cudaGraph_t>(1);
    refused(cudaStreamEndCapture(one, &graph), cudaErrorStreamCaptureUnjoined, "does not wait for");
    EXPECT_EQ(graph, nullptr);
    ok(cudaStreamSynchronize(other));
}

// The left-out wait would have taken the other stream into the capture.
TEST_F(FakesGraphs, LeftOutForkIsRefusedAtTheJoin) {
    const cudaStream_t one = new_stream(), other = new_stream();
    begin(one);
    ok(enqueue(one, "kernel", [] {}));
    leave_out_wait(0);
    wait_for(other, one);
    ok(enqueue(other, "kernel", [] {}));
    const cudaEvent_t event = new_event();
    ok(cudaEventRecord(event, other));
    refused(cudaStreamWaitEvent(one, event, 0), cudaErrorStreamCaptureIsolation, "recorded outside the capture");
    expect_invalidated(one);
}

TEST_F(FakesGraphs, CapturesDoNotMixWithOtherWork) {
    const cudaStream_t one = new_stream(), other = new_stream(), third = new_stream();
    const cudaEvent_t outside = new_event(), inside = new_event(), never = new_event();
    ok(cudaEventRecord(outside, other));
    begin(one, cudaStreamCaptureModeRelaxed);
    ok(cudaStreamWaitEvent(one, never, 0));
    ok(cudaEventRecord(inside, one));
    begin(other, cudaStreamCaptureModeRelaxed);
    refused(cudaStreamWaitEvent(other, inside, 0), cudaErrorStreamCaptureMerge, "another capture");
    expect_invalidated(one);
    expect_invalidated(other);
    refused(cudaStreamWaitEvent(third, inside, 0), cudaErrorCapturedEvent, "a capture that has ended");
    begin(one);
    refused(cudaStreamWaitEvent(one, outside, 0), cudaErrorStreamCaptureIsolation, "recorded outside the capture");
    expect_invalidated(one);
}

TEST_F(FakesGraphs, HostDoesNotAskForWhatIsCaptured) {
    const cudaStream_t stream = new_stream(), other = new_stream();
    const cudaEvent_t event = new_event();
    const auto forbidden = [&](auto call, cudaError_t error, const std::string& why) {
        begin(stream, cudaStreamCaptureModeRelaxed);
        ok(cudaEventRecord(event, stream));
        refused(call(), error, why);
        expect_invalidated(stream);
    };
    forbidden([&] { return cudaStreamSynchronize(stream); }, cudaErrorStreamCaptureUnsupported, "waited for a stream of it");
    forbidden([&] { return cudaStreamQuery(stream); }, cudaErrorStreamCaptureUnsupported, "asked for a stream of it");
    forbidden([&] { return cudaStreamDestroy(stream); }, cudaErrorStreamCaptureUnsupported, "destroyed");
    forbidden([&] { return cudaEventSynchronize(event); }, cudaErrorCapturedEvent, "recorded in a stream that captured");
    forbidden([&] { return cudaEventQuery(event); }, cudaErrorCapturedEvent, "recorded in a stream that captured");
    forbidden([&] { return cudaDeviceSynchronize(); }, cudaErrorStreamCaptureUnsupported, "a stream of the device captures");
    refused(cudaEventQuery(event), cudaErrorCapturedEvent, "recorded in a stream that captured");
    ok(cudaEventRecord(event, other));
    ok(cudaEventSynchronize(event));
}

TEST_F(FakesGraphs, UnsafeCallsDependOnTheModes) {
    const cudaStream_t stream = new_stream();
    void *memory = nullptr, *host = nullptr;
    const auto allocate = [&] { return cudaMalloc(&memory, 4); };
    const auto in_thread = [](auto call) {
        cudaError_t error = cudaSuccess;
        std::thread([&] { error = call(); }).join();
        return error;
    };
    for (cudaStreamCaptureMode mode : {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal}) {
        begin(stream, mode);
        refused(allocate(), cudaErrorStreamCaptureUnsupported, "memory is allocated during a capture");
        expect_invalidated(stream);
    }
    begin(stream, cudaStreamCaptureModeGlobal);
    refused(in_thread(allocate), cudaErrorStreamCaptureUnsupported, "memory is allocated during a capture");
    expect_invalidated(stream);
    for (cudaStreamCaptureMode mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed}) {
        begin(stream, mode);
        ok(in_thread(allocate));
        end(stream);
    }
    begin(stream, cudaStreamCaptureModeRelaxed);
    ok(allocate());
    ok(cudaMallocHost(&host, 4));
    ok(cudaFree(memory));
    ok(cudaFreeHost(host));
    end(stream);
}

TEST_F(FakesGraphs, ThreadExchangesItsMode) {
    const cudaStream_t stream = new_stream();
    void* memory = nullptr;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
    begin(stream, cudaStreamCaptureModeGlobal);
    ok(cudaMalloc(&memory, 4));
    std::thread([&] {
        cudaStreamCaptureMode local = cudaStreamCaptureModeThreadLocal;
        ok(cudaThreadExchangeStreamCaptureMode(&local));
        ok(cudaMalloc(&memory, 4));
    }).join();
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
    refused(cudaMalloc(&memory, 4), cudaErrorStreamCaptureUnsupported, "during a capture");
    expect_invalidated(stream);
    mode = static_cast<cudaStreamCaptureMode>(3);
    refused(cudaThreadExchangeStreamCaptureMode(&mode), cudaErrorInvalidValue, "no such mode");
}

TEST_F(FakesGraphs, CaptureEndsWhereAndInTheThreadThatItBegan) {
    const cudaStream_t one = new_stream(), other = new_stream();
    cudaGraph_t graph = nullptr;
    refused(cudaStreamEndCapture(one, &graph), cudaErrorInvalidValue, "does not capture");
    begin(one);
    wait_for(other, one);
    refused(cudaStreamBeginCapture(one, cudaStreamCaptureModeRelaxed), cudaErrorInvalidValue, "captures already");
    refused(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched, "begun in another stream");
    std::thread([&] {
        refused(cudaStreamEndCapture(one, &graph), cudaErrorStreamCaptureWrongThread, "another thread has begun");
    }).join();
    EXPECT_EQ(node_count(end(one)), 0u);
    begin(one, cudaStreamCaptureModeRelaxed);
    std::thread([&] { end(one); }).join();
    refused(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed), cudaErrorInvalidResourceHandle, "default stream");
}

TEST_F(FakesGraphs, LegacyStreamIsNotUsedWhileABlockingStreamCaptures) {
    int* const memory = device_memory<int>(1);
    int got = 0;
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    ok(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaStream_t free = new_stream(), blocking = new_stream(cudaStreamDefault);
    begin(free);
    ok(cudaMemcpy(&got, memory, 4, cudaMemcpyDeviceToHost));
    end(free);
    begin(blocking);
    refused(cudaMemcpy(&got, memory, 4, cudaMemcpyDeviceToHost), cudaErrorStreamCaptureImplicit, "blocking stream that captures");
    expect_invalidated(blocking);
    begin(blocking);
    refused(cudaMemset(memory, 0, 4), cudaErrorStreamCaptureImplicit, "blocking stream that captures");
    expect_invalidated(blocking);
}

// What is given to the stream after a capture follows what it was given before.
TEST_F(FakesGraphs, CaptureLeavesTheStreamsOtherWorkInOrder) {
    EXPECT_EQ(results([] {
                  const cudaStream_t stream = new_stream();
                  std::vector<int> ran;
                  append(stream, ran, 1);
                  begin(stream);
                  append(stream, ran, 2);
                  end(stream);
                  append(stream, ran, 3);
                  ok(cudaStreamSynchronize(stream));
                  return ran;
              }),
              (std::set<std::vector<int>>{{1, 3}}));
}

// Two streams launch a graph of two independent nodes: one executable graph twice, or two of one graph.
std::set<std::vector<int>> two_launches(bool same) {
    return results([same] {
        const cudaStream_t one = new_stream(), other = new_stream();
        std::vector<int> ran;
        begin(one);
        wait_for(other, one);
        append(one, ran, 1), append(other, ran, 2);
        wait_for(one, other);
        const cudaGraph_t graph = end(one);
        const cudaGraphExec_t first = executable(graph), second = same ? first : executable(graph);
        ok(cudaGraphDestroy(graph));
        ok(cudaGraphLaunch(first, one));
        ok(cudaGraphLaunch(second, other));
        ok(cudaGraphExecDestroy(second));
        ok(cudaDeviceSynchronize());
        return ran;
    });
}

TEST_F(FakesGraphs, LaunchesOfOneExecutableGraphDoNotOverlap) {
    EXPECT_EQ(two_launches(true), (std::set<std::vector<int>>{{1, 2, 1, 2}, {1, 2, 2, 1}, {2, 1, 1, 2}, {2, 1, 2, 1}}));
    EXPECT_EQ(two_launches(false).size(), 6u) << "all orders of two ones and two twos";
}

TEST_F(FakesGraphs, LaunchIsOrderedInItsStream) {
    EXPECT_EQ(results([] {
                  const cudaStream_t one = new_stream(), other = new_stream();
                  std::vector<int> ran;
                  begin(one);
                  wait_for(other, one);
                  append(other, ran, 2);
                  wait_for(one, other);
                  const cudaGraphExec_t e = executable(end(one));
                  append(one, ran, 1);
                  ok(cudaGraphLaunch(e, one));
                  append(one, ran, 3);
                  ok(cudaStreamSynchronize(one));
                  return ran;
              }),
              (std::set<std::vector<int>>{{1, 2, 3}}));
}

TEST_F(FakesGraphs, WhatTheFakeLacksIsRefused) {
    const cudaStream_t stream = new_stream();
    begin(stream);
    const cudaGraph_t graph = end(stream);
    cudaGraphExec_t e = nullptr;
    refused(cudaGraphInstantiate(&e, graph, cudaGraphInstantiateFlagDeviceLaunch), cudaErrorNotSupported, "no flags");
    e = executable(graph);
    begin(stream);
    refused(cudaGraphLaunch(e, stream), cudaErrorStreamCaptureUnsupported, "no graphs in graphs");
    expect_invalidated(stream);
    ok(cudaGraphDestroy(graph));
    ok(cudaGraphExecDestroy(e));
    refused(cudaGraphDestroy(graph), cudaErrorInvalidResourceHandle, "there is no graph");
    refused(cudaGraphLaunch(e, stream), cudaErrorInvalidResourceHandle, "there is no executable graph");
}

}  // namespace
}  // namespace lockstep::fakes::cuda
