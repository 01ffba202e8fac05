// What stops all ranks of every transport: abort, mismatched launches, requests that cannot run. Nobody hangs, all say the same.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "base/error.h"
#include "tests/comm/jobs.h"

namespace lockstep::comm::test {
namespace {

TEST_P(CommFailure, AbortReleasesWaitersAndRefusesLaterLaunches) {
    const int n = GetParam().ranks();
    std::atomic<int> later = 0;
    const Errors errors = GetParam().run([&](Communicator& comm) {
        const GroupId all = comm.add_group(all_ranks(n)), self = comm.add_group({comm.rank()});
        comm.barrier(0, all);
        if (comm.rank() == n - 1) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the others are asleep by then
            comm.abort("rank 2: loss is not finite");
            comm.abort("a second reason");
        }
        try {
            comm.barrier(1, all);
        } catch (const Aborted&) {
            ++later;
        }
        EXPECT_THROW(comm.add_group({comm.rank(), (comm.rank() + 1) % n}), Aborted);
        comm.barrier(0, self);
    });
    EXPECT_EQ(later, static_cast<int>(errors.size()));
    expect_all(errors, "rank 2: loss is not finite");
}

// Buffers die with their ranks' threads: under ASan and TSan this shows that no one leaves a launch that others are in.
TEST_P(CommFailure, AbortAtAnyMomentStopsEveryRank) {
    const int n = GetParam().ranks(), half = n / 2;
    for (int attempt = 0; attempt < 30; ++attempt) {
        const Errors errors = GetParam().run([&](Communicator& comm) {
            const GroupId all = comm.add_group(all_ranks(n));
            const int other = comm.rank() < half ? comm.rank() + half : comm.rank() - half;
            const GroupId pair = comm.add_group({std::min(comm.rank(), other), std::max(comm.rank(), other)});
            std::vector<float> value(5000, 1), sent(5000), received(5000);
            for (int round = 0;; ++round) {
                comm.run(0, all, all_reduce(Dtype::F32, value.data(), value.data(), 5000, ReduceOp::Max));
                comm.run(1, pair, all_reduce(Dtype::F32, value.data(), value.data(), 5000, ReduceOp::Max));
                comm.run(1, pair,
                         comm.rank() < half ? send(Dtype::F32, sent.data(), 5000) : recv(Dtype::F32, received.data(), 5000));
                if (comm.rank() == attempt % n && round == attempt % 9) comm.abort("stop");
                if (comm.rank() < half) comm.wait(1, pair);
            }
        });
        expect_all(errors, "stop");
    }
}

// The first reason is everybody's, whichever that is.
TEST_P(CommFailure, OfSeveralReasonsAllRanksSayTheSame) {
    const int n = GetParam().ranks();
    for (int attempt = 0; attempt < 10; ++attempt) {
        const Errors errors = GetParam().run([&](Communicator& comm) {
            const GroupId all = comm.add_group(all_ranks(n));
            comm.barrier(0, all);
            comm.abort(fmt::format("rank {} failed", comm.rank()));
            comm.barrier(0, all);
        });
        expect_all(errors, errors.begin()->second);
    }
}

// Members of a launch in a group of up to three ranks, others idle.
std::vector<int> group_of(const Job& job) {
    if (job.ranks() >= 5) return {0, 2, 4};
    return job.ranks() >= 3 ? std::vector{0, 1, job.ranks() - 1} : std::vector{0, 1};
}

using Launch = std::function<std::vector<Request>(int position, float* in, float* out)>;

Errors launch_different(const Job& job, const std::vector<int>& ranks, const Launch& requests) {
    return job.run([&](Communicator& comm) {
        if (std::find(ranks.begin(), ranks.end(), comm.rank()) == ranks.end()) return;
        const GroupId group = comm.add_group(ranks);
        std::vector<float> in(64), out(64);
        comm.run(1, group, requests(comm.position(group), in.data(), out.data()));
        ADD_FAILURE() << "the launch returned";
    });
}

// Position 0 and `other` are named.
void expect_named(const Errors& errors, const std::vector<int>& ranks, const std::string& first, int other,
                  const std::string& second) {
    const std::string text = fmt::format("ranks launched different collectives in group {} on channel 1: rank {} {}, rank {} {}",
                                         ranks, ranks[0], first, ranks[static_cast<size_t>(other)], second);
    for (const auto& [rank, error] : errors)
        EXPECT_EQ(error, std::find(ranks.begin(), ranks.end(), rank) == ranks.end() ? "" : text) << "rank " << rank;
}

TEST_P(CommFailure, DifferentShapesStopAllMembersWithOneMessage) {
    const std::vector<int> ranks = group_of(GetParam());
    const int last = static_cast<int>(ranks.size()) - 1;
    const auto errors = launch_different(GetParam(), ranks, [&](int position, float* in, float* out) -> std::vector<Request> {
        const int64_t dim = position == last ? 4 : 3;
        return {all_reduce(Dtype::F32, in, out, 8), all_gather(Dtype::F32, in, out, 2, dim, 1)};
    });
    expect_named(errors, ranks, "all_gather f32 [2, 3, 1] as request 2 of 2", last, "all_gather f32 [2, 4, 1] as request 2 of 2");
}

TEST_P(CommFailure, DifferentKindsTypesAndOpsAreNamed) {
    const std::vector<int> ranks = group_of(GetParam());
    const auto kinds = launch_different(GetParam(), ranks, [](int position, float* in, float* out) -> std::vector<Request> {
        if (position == 1) return {reduce_scatter(Dtype::F32, in, out, 1, 4, 2, ReduceOp::Max)};
        return {all_gather(Dtype::F32, in, out, 1, 4, 2)};
    });
    expect_named(kinds, ranks, "all_gather f32 [1, 4, 2] as request 1 of 1", 1,
                 "reduce_scatter max f32 [1, 4, 2] as request 1 of 1");
    const auto types = launch_different(GetParam(), ranks, [](int position, float* in, float* out) -> std::vector<Request> {
        return {all_reduce(position == 0 ? Dtype::I32 : Dtype::F64, in, out, 4)};
    });
    expect_named(types, ranks, "all_reduce sum i32 [1, 4, 1] as request 1 of 1", 1,
                 "all_reduce sum f64 [1, 4, 1] as request 1 of 1");
}

TEST_P(CommFailure, DifferentNumbersOfRequestsAreNamed) {
    const std::vector<int> ranks = group_of(GetParam());
    const auto errors = launch_different(GetParam(), ranks, [](int position, float* in, float* out) -> std::vector<Request> {
        std::vector<Request> requests = {all_reduce(Dtype::F32, in, out, 8)};
        if (position != 1) requests.push_back(all_reduce(Dtype::F32, in + 8, out + 8, 8));
        return requests;
    });
    expect_named(errors, ranks, "all_reduce sum f32 [1, 8, 1] as request 2 of 2", 1, "1 requests only");
    const auto barrier = launch_different(GetParam(), ranks, [](int position, float* in, float* out) -> std::vector<Request> {
        if (position == 0) return {};
        return {all_reduce(Dtype::F32, in, out, 8)};
    });
    expect_named(barrier, ranks, "a barrier", 1, "all_reduce sum f32 [1, 8, 1] as request 1 of 1");
}

TEST_P(CommFailure, AReceiveOfAnotherSizeThanItsSendIsNamed) {
    const std::vector<int> ranks = {0, GetParam().ranks() - 1};
    const Errors errors = GetParam().run([&](Communicator& comm) {
        if (comm.rank() != ranks[0] && comm.rank() != ranks[1]) return;
        const GroupId pair = comm.add_group(ranks);
        std::vector<float> in(4000), out(4000);
        comm.run(1, pair, comm.position(pair) == 0 ? send(Dtype::F32, in.data(), 4000) : recv(Dtype::F32, out.data(), 3999));
        if (comm.position(pair) == 0) comm.wait(1, pair);  // may return: the message was on its way
        comm.barrier(1, pair);
        ADD_FAILURE() << "the launch returned";
    });
    expect_named(errors, ranks, "send f32 [1, 4000, 1] as request 1 of 1", 1, "recv f32 [1, 3999, 1] as request 1 of 1");
}

TEST_P(CommFailure, ARequestThatCannotRunStopsAllRanks) {
    const int n = GetParam().ranks();
    const Errors errors = GetParam().run([&](Communicator& comm) {
        const GroupId all = comm.add_group(all_ranks(n));
        std::vector<float> data(16);
        float* out = comm.rank() == 1 ? data.data() + 2 : data.data();
        comm.run(0, all, all_reduce(Dtype::F32, data.data(), out, 8));
    });
    expect_all(errors,
               "rank 1 launched a collective that cannot run: all_reduce sum f32 [1, 8, 1]: in and out overlap other than in "
               "place");
}

// One of a pair launches `requests` until it is refused; the other waits for it on the other channel.
Errors launch_until_refused(const Job& job, const std::vector<int>& pair, int who, const std::vector<Request>& requests) {
    return job.run([&](Communicator& comm) {
        if (comm.rank() != pair[0] && comm.rank() != pair[1]) return;
        const GroupId group = comm.add_group(pair);
        if (comm.rank() != who) comm.barrier(0, group);
        while (true) comm.run(1, group, requests);
    });
}

TEST_P(CommFailure, SendsHaveLaunchesOfTheirOwnAndALimit) {
    const int last = GetParam().ranks() - 1;
    const std::vector<int> pair = {0, last};
    std::vector<float> in(4), out(4);
    const Request sent = send(Dtype::F32, in.data(), 4), received = recv(Dtype::F32, out.data(), 4),
                  sum = all_reduce(Dtype::F32, in.data(), out.data(), 4);
    const auto expect_refused = [&](int who, const std::vector<Request>& requests, const std::string& why) {
        for (const auto& [rank, error] : launch_until_refused(GetParam(), pair, who, requests)) {
            const bool idle = rank != 0 && rank != last;
            EXPECT_EQ(error, idle ? "" : fmt::format("rank {} launched a collective that cannot run: {}", who, why));
        }
    };
    for (int who : pair) {
        const Request one = who == 0 ? sent : received;
        const std::string name = who == 0 ? "send" : "recv";
        expect_refused(who, {one, sum}, name + " and other collectives in one launch");
        expect_refused(who, {sum, one}, name + " and other collectives in one launch");
        expect_refused(who, std::vector<Request>(65, one), "65 of " + name + " in one launch, which has 64 at most");
    }
    expect_refused(0, {sent}, "more than 64 launches of sends in flight");
    expect_refused(0, {received}, "recv f32 [1, 4, 1]: the first of two members sends");
    expect_refused(last, {sent}, "send f32 [1, 4, 1]: the second of two members receives");
    expect_refused(0, {Request{.kind = Collective::Wait}}, "wait: nothing was sent");
}

// Before anything is sent: of a group over several processes, too.
TEST_P(CommFailure, RootsAndShiftsOutOfRangeAreRefused) {
    const int n = GetParam().ranks();
    const auto refused = [&](const std::function<Request(float*, float*)>& request) {
        std::string text;
        const Errors errors = GetParam().run([&](Communicator& comm) {
            const GroupId all = comm.add_group(all_ranks(n));
            std::vector<float> in(8), out(8);
            if (comm.rank() != 1) comm.barrier(0, all);
            else comm.run(0, all, request(in.data(), out.data()));
        });
        for (const auto& [rank, error] : errors) text = error;
        expect_all(errors, text);
        return text;
    };
    const std::string begin = "rank 1 launched a collective that cannot run: ";
    EXPECT_EQ(refused([&](float* in, float* out) { return broadcast(Dtype::F32, in, out, 8, n); }),
              fmt::format("{}broadcast f32 [1, 8, 1] from {}: a root at position {} of {}", begin, n, n, n));
    EXPECT_EQ(refused([&](float* in, float* out) { return broadcast(Dtype::F32, in, out, 8, -1); }),
              fmt::format("{}broadcast f32 [1, 8, 1] from -1: a root at position -1 of {}", begin, n));
    EXPECT_EQ(refused([&](float* in, float* out) { return permute(Dtype::F32, in, out, 8, n); }),
              fmt::format("{}permute f32 [1, 8, 1] by {}: a shift by {} among {} members", begin, n, n, n));
    EXPECT_EQ(refused([&](float* in, float* out) { return all_to_all(Dtype::F32, in, out, 1, 1, 1, 3); }),
              fmt::format("{}all_to_all f32 [1, 1, 1] into [3, ..]: results of 3 rows, which do not divide a block", begin));
}

TEST_P(CommFailure, DifferentRootsAndShiftsAreNamed) {
    const std::vector<int> ranks = group_of(GetParam());
    const int last = static_cast<int>(ranks.size()) - 1;
    const auto roots = launch_different(GetParam(), ranks, [&](int position, float* in, float* out) -> std::vector<Request> {
        return {broadcast(Dtype::F32, in, out, 4, position == last ? 1 : 0)};
    });
    expect_named(roots, ranks, "broadcast f32 [1, 4, 1] from 0 as request 1 of 1", last,
                 "broadcast f32 [1, 4, 1] from 1 as request 1 of 1");
    const auto shifts = launch_different(GetParam(), ranks, [&](int position, float* in, float* out) -> std::vector<Request> {
        return {permute(Dtype::F32, in, out, 4, position == last ? 0 : 1)};
    });
    expect_named(shifts, ranks, "permute f32 [1, 4, 1] by 1 as request 1 of 1", last,
                 "permute f32 [1, 4, 1] by 0 as request 1 of 1");
}

TEST(CommRequest, RefusalNamesWhatIsWrong) {
    float data[64] = {};
    EXPECT_EQ(refusal(all_reduce(Dtype::F32, data, data, -1), 0, 2), "a negative extent");
    EXPECT_EQ(refusal(all_reduce(Dtype::F32, nullptr, data, 1), 0, 2), "a null buffer");
    EXPECT_EQ(refusal(all_reduce(Dtype::F32, nullptr, nullptr, 0), 0, 2), "");
    EXPECT_EQ(refusal(all_gather(Dtype::F32, data + 4, data, 1, 4, 1), 1, 2), "");
    EXPECT_EQ(refusal(all_gather(Dtype::F32, data + 4, data, 1, 4, 1), 0, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(all_gather(Dtype::F32, data + 4, data, 2, 2, 1), 1, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(reduce_scatter(Dtype::F64, data, data + 16, 1, 8, 1), 1, 2), "");
    Request request = all_reduce(Dtype::F32, data, data, 4);
    request.accumulate = true;
    EXPECT_EQ(refusal(request, 0, 2), "accumulate outside of reduce_scatter");
    for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
        Request r;
        r.kind = traits.kind, r.accumulate = true;
        EXPECT_EQ(refusal(r, 0, 2), traits.kind == Collective::ReduceScatter ? "" : "accumulate outside of reduce_scatter");
        r.accumulate = false;
        r.algorithm = mesh::CollectiveAlgorithm{};
        const std::string why = refusal(r, traits.kind == Collective::Recv ? 1 : 0, 2);
        EXPECT_EQ(why, traits.has_algorithm() ? "" : "an algorithm, although this kind of collective has only one");
    }
    EXPECT_EQ(refusal(broadcast(Dtype::F32, nullptr, data, 4, 1), 0, 2), "");
    EXPECT_EQ(refusal(broadcast(Dtype::F32, nullptr, data, 4, 1), 1, 2), "a null buffer");
    EXPECT_EQ(refusal(broadcast(Dtype::F32, data, data, 4, 1), 1, 2), "");
    EXPECT_EQ(refusal(broadcast(Dtype::F32, data, data + 1, 4, 1), 1, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(all_to_all(Dtype::F32, data, data, 1, 4, 1, 1), 0, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(permute(Dtype::F32, data, data, 4, 1), 0, 2), "in and out overlap other than in place");
    EXPECT_EQ(refusal(send(Dtype::F32, data, 4), 0, 3), "a send among 3 members");
}

}  // namespace
}  // namespace lockstep::comm::test
