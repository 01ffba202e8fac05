// For the tests of the fakes: calls that must succeed or be refused, and things to make calls with.
#pragma once

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "tests/fakes/cuda/fake.h"

namespace lockstep::fakes::cuda {

inline void ok(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << refusal(); }

inline void refused(cudaError_t error, cudaError_t expected, const std::string& why) {
    EXPECT_STREQ(cudaGetErrorName(error), cudaGetErrorName(expected));
    EXPECT_NE(refusal().find(why), std::string::npos) << refusal();
}

inline cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
    cudaStream_t stream = nullptr;
    ok(cudaStreamCreateWithFlags(&stream, flags));
    return stream;
}

inline cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
    cudaEvent_t event = nullptr;
    ok(cudaEventCreateWithFlags(&event, flags));
    return event;
}

template <class T>
T* device_memory(size_t count) {
    void* memory = nullptr;
    ok(cudaMalloc(&memory, count * sizeof(T)));
    return static_cast<T*>(memory);
}

template <class T>
T* pinned_memory(size_t count, unsigned flags = cudaHostAllocDefault) {
    void* memory = nullptr;
    ok(cudaHostAlloc(&memory, count * sizeof(T), flags));
    return static_cast<T*>(memory);
}

// Runs on the device: number = f(number).
template <class F>
void change(cudaStream_t stream, int* number, F f) {
    ok(enqueue(stream, "change", [=] { *number = f(*number); }));
}

// `to` waits for all that `from` was given.
inline void wait_for(cudaStream_t to, cudaStream_t from) {
    const cudaEvent_t event = new_event();
    ok(cudaEventRecord(event, from));
    ok(cudaStreamWaitEvent(to, event, 0));
    ok(cudaEventDestroy(event));
}

// What `run` returns under many schedules.
template <class Run>
auto results(const Run& run) {
    std::set<decltype(run())> all;
    for (uint64_t seed = 0; seed < 200; ++seed) {
        reset(seed);
        all.insert(run());
    }
    return all;
}

}  // namespace lockstep::fakes::cuda
