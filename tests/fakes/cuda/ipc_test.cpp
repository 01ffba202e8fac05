// The fake of memory between processes, which threads stand for, and of streams that wait for values.
#include <cuda.h>

#include <cstring>
#include <thread>

#include "tests/fakes/cuda/test_calls.h"

namespace lockstep::fakes::cuda {
namespace {

class FakesIpc : public ::testing::Test {
protected:
    void SetUp() override { reset(1); }
};

using Wait = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
Wait wait_function() {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
    ok(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result));
    EXPECT_EQ(result, cudaDriverEntryPointSuccess);
    return reinterpret_cast<Wait>(found);
}
cudaError_t wait_value(cudaStream_t stream, const uint32_t* word, uint32_t value, unsigned flags = CU_STREAM_WAIT_VALUE_GEQ) {
    return static_cast<cudaError_t>(wait_function()(stream, reinterpret_cast<CUdeviceptr>(word), value, flags));
}

template <class F>
void in_another_process(const F& f) {
    std::thread(f).join();
}

TEST_F(FakesIpc, MemoryIsOpenedAtAnotherAddress) {
    auto* const own = device_memory<uint32_t>(2);
    cudaIpcMemHandle_t handle = {};
    ok(cudaIpcGetMemHandle(&handle, own));
    in_another_process([&] {
        void* opened = nullptr;
        ok(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess));
        EXPECT_NE(opened, own);
        auto* const word = device_memory<uint32_t>(1);
        *word = 7;
        const cudaStream_t stream = new_stream();
        ok(cudaMemcpyAsync(static_cast<uint32_t*>(opened) + 1, word, sizeof *word, cudaMemcpyDefault, stream));
        ok(cudaStreamSynchronize(stream));
        refused(cudaFree(opened), cudaErrorInvalidValue, "the memory is another process's");
        refused(cudaFree(own), cudaErrorInvalidValue, "another process has the memory open");
        ok(cudaIpcCloseMemHandle(opened));
        refused(cudaIpcCloseMemHandle(opened), cudaErrorInvalidValue, "or it is closed");
    });
    EXPECT_EQ(own[1], 7u);
    ok(cudaFree(own));
}

TEST_F(FakesIpc, WhatIsNotAllowedIsRefused) {
    auto* const own = device_memory<uint32_t>(2);
    cudaIpcMemHandle_t handle = {};
    refused(cudaIpcGetMemHandle(&handle, own + 1), cudaErrorInvalidValue, "cudaMalloc has not returned this address");
    ok(cudaIpcGetMemHandle(&handle, own));
    void* opened = nullptr;
    refused(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorDeviceUninitialized,
            "may not open what it has exported itself");
    ok(cudaFree(own));
    in_another_process([&] {
        refused(cudaIpcOpenMemHandle(&opened, handle, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue,
                "what the handle is of is free");
        refused(cudaIpcOpenMemHandle(&opened, {}, cudaIpcMemLazyEnablePeerAccess), cudaErrorInvalidValue, "this is no handle");
    });
    set_ipc(false);
    refused(cudaIpcGetMemHandle(&handle, device_memory<char>(1)), cudaErrorNotSupported, "no memory between processes");
}

uint32_t behind_a_value(bool left_out) {
    auto* const words = device_memory<uint32_t>(3);  // flag, one, number
    words[0] = 0, words[1] = 1, words[2] = 5;
    const cudaStream_t writes = new_stream(), waits = new_stream();
    if (left_out) leave_out_value_wait(0);
    ok(wait_value(waits, words, 1));
    auto* const number = reinterpret_cast<int*>(words + 2);
    change(waits, number, [](int x) { return 2 * x; });
    change(writes, number, [](int x) { return x + 1; });
    ok(cudaMemcpyAsync(words, words + 1, sizeof *words, cudaMemcpyDefault, writes));
    ok(cudaDeviceSynchronize());
    return words[2];
}

TEST_F(FakesIpc, AStreamWaitsForAValueAndALeftOutWaitIsNoticed) {
    EXPECT_EQ(results([] { return behind_a_value(false); }), (std::set<uint32_t>{12}));
    EXPECT_EQ(results([] { return behind_a_value(true); }), (std::set<uint32_t>{11, 12}));
}

TEST_F(FakesIpc, AValueThatNobodyWritesFailsTheDevice) {
    auto* const word = device_memory<uint32_t>(1);
    *word = 0;
    set_patience(std::chrono::milliseconds(20));
    const cudaStream_t stream = new_stream();
    ok(wait_value(stream, word, 1));
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchTimeout);
}

TEST_F(FakesIpc, AGraphWaitsEachTimeUnlessThatIsRefused) {
    auto* const words = device_memory<uint32_t>(3);
    words[0] = 0, words[1] = 1, words[2] = 0;
    const cudaStream_t stream = new_stream(), other = new_stream();
    auto* const number = reinterpret_cast<int*>(words + 2);
    const auto capture = [&] {
        ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        const cudaError_t error = wait_value(stream, words, 1);
        if (error == cudaSuccess) ok(cudaMemsetAsync(words, 0, sizeof *words, stream));
        if (error == cudaSuccess) change(stream, number, [](int x) { return x + 1; });
        cudaGraph_t graph = nullptr;
        const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
        EXPECT_EQ(ended == cudaSuccess, error == cudaSuccess);
        return graph;
    };
    cudaGraphExec_t executable = nullptr;
    ok(cudaGraphInstantiate(&executable, capture(), 0));
    for (int i = 1; i <= 3; ++i) {
        ok(cudaGraphLaunch(executable, stream));
        ok(cudaMemcpyAsync(words, words + 1, sizeof *words, cudaMemcpyDefault, other));
        ok(cudaStreamSynchronize(stream));
        EXPECT_EQ(words[2], static_cast<uint32_t>(i));
        EXPECT_EQ(words[0], 0u);
    }
    set_value_waits_recorded(false);
    EXPECT_EQ(capture(), nullptr);
}

TEST_F(FakesIpc, RowsAreCopied) {
    auto* const memory = device_memory<int>(12);
    for (int i = 0; i < 12; ++i) memory[i] = i;
    const cudaStream_t stream = new_stream();
    ok(cudaMemcpy2DAsync(memory + 6, 3 * sizeof(int), memory, 2 * sizeof(int), sizeof(int), 2, cudaMemcpyDefault, stream));
    ok(cudaStreamSynchronize(stream));
    EXPECT_EQ(memory[6], 0);
    EXPECT_EQ(memory[9], 2);
    EXPECT_EQ(memory[7], 7);
    refused(cudaMemcpy2DAsync(memory, 4, memory + 6, 8, 8, 1, cudaMemcpyDefault, stream), cudaErrorInvalidPitchValue,
            "longer than its pitch");
}

}  // namespace
}  // namespace lockstep::fakes::cuda
