// The fake of CUDA's runtime does what the documentation says: devices, memory, copies, streams, events.
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/fakes/cuda/test_calls.h"

namespace lockstep::fakes::cuda {
namespace {

class FakesCudart : public ::testing::Test {
protected:
    void SetUp() override { reset(1); }
};

int plus_one(int x) { return x + 1; }
int twice(int x) { return 2 * x; }

// ---- Streams and events.

TEST_F(FakesCudart, WorkRunsLate) {
    EXPECT_EQ(results([] {
                  const cudaStream_t stream = new_stream();
                  int* const number = device_memory<int>(1);
                  *number = 1;
                  change(stream, number, plus_one);
                  const int early = *number;
                  ok(cudaStreamSynchronize(stream));
                  EXPECT_EQ(*number, 2);
                  return early;
              }),
              (std::set{1, 2}));
}

TEST_F(FakesCudart, StreamRunsInOrderAndStreamsInAny) {
    EXPECT_EQ(results([] {
                  const cudaStream_t stream = new_stream();
                  int* const number = device_memory<int>(1);
                  ok(cudaMemsetAsync(number, 0, sizeof(int), stream));
                  for (int i = 0; i < 5; ++i) change(stream, number, [i](int x) { return 2 * x + i; });
                  ok(cudaStreamSynchronize(stream));
                  return *number;
              }),
              (std::set{26}));
    EXPECT_EQ(results([] {
                  const cudaStream_t one = new_stream(), other = new_stream();
                  int* const number = device_memory<int>(1);
                  *number = 1;
                  change(one, number, plus_one), change(other, number, twice);
                  ok(cudaDeviceSynchronize());
                  return *number;
              }),
              (std::set{3, 4}));
}

int behind_event(bool waits) {
    const cudaStream_t one = new_stream(), other = new_stream();
    int* const number = device_memory<int>(1);
    *number = 1;
    change(one, number, plus_one);
    if (!waits) leave_out_wait(0);
    wait_for(other, one);
    change(other, number, twice);
    ok(cudaStreamSynchronize(one)), ok(cudaStreamSynchronize(other));
    return *number;
}

TEST_F(FakesCudart, EventOrdersStreamsAndALeftOutWaitIsNoticed) {
    EXPECT_EQ(results([] { return behind_event(true); }), (std::set{4}));
    EXPECT_EQ(results([] { return behind_event(false); }), (std::set{3, 4}));
}

TEST_F(FakesCudart, LeftOutWaitsAreCountedFromTheNext) {
    const auto run = [](int64_t n) {
        return results([n] {
            const cudaStream_t one = new_stream(), other = new_stream();
            int* const number = device_memory<int>(1);
            *number = 1;
            leave_out_wait(n);
            wait_for(one, other);
            change(one, number, plus_one);
            wait_for(other, one);
            change(other, number, twice);
            ok(cudaDeviceSynchronize());
            return *number;
        });
    };
    EXPECT_EQ(run(-1), (std::set{4}));
    EXPECT_EQ(run(0), (std::set{4}));
    EXPECT_EQ(run(1), (std::set{3, 4}));
    EXPECT_EQ(run(2), (std::set{4}));
}

// A wait is for what the event stood for when the call was made.
TEST_F(FakesCudart, EventRecordedAgainDoesNotMoveEarlierWaits) {
    EXPECT_EQ(results([] {
                  const cudaStream_t one = new_stream(), other = new_stream();
                  const cudaEvent_t event = new_event();
                  int* const number = device_memory<int>(1);
                  *number = 1;
                  change(one, number, plus_one);
                  ok(cudaEventRecord(event, one));
                  ok(cudaStreamWaitEvent(other, event, 0));
                  change(one, number, [](int x) { return x + 10; });
                  ok(cudaEventRecord(event, one));
                  change(other, number, twice);
                  ok(cudaEventSynchronize(event));
                  ok(cudaStreamSynchronize(other));
                  return *number;
              }),
              (std::set{14, 24}));
}

TEST_F(FakesCudart, EventThatWasNeverRecordedStandsForNoWork) {
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    ok(cudaEventQuery(event));
    ok(cudaEventSynchronize(event));
    ok(cudaStreamWaitEvent(stream, event, 0));
    ok(cudaStreamQuery(stream));
}

TEST_F(FakesCudart, QueriesSayNotReadyUntilTheWorkHasRun) {
    EXPECT_EQ(results([] {
                  const cudaStream_t one = new_stream(), other = new_stream();
                  const cudaEvent_t event = new_event();
                  int* const number = device_memory<int>(1);
                  *number = 0;
                  change(one, number, plus_one);
                  ok(cudaEventRecord(event, one));
                  ok(cudaStreamWaitEvent(other, event, 0));
                  int queries = 0;
                  while (cudaStreamQuery(other) == cudaErrorNotReady) ++queries;  // a wait is work of a stream
                  ok(cudaStreamQuery(other));
                  EXPECT_EQ(*number, 1);
                  ok(cudaEventQuery(event));
                  return queries > 0;
              }),
              (std::set{false, true}));
    EXPECT_EQ(refusal(), "") << "not being ready is no refusal";
}

TEST_F(FakesCudart, DestroyedStreamStillDoesItsWork) {
    EXPECT_EQ(results([] {
                  const cudaStream_t stream = new_stream();
                  int* const number = device_memory<int>(1);
                  *number = 1;
                  change(stream, number, plus_one);
                  const cudaEvent_t event = new_event();
                  ok(cudaEventRecord(event, stream));
                  ok(cudaEventDestroy(event));
                  ok(cudaStreamDestroy(stream));
                  ok(cudaDeviceSynchronize());
                  return *number;
              }),
              (std::set{2}));
}

TEST_F(FakesCudart, HandlesThatAreDestroyedAreRefused) {
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    ok(cudaStreamDestroy(stream));
    ok(cudaEventDestroy(event));
    refused(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle, "cudaStreamSynchronize: there is no stream");
    refused(cudaEventQuery(event), cudaErrorInvalidResourceHandle, "there is no event");
    refused(cudaStreamDestroy(stream), cudaErrorInvalidResourceHandle, "there is no stream");
    refused(cudaEventDestroy(event), cudaErrorInvalidResourceHandle, "there is no event");
    const cudaStream_t forgotten = new_stream();
    reset(2);
    refused(cudaStreamQuery(forgotten), cudaErrorInvalidResourceHandle, "there is no stream");
}

TEST_F(FakesCudart, DefaultStreamsAreRefusedByName) {
    for (cudaStream_t stream : {cudaStream_t{}, cudaStreamLegacy, cudaStreamPerThread}) {
        refused(enqueue(stream, "kernel", [] {}), cudaErrorInvalidResourceHandle, "default stream (0, cudaStreamLegacy or");
        refused(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle, "default stream");
        refused(cudaEventRecord(new_event(), stream), cudaErrorInvalidResourceHandle, "default stream");
        refused(cudaMemsetAsync(device_memory<int>(1), 0, 4, stream), cudaErrorInvalidResourceHandle, "default stream");
    }
}

TEST_F(FakesCudart, PrioritiesAreAHintAndAreClamped) {
    int least = 1, greatest = 1;
    ok(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    EXPECT_EQ(least, 0);
    EXPECT_LT(greatest, least);
    ok(cudaDeviceGetStreamPriorityRange(nullptr, nullptr));
    EXPECT_EQ(results([&] {
                  cudaStream_t first = nullptr, last = nullptr;
                  ok(cudaStreamCreateWithPriority(&first, cudaStreamNonBlocking, greatest - 100));
                  ok(cudaStreamCreateWithPriority(&last, cudaStreamNonBlocking, least + 100));
                  int* const number = device_memory<int>(1);
                  *number = 1;
                  change(last, number, plus_one), change(first, number, twice);
                  ok(cudaDeviceSynchronize());
                  return *number;
              }),
              (std::set{3, 4}));
}

TEST_F(FakesCudart, FlagsThatDoNotExistAreRefused) {
    cudaStream_t stream = nullptr;
    cudaEvent_t event = nullptr;
    refused(cudaStreamCreateWithFlags(&stream, 0x80), cudaErrorInvalidValue, "0x80");
    refused(cudaStreamCreateWithFlags(nullptr, 0), cudaErrorInvalidValue, "null");
    refused(cudaEventCreateWithFlags(&event, 0x80), cudaErrorInvalidValue, "no such flags");
    refused(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming), cudaErrorNotSupported, "processes");
    refused(cudaStreamWaitEvent(new_stream(), new_event(), 2), cudaErrorInvalidValue, "no such flags");
    refused(cudaStreamWaitEvent(new_stream(), new_event(), cudaEventWaitExternal), cudaErrorNotSupported, "external");
}

TEST_F(FakesCudart, ElapsedTimeNeedsTwoRecordedEventsWithTiming) {
    const cudaStream_t stream = new_stream();
    const cudaEvent_t start = new_event(cudaEventDefault), end = new_event(cudaEventDefault), untimed = new_event();
    float ms = -1;
    refused(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle, "never recorded");
    ok(cudaEventRecord(start, stream));
    ok(cudaEventRecord(end, stream));
    ok(cudaEventRecord(untimed, stream));
    refused(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle, "cudaEventDisableTiming");
    while (cudaEventElapsedTime(&ms, start, end) == cudaErrorNotReady) {
    }
    EXPECT_GE(ms, 0);
}

TEST_F(FakesCudart, ThreadsShareTheDevice) {
    std::vector<int> sums(4);
    std::vector<std::thread> threads;
    for (int& sum : sums) {
        threads.emplace_back([&sum] {
            const cudaStream_t load = new_stream(), compute = new_stream();
            int* const number = device_memory<int>(1);
            int* const host = pinned_memory<int>(1);
            *host = 1;
            for (int i = 0; i < 100; ++i) {
                ok(cudaMemcpyAsync(number, host, sizeof(int), cudaMemcpyHostToDevice, load));
                wait_for(compute, load);
                change(compute, number, plus_one);
                ok(cudaMemcpyAsync(host, number, sizeof(int), cudaMemcpyDeviceToHost, compute));
                wait_for(load, compute);
            }
            ok(cudaStreamSynchronize(compute));
            sum = *host;
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(sums, (std::vector<int>{101, 101, 101, 101}));
}

// ---- Memory.

TEST_F(FakesCudart, NewMemoryIsAlignedTo256BytesAndHoldsNaN) {
    for (int i = 0; i < 3; ++i) {
        const auto* memory = device_memory<unsigned char>(1000);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 256, 0u);
        EXPECT_NE(reinterpret_cast<uintptr_t>(memory) % 512, 0u) << "more than the documentation promises";
        EXPECT_EQ(memory[0], 0xff);
        EXPECT_EQ(memory[999], 0xff);
    }
}

TEST_F(FakesCudart, MemoryOfNoBytesIsNull) {
    void* memory = &memory;
    ok(cudaMalloc(&memory, 0));
    EXPECT_EQ(memory, nullptr);
    ok(cudaFree(nullptr));
    ok(cudaFreeHost(nullptr));
}

TEST_F(FakesCudart, OnlyWhatWasAllocatedIsFreed) {
    char* const memory = device_memory<char>(100);
    char* const pinned = pinned_memory<char>(100);
    refused(cudaFree(memory + 1), cudaErrorInvalidValue, "cudaMalloc has not returned this address");
    refused(cudaFree(pinned), cudaErrorInvalidValue, "cudaMalloc has not returned this address");
    refused(cudaFreeHost(memory), cudaErrorInvalidValue, "cudaHostAlloc has not returned this address");
    ok(cudaFree(memory));
    ok(cudaFreeHost(pinned));
    refused(cudaFree(memory), cudaErrorInvalidValue, "cudaMalloc has not returned this address, or it is free");
}

TEST_F(FakesCudart, MemoryEnds) {
    set_memory_limit(1000);
    size_t free = 0, total = 0;
    ok(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, 1000u);
    EXPECT_EQ(total, size_t{80} << 30);
    char* const memory = device_memory<char>(600);
    void* more = nullptr;
    refused(cudaMalloc(&more, 401), cudaErrorMemoryAllocation, "cudaMalloc: 401 bytes are wanted, 400 are free");
    ok(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, 400u);
    ok(cudaMalloc(&more, 400));
    ok(cudaFree(memory));
    device_memory<char>(600);
    set_memory_limit(10);
    ok(cudaMemGetInfo(&free, &total));
    EXPECT_EQ(free, 0u);
    refused(cudaMalloc(&more, SIZE_MAX), cudaErrorMemoryAllocation, "0 are free");
}

TEST_F(FakesCudart, PinnedMemoryEnds) {
    set_pinned_limit(1000);
    char* const memory = pinned_memory<char>(600);
    void* more = nullptr;
    refused(cudaMallocHost(&more, 401), cudaErrorMemoryAllocation, "401 bytes are wanted, 400 may be pinned");
    ok(cudaMallocHost(&more, 400));
    ok(cudaFreeHost(memory));
    pinned_memory<char>(600);
}

// cudaFree may wait for the device, so code may rely on neither.
TEST_F(FakesCudart, MemoryFreedWhileItIsUsedIsNoticed) {
    const auto run = [](bool waits) {
        return results([waits] {
            const cudaStream_t stream = new_stream();
            int *const number = device_memory<int>(1), *const out = device_memory<int>(1);
            *number = 7;
            ok(enqueue(stream, "read", [=] { *out = *number; }));
            if (waits) ok(cudaStreamSynchronize(stream));
            ok(cudaFree(number));
            ok(cudaStreamSynchronize(stream));
            return *out;
        });
    };
    EXPECT_EQ(run(true), (std::set{7}));
    EXPECT_EQ(run(false), (std::set{-1, 7}));
}

TEST_F(FakesCudart, MappedMemoryHasAnAddressForTheDevice) {
    int* const mapped = pinned_memory<int>(2, cudaHostAllocMapped | cudaHostAllocPortable);
    int* const plain = pinned_memory<int>(2);
    void* address = nullptr;
    ok(cudaHostGetDevicePointer(&address, mapped, 0));
    const cudaStream_t stream = new_stream();
    *mapped = 1;
    change(stream, static_cast<int*>(address), plus_one);
    ok(cudaStreamSynchronize(stream));
    EXPECT_EQ(*mapped, 2);
    refused(cudaHostGetDevicePointer(&address, plain, 0), cudaErrorInvalidValue, "cudaHostAllocMapped");
    refused(cudaHostGetDevicePointer(&address, mapped, 1), cudaErrorInvalidValue, "flags must be 0");
    void* memory = nullptr;
    refused(cudaHostAlloc(&memory, 4, 0x80), cudaErrorInvalidValue, "0x80");
}

TEST_F(FakesCudart, AddressesHaveAttributes) {
    char* const memory = device_memory<char>(100);
    char* const mapped = pinned_memory<char>(100, cudaHostAllocMapped);
    cudaPointerAttributes a;
    ok(cudaPointerGetAttributes(&a, memory + 99));
    EXPECT_EQ(a.type, cudaMemoryTypeDevice);
    EXPECT_EQ(a.device, 0);
    EXPECT_EQ(a.devicePointer, memory + 99);
    EXPECT_EQ(a.hostPointer, nullptr);
    ok(cudaPointerGetAttributes(&a, mapped));
    EXPECT_EQ(a.type, cudaMemoryTypeHost);
    EXPECT_EQ(a.hostPointer, mapped);
    EXPECT_EQ(a.devicePointer, mapped);
    ok(cudaPointerGetAttributes(&a, &a));
    EXPECT_EQ(a.type, cudaMemoryTypeUnregistered);
    EXPECT_EQ(a.devicePointer, nullptr);
}

// ---- Copies.

TEST_F(FakesCudart, CopiesGoWhereTheirKindSays) {
    const cudaStream_t stream = new_stream();
    int *const a = device_memory<int>(4), *const b = device_memory<int>(4), *const host = pinned_memory<int>(4);
    for (int i = 0; i < 4; ++i) host[i] = i;
    ok(cudaMemcpyAsync(a, host, 16, cudaMemcpyHostToDevice, stream));
    ok(cudaMemcpyAsync(b, a + 1, 12, cudaMemcpyDeviceToDevice, stream));
    ok(cudaMemcpyAsync(host + 1, b, 12, cudaMemcpyDefault, stream));
    ok(cudaMemcpyAsync(nullptr, nullptr, 0, cudaMemcpyDeviceToHost, stream));
    ok(cudaStreamSynchronize(stream));
    EXPECT_EQ(std::vector<int>(host, host + 4), (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(FakesCudart, CopiesOfAnotherKindAreRefused) {
    const cudaStream_t stream = new_stream();
    int *const memory = device_memory<int>(1), *const host = pinned_memory<int>(1);
    const std::string why = "the copy's kind says otherwise";
    refused(cudaMemcpyAsync(memory, host, 4, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue, why);
    refused(cudaMemcpyAsync(host, memory, 4, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue, why);
    refused(cudaMemcpyAsync(memory, host, 4, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue, why);
    refused(cudaMemcpy(memory, host, 4, cudaMemcpyHostToHost), cudaErrorInvalidValue, why);
    refused(cudaMemcpy(memory, host, 4, static_cast<cudaMemcpyKind>(5)), cudaErrorInvalidMemcpyDirection, "kind 5");
}

TEST_F(FakesCudart, CopiesAndFillsStayInOneAllocation) {
    const cudaStream_t stream = new_stream();
    char *const memory = device_memory<char>(100), *const host = pinned_memory<char>(100);
    refused(cudaMemcpyAsync(memory, host, 101, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue,
            "cudaMemcpyAsync: 101 bytes at offset 0 leave their allocation of 100 bytes");
    refused(cudaMemcpyAsync(host + 1, memory, 100, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue, "at offset 1 leave");
    refused(cudaMemsetAsync(memory + 50, 0, 51, stream), cudaErrorInvalidValue, "51 bytes at offset 50 leave");
    char outside;
    refused(cudaMemsetAsync(&outside, 0, 1, stream), cudaErrorInvalidValue, "was not allocated");
    refused(cudaMemcpyAsync(memory + 10, memory, 11, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue, "overlap");
    ok(cudaMemcpyAsync(memory + 10, memory, 10, cudaMemcpyDeviceToDevice, stream));
}

TEST_F(FakesCudart, AsynchronousCopiesThatWouldWaitForTheHostAreRefused) {
    const cudaStream_t stream = new_stream();
    int pageable = 0;
    int *const memory = device_memory<int>(1), *const a = pinned_memory<int>(1), *const b = pinned_memory<int>(1);
    refused(cudaMemcpyAsync(&pageable, memory, 4, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue, "not pinned");
    refused(cudaMemcpyAsync(memory, &pageable, 4, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue, "not pinned");
    refused(cudaMemcpyAsync(a, b, 4, cudaMemcpyHostToHost, stream), cudaErrorInvalidValue, "both sides are memory of the host");
}

// cudaMemcpy is ordered by the legacy default stream: behind blocking streams, and behind no others.
TEST_F(FakesCudart, SynchronousCopyFollowsBlockingStreamsOnly) {
    const auto run = [](unsigned flags) {
        return results([flags] {
            const cudaStream_t stream = new_stream(flags);
            int* const number = device_memory<int>(1);
            int got = 0;
            *number = 1;
            change(stream, number, plus_one);
            ok(cudaMemcpy(&got, number, sizeof got, cudaMemcpyDeviceToHost));
            ok(cudaStreamSynchronize(stream));
            return got;
        });
    };
    EXPECT_EQ(run(cudaStreamDefault), (std::set{2}));
    EXPECT_EQ(run(cudaStreamNonBlocking), (std::set{1, 2}));
}

// A copy from pageable memory returns when the source may be used again; the device may not have it yet.
TEST_F(FakesCudart, SynchronousCopyFromPageableMemoryMayArriveLate) {
    const auto run = [](unsigned flags) {
        return results([flags] {
            const cudaStream_t stream = new_stream(flags);
            int *const number = device_memory<int>(1), *const out = device_memory<int>(1);
            int source = 5;
            ok(cudaMemcpy(number, &source, sizeof source, cudaMemcpyHostToDevice));
            source = 6;
            ok(enqueue(stream, "read", [=] { *out = *number; }));
            ok(cudaDeviceSynchronize());
            EXPECT_EQ(*number, 5);
            return *out;
        });
    };
    EXPECT_EQ(run(cudaStreamDefault), (std::set{5}));
    EXPECT_EQ(run(cudaStreamNonBlocking), (std::set{-1, 5}));
}

TEST_F(FakesCudart, SynchronousCopiesWaitForTheHostAsDocumented) {
    EXPECT_EQ(results([] {
                  int *const a = device_memory<int>(1), *const b = device_memory<int>(1), *const pinned = pinned_memory<int>(1);
                  *pinned = 3;
                  ok(cudaMemcpy(a, pinned, 4, cudaMemcpyHostToDevice));
                  EXPECT_EQ(*a, 3) << "from pinned memory the copy has ended";
                  int x = 0, y = 4;
                  ok(cudaMemcpy(&x, &y, 4, cudaMemcpyHostToHost));
                  EXPECT_EQ(x, 4);
                  EXPECT_EQ(counts().host_waits, 2);
                  ok(cudaMemcpy(b, a, 4, cudaMemcpyDeviceToDevice));
                  EXPECT_EQ(counts().host_waits, 2);
                  const int early = *b;
                  ok(cudaDeviceSynchronize());
                  EXPECT_EQ(*b, 3);
                  return early;
              }),
              (std::set{-1, 3}));
}

TEST_F(FakesCudart, SynchronousFillIsAsynchronousAndOrdersBlockingStreams) {
    EXPECT_EQ(results([] {
                  const cudaStream_t before = new_stream(cudaStreamDefault), after = new_stream(cudaStreamDefault);
                  int* const number = device_memory<int>(1);
                  change(before, number, [](int) { return 100; });
                  ok(cudaMemset(number, 0, sizeof(int)));
                  change(after, number, plus_one);
                  change(new_stream(cudaStreamDefault), number, [](int x) { return x + 10; });
                  const int early = *number;
                  ok(cudaDeviceSynchronize());
                  EXPECT_EQ(*number, 11);
                  return early == -1;
              }),
              (std::set{false, true}));
    int* const pinned = pinned_memory<int>(1);
    ok(cudaMemset(pinned, 0, 4));
    EXPECT_EQ(*pinned, 0);
}

// ---- Host functions, errors.

TEST_F(FakesCudart, HostFunctionsRunInTheirStreamAndMakeNoCalls) {
    const cudaStream_t stream = new_stream();
    struct State {
        int number = 1;
        cudaError_t error = cudaSuccess;
    } state;
    change(stream, &state.number, plus_one);
    const auto function = [](void* data) {
        State& s = *static_cast<State*>(data);
        s.number *= 10;
        void* memory = nullptr;
        s.error = cudaMalloc(&memory, 4);
    };
    ok(cudaLaunchHostFunc(stream, function, &state));
    change(stream, &state.number, plus_one);
    ok(cudaStreamSynchronize(stream));
    EXPECT_EQ(state.number, 21);
    refused(state.error, cudaErrorNotPermitted, "cudaMalloc: a host function must not make calls of CUDA");
    refused(cudaLaunchHostFunc(stream, nullptr, nullptr), cudaErrorInvalidValue, "null");
}

TEST_F(FakesCudart, LastErrorIsOfTheThreadAndCleared) {
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    cudaSetDevice(7);
    EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidDevice);
    ok(cudaSetDevice(0));
    std::thread([] { EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess); }).join();
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice) << "success does not clear it";
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    EXPECT_STREQ(cudaGetErrorName(cudaErrorInvalidDevice), "cudaErrorInvalidDevice");
    EXPECT_STREQ(cudaGetErrorString(cudaErrorInvalidDevice), "invalid device ordinal");
    EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST_F(FakesCudart, FailedKernelStopsAllThatFollows) {
    EXPECT_EQ(results([] {
                  const cudaStream_t stream = new_stream();
                  int* const number = device_memory<int>(1);
                  *number = 1;
                  enqueue(stream, "gather", [] { throw std::runtime_error("index 7 of 5"); });
                  enqueue(stream, "change", [=] { *number = 2; });
                  refused(cudaStreamSynchronize(stream), cudaErrorLaunchFailure, "gather failed on the device: index 7 of 5");
                  return *number;
              }),
              (std::set{1}));
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure);
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchFailure) << "it is not cleared";
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, 4), cudaErrorLaunchFailure);
    std::thread([] { EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorLaunchFailure); }).join();
    reset(1);
    ok(cudaMalloc(&memory, 4));
}

// ---- Devices.

TEST_F(FakesCudart, WithoutADriverNothingWorks) {
    set_driver({});
    int count = -1, version = -1;
    refused(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver, "cudaGetDeviceCount: no driver is installed");
    void* memory = nullptr;
    refused(cudaMalloc(&memory, 4), cudaErrorInsufficientDriver, "no driver");
    ok(cudaDriverGetVersion(&version));
    EXPECT_EQ(version, 0);
    ok(cudaRuntimeGetVersion(&version));
    EXPECT_EQ(version, CUDART_VERSION);
    EXPECT_EQ(cudaDriverGetVersion(nullptr), cudaErrorInvalidValue);
}

TEST_F(FakesCudart, DriverServesItsMajorVersionAndEarlierOnes) {
    int count = 0;
    set_driver(12090);
    refused(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver, "the driver supports CUDA 12090");
    set_driver(14000);
    ok(cudaGetDeviceCount(&count));
    set_device_count(0);
    refused(cudaGetDeviceCount(&count), cudaErrorNoDevice, "there is no device");
}

TEST_F(FakesCudart, DevicesHaveProperties) {
    set_device_properties({.name = "Test device", .major = 8, .minor = 6, .memory_bytes = 1 << 20, .multiprocessors = 10});
    cudaDeviceProp prop;
    ok(cudaGetDeviceProperties(&prop, 0));
    EXPECT_STREQ(prop.name, "Test device");
    EXPECT_EQ(prop.major, 8);
    EXPECT_EQ(prop.totalGlobalMem, size_t{1} << 20);
    int value = 0;
    ok(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    EXPECT_EQ(value, 10);
    ok(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMinor, 0));
    EXPECT_EQ(value, 6);
    refused(cudaDeviceGetAttribute(&value, cudaDevAttrMaxPitch, 0), cudaErrorInvalidValue, "does not know attribute");
    refused(cudaGetDeviceProperties(&prop, 1), cudaErrorInvalidDevice, "device 1 does not exist, there are 1");
    void* memory = nullptr;
    refused(cudaMalloc(&memory, (1 << 20) + 1), cudaErrorMemoryAllocation, "are wanted");
}

TEST_F(FakesCudart, StreamsAndEventsAreOfOneDevice) {
    set_device_count(2);
    const cudaStream_t first = new_stream();
    const cudaEvent_t event = new_event();
    int* const number = device_memory<int>(1);
    *number = 1;
    ok(cudaEventRecord(event, first));
    ok(cudaSetDevice(1));
    int device = 0;
    ok(cudaGetDevice(&device));
    EXPECT_EQ(device, 1);
    const cudaStream_t second = new_stream();
    refused(enqueue(first, "kernel", [] {}), cudaErrorInvalidResourceHandle,
            "the stream is of device 0, the current device is 1");
    refused(cudaEventRecord(event, second), cudaErrorInvalidResourceHandle, "different devices");
    ok(cudaStreamWaitEvent(second, event, 0));
    ok(cudaMemsetAsync(number, 0, 4, first));
    ok(cudaEventSynchronize(event));
    ok(cudaStreamSynchronize(first));
    std::thread([] {
        int current = -1;
        ok(cudaGetDevice(&current));
        EXPECT_EQ(current, 0);
    }).join();
    cudaPointerAttributes a;
    ok(cudaPointerGetAttributes(&a, device_memory<int>(1)));
    EXPECT_EQ(a.device, 1);
}

// ---- What tests ask.

TEST_F(FakesCudart, CallsAreCounted) {
    const cudaStream_t stream = new_stream();
    const cudaEvent_t event = new_event();
    int *const memory = device_memory<int>(1), *const host = pinned_memory<int>(1);
    ok(enqueue(stream, "kernel", [] {}));
    ok(cudaMemcpyAsync(memory, host, 4, cudaMemcpyHostToDevice, stream));
    ok(cudaMemsetAsync(memory, 0, 4, stream));
    ok(cudaLaunchHostFunc(
        stream, [](void*) {}, nullptr));
    ok(cudaEventRecord(event, stream));
    ok(cudaStreamWaitEvent(stream, event, 0));
    const Counts c = counts();
    EXPECT_EQ(c.streams, 1);
    EXPECT_EQ(c.events, 1);
    EXPECT_EQ(c.device_allocations, 1);
    EXPECT_EQ(c.pinned_allocations, 1);
    EXPECT_EQ(c.launches, 1);
    EXPECT_EQ(c.copies, 1);
    EXPECT_EQ(c.fills, 1);
    EXPECT_EQ(c.host_functions, 1);
    EXPECT_EQ(c.stream_waits, 1);
    EXPECT_EQ(c.host_waits, 0);
    ok(cudaStreamSynchronize(stream));
    ok(cudaEventSynchronize(event));
    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy(host, memory, 4, cudaMemcpyDeviceToHost));
    ok(cudaFree(memory));
    ok(cudaFreeHost(host));
    cudaStreamSynchronize(nullptr);
    EXPECT_EQ(counts().host_waits, 6);
    reset(1);
    EXPECT_EQ(counts().host_waits, 0);
}

TEST_F(FakesCudart, ResetForgetsWorkThatHasNotRun) {
    static int number;
    number = 0;
    const cudaStream_t stream = new_stream();
    for (int i = 0; i < 100; ++i) ok(enqueue(stream, "count", [] { ++number; }));
    const int ran = number;
    EXPECT_LT(ran, 100);
    reset(2);
    ok(cudaDeviceSynchronize());
    EXPECT_EQ(number, ran);
}

TEST_F(FakesCudart, SeedRepeatsTheOrder) {
    const auto run = [](uint64_t seed) {
        reset(seed);
        std::vector<int> order;
        std::vector<cudaStream_t> streams;
        for (int s = 0; s < 4; ++s) streams.push_back(new_stream());
        for (int i = 0; i < 40; ++i)
            ok(enqueue(streams[static_cast<size_t>(i % 4)], "note", [i, &order] { order.push_back(i); }));
        ok(cudaDeviceSynchronize());
        return order;
    };
    EXPECT_EQ(run(5), run(5));
    EXPECT_NE(run(5), run(6));
}

}  // namespace
}  // namespace lockstep::fakes::cuda
