// The fake of NCCL does what the documentation says.
#include <nccl.h>

#include <algorithm>
#include <functional>
#include <thread>
#include <vector>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "tests/fakes/cuda/test_calls.h"

namespace lockstep::fakes::cuda {
namespace {

class FakesNccl : public ::testing::Test {
protected:
    void SetUp() override { reset(1); }
};

void ok(ncclResult_t result) { ASSERT_EQ(result, ncclSuccess) << refusal(); }

void refused(ncclResult_t result, ncclResult_t expected, const std::string& why) {
    EXPECT_EQ(result, expected) << ncclGetErrorString(result);
    EXPECT_NE(refusal().find(why), std::string::npos) << refusal();
}

ncclUniqueId new_id() {
    ncclUniqueId id;
    ok(ncclGetUniqueId(&id));
    return id;
}

struct Rank {
    int rank = 0, size = 0;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;

    float* numbers(size_t count, float start) const {
        auto* const memory = device_memory<float>(count);
        for (size_t i = 0; i < count; ++i) memory[i] = start + static_cast<float>(i);
        return memory;
    }
    void finish() const { cuda::ok(cudaStreamSynchronize(stream)); }
};

// Each rank is a thread with a device, a communicator of all and a stream.
void on_ranks(int size, const std::function<void(const Rank&)>& body) {
    set_device_count(size);
    const ncclUniqueId id = new_id();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([=, &body] {
            cuda::ok(cudaSetDevice(rank));
            Rank r{rank, size};
            r.stream = new_stream();
            ok(ncclCommInitRank(&r.comm, size, id, rank));
            body(r);
        });
    }
    for (std::thread& thread : threads) thread.join();
}

// One thread has two ranks. What it gives to one does not wait for the other.
struct TwoRanks {
    Rank ranks[2];

    TwoRanks() {
        set_device_count(2);
        const ncclUniqueId id = new_id();
        ok(ncclGroupStart());
        for (int rank = 0; rank < 2; ++rank) {
            use(rank);
            ranks[rank] = {rank, 2, nullptr, new_stream()};
            ok(ncclCommInitRank(&ranks[rank].comm, 2, id, rank));
        }
        ok(ncclGroupEnd());
    }
    void use(int rank) const { cuda::ok(cudaSetDevice(rank)); }
    const Rank& operator[](int rank) const {
        use(rank);
        return ranks[rank];
    }
};

// ---- What collectives do.

TEST_F(FakesNccl, CommunicatorKnowsItsRanks) {
    on_ranks(3, [](const Rank& r) {
        int count = 0, rank = -1, device = -1;
        ok(ncclCommCount(r.comm, &count));
        ok(ncclCommUserRank(r.comm, &rank));
        ok(ncclCommCuDevice(r.comm, &device));
        EXPECT_EQ(count, 3);
        EXPECT_EQ(rank, r.rank);
        EXPECT_EQ(device, r.rank);
        ncclResult_t error = ncclInternalError;
        ok(ncclCommGetAsyncError(r.comm, &error));
        EXPECT_EQ(error, ncclSuccess);
        ok(ncclCommDestroy(r.comm));
    });
    int version = 0;
    ok(ncclGetVersion(&version));
    EXPECT_EQ(version, NCCL_VERSION_CODE);
}

TEST_F(FakesNccl, AllGatherGivesAllToAll) {
    for (int size : {1, 2, 4}) {
        for (bool in_place : {false, true}) {
            reset(static_cast<uint64_t>(size));
            on_ranks(size, [in_place](const Rank& r) {
                const auto ranks = static_cast<size_t>(r.size), rank = static_cast<size_t>(r.rank);
                auto* const all = device_memory<float>(5 * ranks);
                float* const mine = in_place ? all + 5 * rank : device_memory<float>(5);
                std::vector<float> wanted;
                for (size_t from = 0; from < ranks; ++from) {
                    for (size_t i = 0; i < 5; ++i) wanted.push_back(static_cast<float>(100 * from + i));
                }
                std::copy_n(wanted.data() + 5 * rank, 5, mine);
                ok(ncclAllGather(mine, all, 5, ncclFloat32, r.comm, r.stream));
                r.finish();
                EXPECT_EQ(std::vector<float>(all, all + 5 * ranks), wanted);
            });
        }
    }
}

TEST_F(FakesNccl, ReduceScatterGivesEachRankItsShare) {
    for (int size : {1, 3}) {
        for (bool in_place : {false, true}) {
            reset(static_cast<uint64_t>(size));
            on_ranks(size, [in_place](const Rank& r) {
                const auto ranks = static_cast<size_t>(r.size), rank = static_cast<size_t>(r.rank);
                float* const all = r.numbers(4 * ranks, static_cast<float>(10 * r.rank));
                float* const mine = in_place ? all + 4 * rank : device_memory<float>(4);
                ok(ncclReduceScatter(all, mine, 4, ncclFloat32, ncclSum, r.comm, r.stream));
                r.finish();
                for (size_t i = 0; i < 4; ++i) {
                    float sum = 0;
                    for (size_t from = 0; from < ranks; ++from) sum += static_cast<float>(10 * from + 4 * rank + i);
                    EXPECT_EQ(mine[i], sum);
                }
            });
        }
    }
}

template <class T>
void expect_all_reduce(ncclDataType_t type, double tolerance) {
    struct Case {
        ncclRedOp_t operation;
        double result;
    };
    // Of 1, 2 and 4 at each position, plus the position.
    const auto cases = [](double i) {
        const double a = 1 + i, b = 2 + i, c = 4 + i;
        return std::vector<Case>{
            {ncclSum, a + b + c}, {ncclProd, a * b * c}, {ncclMax, c}, {ncclMin, a}, {ncclAvg, (a + b + c) / 3}};
    };
    on_ranks(3, [&](const Rank& r) {
        for (size_t which = 0; which < 5; ++which) {
            const ncclRedOp_t operation = cases(0)[which].operation;
            auto* const numbers = device_memory<T>(3);
            for (int i = 0; i < 3; ++i) numbers[i] = static_cast<T>(static_cast<float>((1 << r.rank) + i));
            ok(ncclAllReduce(numbers, numbers, 3, type, operation, r.comm, r.stream));
            r.finish();
            for (int i = 0; i < 3; ++i) {
                double wanted = cases(i)[which].result;
                if (tolerance == 0) wanted = static_cast<double>(static_cast<int64_t>(wanted));
                EXPECT_NEAR(static_cast<double>(numbers[i]), wanted, tolerance * wanted) << type << " " << operation << " " << i;
            }
        }
    });
}

TEST_F(FakesNccl, AllReduceOfTypesAndOperations) {
    const auto each = [](auto element, ncclDataType_t type, double tolerance) {
        reset(1);
        expect_all_reduce<decltype(element)>(type, tolerance);
    };
    each(float{}, ncclFloat32, 1e-6), each(double{}, ncclFloat64, 1e-15);
    each(Bf16{}, ncclBfloat16, 0x1p-7), each(F16{}, ncclFloat16, 0x1p-10);
    each(int8_t{}, ncclInt8, 0), each(uint8_t{}, ncclUint8, 0), each(int32_t{}, ncclInt32, 0);
    each(uint32_t{}, ncclUint32, 0), each(int64_t{}, ncclInt64, 0), each(uint64_t{}, ncclUint64, 0);
}

TEST_F(FakesNccl, BroadcastComesFromTheRoot) {
    on_ranks(3, [](const Rank& r) {
        float *const send = r.numbers(3, static_cast<float>(10 * r.rank)), *const receive = device_memory<float>(3);
        ok(ncclBroadcast(r.rank == 1 ? send : nullptr, receive, 3, ncclFloat32, 1, r.comm, r.stream));
        r.finish();
        EXPECT_EQ(receive[2], 12);
        ok(ncclBroadcast(send, send, 3, ncclFloat32, 2, r.comm, r.stream));
        r.finish();
        EXPECT_EQ(send[0], 20);
    });
}

TEST_F(FakesNccl, TransfersOfAGroupProgressTogether) {
    on_ranks(3, [](const Rank& r) {
        const int next = (r.rank + 1) % 3, previous = (r.rank + 2) % 3;
        float *const send = r.numbers(2, static_cast<float>(10 * r.rank)), *const receive = device_memory<float>(4);
        ok(ncclGroupStart());
        ok(ncclSend(send, 2, ncclFloat32, next, r.comm, r.stream));
        ok(ncclSend(send, 1, ncclFloat32, next, r.comm, r.stream));
        ok(ncclRecv(receive, 2, ncclFloat32, previous, r.comm, r.stream));
        ok(ncclRecv(receive + 2, 1, ncclFloat32, previous, r.comm, r.stream));
        ok(ncclGroupEnd());
        r.finish();
        EXPECT_EQ(std::vector<float>(receive, receive + 3),
                  (std::vector<float>{10.0f * static_cast<float>(previous), 10.0f * static_cast<float>(previous) + 1,
                                      10.0f * static_cast<float>(previous)}));
    });
    EXPECT_EQ(counts().launches, 3) << "a group is one launch";
}

TEST_F(FakesNccl, RankMaySendToItself) {
    on_ranks(1, [](const Rank& r) {
        float *const send = r.numbers(2, 5), *const receive = device_memory<float>(2);
        ok(ncclGroupStart());
        ok(ncclSend(send, 2, ncclFloat32, 0, r.comm, r.stream));
        ok(ncclRecv(receive, 2, ncclFloat32, 0, r.comm, r.stream));
        ok(ncclGroupEnd());
        r.finish();
        EXPECT_EQ(receive[1], 6);
    });
}

// ---- When they do it.

TEST_F(FakesNccl, LaunchOccupiesItsStreamAndNotTheHost) {
    TwoRanks two;
    float* const numbers = two[0].numbers(2, 1);
    const cudaEvent_t done = new_event();
    ok(ncclAllReduce(numbers, numbers, 2, ncclFloat32, ncclSum, two[0].comm, two[0].stream));
    cuda::ok(cudaMemsetAsync(numbers, 0, 4, two[0].stream));
    cuda::ok(cudaEventRecord(done, two[0].stream));
    const cudaStream_t follower = new_stream(), free = new_stream();
    cuda::ok(cudaStreamWaitEvent(follower, done, 0));
    int ran = 0;
    cuda::ok(enqueue(follower, "follow", [&ran] { ran = 1; }));
    cuda::ok(enqueue(free, "run", [] {}));
    cuda::ok(cudaStreamSynchronize(free));
    for (int i = 0; i < 50; ++i) EXPECT_EQ(cudaEventQuery(done), cudaErrorNotReady);
    EXPECT_EQ(ran, 0);
    EXPECT_EQ(numbers[0], 1);

    float* const others = two[1].numbers(2, 10);
    ok(ncclAllReduce(others, others, 2, ncclFloat32, ncclSum, two[1].comm, two[1].stream));
    two.use(0);
    cuda::ok(cudaStreamSynchronize(follower));
    EXPECT_EQ(ran, 1);
    EXPECT_EQ(numbers[0], 0);
    EXPECT_EQ(numbers[1], 13);
    EXPECT_EQ(others[0], 11);
}

// What rank 0 gathers. Each rank's number is written by another stream, which its own waits for, or not.
std::set<std::vector<float>> gathered(bool waits) {
    return results([waits] {
        TwoRanks two;
        auto* const host = pinned_memory<float>(2);
        for (int rank = 0; rank < 2; ++rank) {
            const Rank& r = two[rank];
            const cudaStream_t writer = new_stream();
            float *const mine = r.numbers(1, 0), *const all = device_memory<float>(2);
            cuda::ok(enqueue(writer, "write", [rank, mine] { *mine = static_cast<float>(rank + 1); }));
            if (waits) wait_for(r.stream, writer);
            ok(ncclAllGather(mine, all, 1, ncclFloat32, r.comm, r.stream));
            if (rank == 0) cuda::ok(cudaMemcpyAsync(host, all, 8, cudaMemcpyDeviceToHost, r.stream));
        }
        two[0].finish();
        return std::vector<float>{host[0], host[1]};
    });
}

TEST_F(FakesNccl, CollectiveReadsWhenAllStreamsHaveReachedIt) {
    EXPECT_EQ(gathered(true), (std::set<std::vector<float>>{{1, 2}}));
    EXPECT_EQ(gathered(false), (std::set<std::vector<float>>{{0, 0}, {0, 2}, {1, 0}, {1, 2}}));
}

TEST_F(FakesNccl, IndependentTransfersDoNotWaitForEachOther) {
    on_ranks(3, [](const Rank& r) {
        float* const number = r.numbers(1, static_cast<float>(r.rank));
        if (r.rank == 0) {
            ok(ncclRecv(number, 1, ncclFloat32, 1, r.comm, r.stream));
            ok(ncclSend(number, 1, ncclFloat32, 2, r.comm, r.stream));
        }
        if (r.rank == 1) ok(ncclSend(number, 1, ncclFloat32, 0, r.comm, r.stream));
        if (r.rank == 2) ok(ncclRecv(number, 1, ncclFloat32, 0, r.comm, r.stream));
        r.finish();
        EXPECT_EQ(*number, 1);
    });
}

TEST_F(FakesNccl, GraphsWithCollectivesMeetAtEachLaunch) {
    on_ranks(2, [](const Rank& r) {
        float* const numbers = r.numbers(3, static_cast<float>(r.rank));
        cuda::ok(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal));
        ok(ncclAllReduce(numbers, numbers, 3, ncclFloat32, ncclSum, r.comm, r.stream));
        cuda::ok(enqueue(r.stream, "halve", [numbers] { numbers[0] /= 2; }));
        cudaGraph_t graph = nullptr;
        cuda::ok(cudaStreamEndCapture(r.stream, &graph));
        size_t nodes = 0;
        cuda::ok(cudaGraphGetNodes(graph, nullptr, &nodes));
        EXPECT_EQ(nodes, 2u);
        cudaGraphExec_t executable = nullptr;
        cuda::ok(cudaGraphInstantiate(&executable, graph, 0));
        EXPECT_EQ(numbers[2], static_cast<float>(r.rank + 2));
        for (int i = 0; i < 3; ++i) cuda::ok(cudaGraphLaunch(executable, r.stream));
        r.finish();
        EXPECT_EQ(numbers[0], 0.5f);
        EXPECT_EQ(numbers[2], 5 * 4);
        ok(ncclAllReduce(numbers, numbers, 3, ncclFloat32, ncclMax, r.comm, r.stream));
        r.finish();
    });
}

// ---- What ranks must agree about.

void expect_mismatch(const std::function<ncclResult_t(const Rank&, float*)>& first,
                     const std::function<ncclResult_t(const Rank&, float*)>& second, const std::string& why) {
    reset(1);
    TwoRanks two;
    float *const numbers = two[0].numbers(8, 0), *const others = two[1].numbers(8, 0);
    ok(first(two[0], numbers));
    refused(second(two[1], others), ncclInvalidUsage, why);
    EXPECT_EQ(ncclGetLastError(nullptr), refusal());
    for (int rank = 0; rank < 2; ++rank) {
        ncclResult_t error = ncclSuccess;
        ok(ncclCommGetAsyncError(two.ranks[rank].comm, &error));
        EXPECT_EQ(error, ncclInvalidUsage);
    }
    refused(first(two[0], numbers), ncclInvalidUsage, why);
    cuda::refused(cudaStreamSynchronize(two.ranks[0].stream), cudaErrorLaunchFailure, why);
}

TEST_F(FakesNccl, RanksThatDisagreeAreRefused) {
    const auto reduce = [](size_t count, ncclDataType_t type, ncclRedOp_t operation) {
        return [=](const Rank& r, float* p) { return ncclAllReduce(p, p, count, type, operation, r.comm, r.stream); };
    };
    const auto broadcast = [](int root) {
        return [=](const Rank& r, float* p) { return ncclBroadcast(p, p, 4, ncclFloat32, root, r.comm, r.stream); };
    };
    const auto one = reduce(4, ncclFloat32, ncclSum);
    expect_mismatch(
        one, reduce(5, ncclFloat32, ncclSum),
        "collective 1 of communicator 1 with 2 ranks: rank 1 gives ncclAllReduce of 5 float32 (sum), another rank gave "
        "ncclAllReduce of 4 float32 (sum)");
    expect_mismatch(one, reduce(4, ncclInt32, ncclSum), "rank 1 gives ncclAllReduce of 4 int32 (sum)");
    expect_mismatch(one, reduce(4, ncclFloat32, ncclMax), "rank 1 gives ncclAllReduce of 4 float32 (maximum)");
    expect_mismatch(one, broadcast(0), "rank 1 gives ncclBroadcast of 4 float32 from root 0");
    expect_mismatch(broadcast(1), broadcast(0), "another rank gave ncclBroadcast of 4 float32 from root 1");
    expect_mismatch([](const Rank& r, float* p) { return ncclSend(p, 3, ncclFloat32, 1, r.comm, r.stream); },
                    [](const Rank& r, float* p) { return ncclRecv(p, 4, ncclFloat32, 0, r.comm, r.stream); },
                    "transfer 1 of communicator 1 from rank 0 to rank 1: rank 1 gives ncclRecv of 4 float32, another rank gave "
                    "ncclSend of 3 float32");
}

TEST_F(FakesNccl, CollectiveIsCapturedByAllRanksOrNone) {
    TwoRanks two;
    float *const numbers = two[0].numbers(4, 0), *const others = two[1].numbers(4, 0);
    const Rank& r = two[0];
    cuda::ok(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeRelaxed));
    ok(ncclAllReduce(numbers, numbers, 4, ncclFloat32, ncclSum, r.comm, r.stream));
    cudaGraph_t graph = nullptr;
    cuda::ok(cudaStreamEndCapture(r.stream, &graph));
    cudaGraphExec_t executable = nullptr;
    cuda::ok(cudaGraphInstantiate(&executable, graph, 0));
    ok(ncclAllReduce(others, others, 4, ncclFloat32, ncclSum, two[1].comm, two[1].stream));
    cuda::refused(cudaGraphLaunch(executable, r.stream), cudaErrorLaunchFailure,
                  "rank 0 gives ncclAllReduce of 4 float32 (sum) in a graph, another rank gave ncclAllReduce of 4 float32 (sum)");
}

// ---- What never comes.

TEST_F(FakesNccl, RankThatDoesNotComeIsNamed) {
    on_ranks(3, [](const Rank& r) {
        if (r.rank == 1) return;
        float* const numbers = r.numbers(4, 0);
        ok(ncclAllReduce(numbers, numbers, 4, ncclFloat32, ncclSum, r.comm, r.stream));
        EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaErrorLaunchTimeout);
    });
    EXPECT_EQ(refusal(),
              "cudaStreamSynchronize: the host waits for what can never run: collective 1 of communicator 1 with 3 ranks: "
              "ncclAllReduce "
              "of 4 float32 (sum): ranks 0, 2 have come, ranks 1 have not");
}

TEST_F(FakesNccl, RanksThatWaitForEachOtherAreNoticed) {
    on_ranks(2, [](const Rank& r) {
        float* const number = r.numbers(1, 0);
        ok(ncclSend(number, 1, ncclFloat32, 1 - r.rank, r.comm, r.stream));
        ok(ncclRecv(number, 1, ncclFloat32, 1 - r.rank, r.comm, r.stream));
        EXPECT_EQ(cudaStreamSynchronize(r.stream), cudaErrorLaunchTimeout);
    });
}

TEST_F(FakesNccl, HostThatWaitsTooEarlyIsNoticed) {
    TwoRanks two;
    float* const numbers = two[0].numbers(1, 0);
    ok(ncclAllReduce(numbers, numbers, 1, ncclFloat32, ncclSum, two[0].comm, two[0].stream));
    cuda::refused(cudaStreamSynchronize(two[0].stream), cudaErrorLaunchTimeout, "ranks 0 have come, ranks 1 have not");
    EXPECT_EQ(cudaGetLastError(), cudaErrorLaunchTimeout) << "it is not cleared";
}

TEST_F(FakesNccl, NobodyIsExpectedInACommunicatorThatWasGivenUp) {
    set_device_count(1);
    ncclComm_t comm = nullptr;
    const ncclUniqueId id = new_id();
    ok(ncclGroupStart());
    ok(ncclCommInitRank(&comm, 3, id, 0));
    refused(ncclCommInitRank(&comm, 3, id, 1), ncclInvalidUsage, "on device 0");
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    TwoRanks two;
    float* const numbers = two[0].numbers(1, 0);
    ok(ncclAllReduce(numbers, numbers, 1, ncclFloat32, ncclSum, two[0].comm, two[0].stream));
    EXPECT_EQ(cudaStreamSynchronize(two[0].stream), cudaErrorLaunchTimeout) << "at once";
}

TEST_F(FakesNccl, RankThatNeverJoinsIsWaitedForWithPatience) {
    set_device_count(2);
    set_patience(std::chrono::milliseconds(50));
    ncclComm_t comm = nullptr;
    refused(ncclCommInitRank(&comm, 2, new_id(), 0), ncclSystemError, "communicator 1: 1 of 2 ranks have come to it");
}

// ---- Communicators.

TEST_F(FakesNccl, RanksOfADeviceAreLimited) {
    const auto result = [](int allowed) {
        reset(1);
        allow_ranks_per_device(allowed);
        const ncclUniqueId id = new_id();
        std::vector<ncclResult_t> results(2);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < 2; ++rank) {
            threads.emplace_back([&, rank] {
                ncclComm_t comm = nullptr;
                results[static_cast<size_t>(rank)] = ncclCommInitRank(&comm, 2, id, rank);
            });
        }
        for (std::thread& thread : threads) thread.join();
        return results;
    };
    EXPECT_EQ(result(1), (std::vector<ncclResult_t>{ncclInvalidUsage, ncclInvalidUsage}));
    EXPECT_NE(refusal().find("on device 0, as another rank is"), std::string::npos) << refusal();
    void* memory = nullptr;
    cuda::ok(cudaMalloc(&memory, 4));
    EXPECT_EQ(result(2), (std::vector<ncclResult_t>{ncclSuccess, ncclSuccess}));
}

TEST_F(FakesNccl, JoiningHasConditions) {
    ncclComm_t comm = nullptr;
    const ncclUniqueId id = new_id();
    refused(ncclCommInitRank(&comm, 2, id, 2), ncclInvalidArgument, "rank 2 of 2 ranks");
    refused(ncclCommInitRank(nullptr, 1, id, 0), ncclInvalidArgument, "null");
    refused(ncclCommInitRank(&comm, 1, {}, 0), ncclInvalidArgument, "the id is none of ncclGetUniqueId");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclInvalidArgument, "that do not block");
    ncclConfig_t raw = {};
    refused(ncclCommInitRankConfig(&comm, 1, id, 0, &raw), ncclInvalidArgument, "NCCL_CONFIG_INITIALIZER");
    config.blocking = 1;
    ok(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    refused(ncclCommInitRank(&comm, 1, id, 0), ncclInvalidUsage, "rank 0 has come already");

    const ncclUniqueId other = new_id();
    ok(ncclGroupStart());
    ok(ncclCommInitRank(&comm, 3, other, 0));
    refused(ncclCommInitRank(&comm, 2, other, 1), ncclInvalidUsage, "rank 1 says that there are 2 ranks, another said 3");
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
    set_driver({});
    EXPECT_EQ(ncclCommInitRank(&comm, 1, new_id(), 0), ncclUnhandledCudaError);
}

TEST_F(FakesNccl, SplitOrdersRanksByKey) {
    on_ranks(4, [](const Rank& r) {
        ncclComm_t part = nullptr, none = nullptr;
        ok(ncclCommSplit(r.comm, r.rank % 2, -r.rank, &part, nullptr));
        int count = 0, rank = -1;
        ok(ncclCommCount(part, &count));
        ok(ncclCommUserRank(part, &rank));
        EXPECT_EQ(count, 2);
        EXPECT_EQ(rank, r.rank < 2 ? 1 : 0);
        auto* const numbers = device_memory<float>(2);
        numbers[rank] = static_cast<float>(r.rank);
        ok(ncclAllGather(numbers + rank, numbers, 1, ncclFloat32, part, r.stream));
        r.finish();
        EXPECT_EQ(numbers[0], static_cast<float>(r.rank % 2 + 2));
        EXPECT_EQ(numbers[1], static_cast<float>(r.rank % 2));
        none = part;
        ok(ncclCommSplit(r.comm, r.rank == 0 ? 5 : NCCL_SPLIT_NOCOLOR, 0, &none, nullptr));
        EXPECT_EQ(none == nullptr, r.rank != 0);
        ok(ncclCommDestroy(part));
        EXPECT_EQ(ncclCommSplit(r.comm, -2, 0, &none, nullptr), ncclInvalidArgument);
    });
}

TEST_F(FakesNccl, FinalizeWaitsForWhatWasLaunched) {
    on_ranks(2, [](const Rank& r) {
        float* const number = r.numbers(1, 1);
        ok(ncclAllReduce(number, number, 1, ncclFloat32, ncclSum, r.comm, r.stream));
        ok(ncclCommFinalize(r.comm));
        EXPECT_EQ(*number, 2);
        EXPECT_EQ(ncclAllReduce(number, number, 1, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidUsage);
        ok(ncclCommDestroy(r.comm));
    });
    EXPECT_EQ(refusal(), "ncclAllReduce: the communicator was finalized");
    EXPECT_EQ(counts().host_waits, 2);
    ok(ncclCommDestroy(nullptr));
}

TEST_F(FakesNccl, DestroyWaitsToo) {
    on_ranks(2, [](const Rank& r) {
        float* const number = r.numbers(1, 1);
        ok(ncclAllReduce(number, number, 1, ncclFloat32, ncclSum, r.comm, r.stream));
        ok(ncclCommDestroy(r.comm));
        EXPECT_EQ(*number, 2);
    });
}

TEST_F(FakesNccl, AbortEndsWhatOthersWaitFor) {
    TwoRanks two;
    float* const numbers = two[0].numbers(1, 0);
    ok(ncclAllReduce(numbers, numbers, 1, ncclFloat32, ncclSum, two[0].comm, two[0].stream));
    ok(ncclCommAbort(two.ranks[1].comm));
    cuda::ok(cudaStreamSynchronize(two[0].stream));
    ncclResult_t error = ncclSuccess;
    ok(ncclCommGetAsyncError(two[0].comm, &error));
    EXPECT_EQ(error, ncclRemoteError);
    refused(ncclAllReduce(numbers, numbers, 1, ncclFloat32, ncclSum, two[0].comm, two[0].stream), ncclRemoteError,
            "rank 1 of communicator 1 has aborted");
    ok(ncclCommAbort(two.ranks[0].comm));
    refused(ncclCommAbort(two.ranks[0].comm), ncclInvalidArgument, "there is no communicator");
}

// ---- What a call must be like.

TEST_F(FakesNccl, BuffersAreMemoryOfTheDevice) {
    TwoRanks two;
    auto* const elsewhere = device_memory<float>(8);
    const Rank& r = two[0];
    auto* const memory = device_memory<float>(8);
    float host[8] = {};
    const auto gather = [&](const float* send, float* receive, size_t count) {
        return ncclAllGather(send, receive, count, ncclFloat32, r.comm, r.stream);
    };
    refused(gather(host, memory, 1), ncclInvalidArgument, "the buffer to send: this is no memory of a device");
    refused(gather(memory, elsewhere, 1), ncclInvalidArgument, "the buffer to receive: this is memory of another device");
    refused(gather(memory, nullptr, 1), ncclInvalidArgument, "the buffer to receive is null");
    refused(gather(device_memory<float>(8), memory, 5), ncclInvalidArgument,
            "ncclAllGather: the buffer to receive: 40 bytes at offset 0 leave their allocation of 32 bytes");
    refused(gather(memory + 1, memory, 2), ncclInvalidArgument, "overlap");
    refused(ncclReduceScatter(memory, memory + 1, 2, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidArgument, "overlap");
    refused(ncclAllReduce(memory, memory + 1, 2, ncclFloat32, ncclSum, r.comm, r.stream), ncclInvalidArgument, "overlap");
}

TEST_F(FakesNccl, ArgumentsAreChecked) {
    TwoRanks two;
    const cudaStream_t elsewhere = two.ranks[1].stream;
    const Rank& r = two[0];
    auto* const p = device_memory<float>(8);
    refused(ncclAllReduce(p, p, 1, ncclFloat32, ncclSum, nullptr, r.stream), ncclInvalidArgument, "there is no communicator");
    refused(ncclAllReduce(p, p, 1, ncclFloat32, ncclSum, r.comm, elsewhere), ncclInvalidArgument,
            "the stream is of another device");
    refused(ncclAllReduce(p, p, 1, ncclFloat32, ncclSum, r.comm, nullptr), ncclInvalidArgument, "default stream");
    refused(ncclAllReduce(p, p, 1, ncclFloat8e4m3, ncclSum, r.comm, r.stream), ncclInvalidArgument, "does not know type 10");
    refused(ncclAllReduce(p, p, 1, ncclFloat32, static_cast<ncclRedOp_t>(7), r.comm, r.stream), ncclInvalidArgument,
            "does not know operation 7");
    refused(ncclBroadcast(p, p, 1, ncclFloat32, 2, r.comm, r.stream), ncclInvalidArgument, "there is no rank 2, there are 2");
    refused(ncclSend(p, 1, ncclFloat32, -1, r.comm, r.stream), ncclInvalidArgument, "there is no rank -1");
    EXPECT_STREQ(ncclGetErrorString(ncclInvalidArgument), "invalid argument (run with NCCL_DEBUG=WARN for details)");
}

TEST_F(FakesNccl, GroupsHaveRules) {
    refused(ncclGroupEnd(), ncclInvalidUsage, "no group has begun");
    TwoRanks two;
    const Rank& r = two[0];
    auto* const p = device_memory<float>(8);
    ok(ncclGroupStart());
    ok(ncclAllReduce(p, p, 1, ncclFloat32, ncclSum, r.comm, r.stream));
    refused(ncclAllReduce(p, p, 1, ncclFloat32, ncclSum, r.comm, new_stream()), ncclInvalidUsage,
            "one stream for each communicator");
    refused(ncclGroupEnd(), ncclInvalidUsage, "none is done");
    cuda::ok(cudaStreamSynchronize(r.stream));
    EXPECT_EQ(counts().launches, 0);

    ok(ncclGroupStart());
    ncclComm_t comm = nullptr;
    ok(ncclCommInitRank(&comm, 1, new_id(), 0));
    ok(ncclAllReduce(p, p, 1, ncclFloat32, ncclSum, r.comm, r.stream));
    refused(ncclGroupEnd(), ncclInvalidUsage, "makes communicators and uses others");

    ok(ncclGroupStart());
    ok(ncclGroupStart());
    for (int rank = 0; rank < 2; ++rank) {
        float* const numbers = two[rank].numbers(1, 1);
        ok(ncclAllReduce(numbers, numbers, 1, ncclFloat32, ncclSum, two[rank].comm, two[rank].stream));
    }
    ok(ncclGroupEnd());
    EXPECT_EQ(counts().launches, 0) << "the inner end ends nothing";
    ok(ncclGroupEnd());
    EXPECT_EQ(counts().launches, 2);
    for (int rank = 0; rank < 2; ++rank) two[rank].finish();
}

}  // namespace
}  // namespace lockstep::fakes::cuda
