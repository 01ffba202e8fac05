// The local transport against plain loops: random shapes, groups, types, aliasing, grouped launches and two channels.
#include "comm/local.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/error.h"
#include "ranks.h"

namespace lockstep::comm {
namespace {

using test::all_ranks;
using test::run_ranks;

template <class T>
constexpr Type kType = std::is_same_v<T, float>    ? Type::Float32
                       : std::is_same_v<T, double> ? Type::Float64
                                                   : Type::Int32;

struct Shape {
    int64_t outer, dim, inner;
    int64_t elements() const { return outer * dim * inner; }
};

// The same values on every rank that asks: element i of rank's tensor in a given case.
template <class T>
std::vector<T> values(unsigned seed, int rank, int64_t count) {
    std::mt19937 random(seed * 1000 + static_cast<unsigned>(rank));
    std::vector<T> result(static_cast<size_t>(count));
    for (T& value : result) value = static_cast<T>(static_cast<double>(random()) / 7919.0 - 200000);
    return result;
}

template <class T>
T reduced(ReduceOp op, const std::vector<std::vector<T>>& ins, int64_t at) {
    T result = ins[0][static_cast<size_t>(at)];
    for (size_t k = 1; k < ins.size(); ++k) {
        const T next = ins[k][static_cast<size_t>(at)];
        result = op == ReduceOp::Sum ? result + next : std::max(result, next);
    }
    return result;
}

template <class T>
std::vector<T> expect_gather(const std::vector<std::vector<T>>& blocks, Shape s) {
    const auto n = static_cast<int64_t>(blocks.size());
    std::vector<T> out(static_cast<size_t>(s.elements() * n));
    for (int64_t o = 0; o < s.outer; ++o)
        for (int64_t d = 0; d < s.dim * n; ++d)
            for (int64_t i = 0; i < s.inner; ++i)
                out[static_cast<size_t>((o * s.dim * n + d) * s.inner + i)] =
                    blocks[static_cast<size_t>(d / s.dim)][static_cast<size_t>((o * s.dim + d % s.dim) * s.inner + i)];
    return out;
}

template <class T>
std::vector<T> expect_scatter(ReduceOp op, const std::vector<std::vector<T>>& ins, Shape s, int position) {
    const auto n = static_cast<int64_t>(ins.size());
    std::vector<T> out(static_cast<size_t>(s.elements()));
    for (int64_t o = 0; o < s.outer; ++o)
        for (int64_t d = 0; d < s.dim; ++d)
            for (int64_t i = 0; i < s.inner; ++i)
                out[static_cast<size_t>((o * s.dim + d) * s.inner + i)] =
                    reduced(op, ins, (o * s.dim * n + position * s.dim + d) * s.inner + i);
    return out;
}

// Bits, not values: what the contract promises.
template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// All kinds on one group in one launch, out of place and in place; true if every result has the expected bits.
template <class T>
bool round_is_right(Communicator& comm, int channel, GroupId group, const std::vector<int>& ranks, Shape s, ReduceOp op,
                    unsigned seed) {
    const int position = comm.position(group);
    const auto n = static_cast<int64_t>(ranks.size());
    std::vector<std::vector<T>> blocks, wholes;
    for (int rank : ranks) {
        blocks.push_back(values<T>(seed, rank, s.elements()));
        wholes.push_back(values<T>(seed + 1, rank, s.elements() * n));
    }
    const std::vector<T>& block = blocks[static_cast<size_t>(position)];
    const std::vector<T>& whole = wholes[static_cast<size_t>(position)];

    std::vector<T> gathered(whole.size()), scattered(block.size()), sum(block.size()), sum_in_place = block;
    std::vector<T> added = block, gathered_in_place(whole.size()), scattered_in_place = whole;
    T* own = gathered_in_place.data() + position * s.elements();
    std::copy(block.begin(), block.end(), own);
    T* own_scattered = scattered_in_place.data() + position * s.elements();
    const Type type = kType<T>;
    const Request requests[] = {
        all_gather(type, block.data(), gathered.data(), s.outer, s.dim, s.inner),
        reduce_scatter(type, whole.data(), scattered.data(), s.outer, s.dim, s.inner, op),
        reduce_scatter_into(type, whole.data(), added.data(), s.outer, s.dim, s.inner, op),
        all_reduce(type, block.data(), sum.data(), s.elements(), op),
        all_reduce(type, sum_in_place.data(), sum_in_place.data(), s.elements(), op),
        all_gather(type, own, gathered_in_place.data(), 1, s.elements(), 1),
        reduce_scatter(type, scattered_in_place.data(), own_scattered, 1, s.elements(), 1, op),
    };
    comm.run(channel, group, requests);

    std::vector<T> expect_sum(block.size()), expect_added = expect_scatter(op, wholes, s, position);
    for (size_t i = 0; i < block.size(); ++i) {
        expect_sum[i] = reduced(op, blocks, static_cast<int64_t>(i));
        expect_added[i] = op == ReduceOp::Sum ? block[i] + expect_added[i] : std::max(block[i], expect_added[i]);
    }
    const Shape flat{1, s.elements(), 1};
    return same_bits(gathered, expect_gather(blocks, s)) && same_bits(scattered, expect_scatter(op, wholes, s, position)) &&
           same_bits(added, expect_added) && same_bits(sum, expect_sum) && same_bits(sum_in_place, expect_sum) &&
           same_bits(gathered_in_place, expect_gather(blocks, flat)) &&
           same_bits({own_scattered, own_scattered + s.elements()}, expect_scatter(op, wholes, flat, position));
}

bool round_is_right(Communicator& comm, int channel, GroupId group, const std::vector<int>& ranks, Shape s, unsigned seed) {
    const ReduceOp op = seed % 2 ? ReduceOp::Max : ReduceOp::Sum;
    switch (seed % 3) {
        case 0: return round_is_right<float>(comm, channel, group, ranks, s, op, seed);
        case 1: return round_is_right<double>(comm, channel, group, ranks, s, op, seed);
        default: return round_is_right<int32_t>(comm, channel, group, ranks, s, op, seed);
    }
}

Shape random_shape(std::mt19937& random) {
    return {static_cast<int64_t>(random() % 4), static_cast<int64_t>(1 + random() % 17), static_cast<int64_t>(1 + random() % 9)};
}

TEST(CommLocal, MatchesPlainLoopsForOneToSixRanks) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
        World world(ranks);
        std::atomic<int> wrong = 0;
        const auto errors = run_ranks(world, [&](Communicator& comm) {
            const GroupId group = comm.add_group(all_ranks(ranks));
            std::mt19937 random(static_cast<unsigned>(ranks));
            for (unsigned seed = 0; seed < 60; ++seed) {
                const Shape shape = random_shape(random);
                if (!round_is_right(comm, 0, group, all_ranks(ranks), shape, seed)) ++wrong;
            }
        });
        EXPECT_EQ(wrong, 0) << ranks << " ranks";
        EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(ranks)));
    }
}

TEST(CommLocal, MatchesPlainLoopsOverSeveralChunks) {
    World world(3);
    std::atomic<int> wrong = 0;
    run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1, 2});
        for (const Shape shape : {Shape{2, 7, 3001}, Shape{1, 50001, 1}, Shape{3000, 1, 5}}) {
            for (unsigned seed = 0; seed < 6; ++seed) {
                if (!round_is_right(comm, 1, group, {0, 1, 2}, shape, seed)) ++wrong;
            }
        }
    });
    EXPECT_EQ(wrong, 0);
}

TEST(CommLocal, DisjointStridedGroupsAndOverlappingOnesTakeTurns) {
    World world(6);
    std::atomic<int> wrong = 0;
    const auto errors = run_ranks(world, [&](Communicator& comm) {
        const int r = comm.rank();
        const std::vector<int> rows = {r / 3 * 3, r / 3 * 3 + 1, r / 3 * 3 + 2}, columns = {r % 3 + 3, r % 3};  // descending
        const GroupId row = comm.add_group(rows), column = comm.add_group(columns), self = comm.add_group({r});
        const GroupId world_group = comm.add_group(all_ranks(6));
        EXPECT_EQ(comm.position(column), r < 3 ? 1 : 0);
        EXPECT_EQ(comm.members(row), 3);
        std::mt19937 random(5);
        for (unsigned seed = 0; seed < 40; ++seed) {
            const Shape shape = random_shape(random);
            const bool right = round_is_right(comm, 0, row, rows, shape, seed) &&
                               round_is_right(comm, 0, column, columns, shape, seed) &&
                               round_is_right(comm, 0, self, {r}, shape, seed) &&
                               round_is_right(comm, 0, world_group, all_ranks(6), shape, seed);
            if (!right) ++wrong;
        }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(errors, std::vector<std::string>(6));
}

TEST(CommLocal, TwoChannelsOfOneGroupRunAtTheSameTime) {
    World world(3);
    std::atomic<int> wrong = 0;
    run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1, 2});
        const auto rounds = [&](int channel) {
            std::mt19937 random(static_cast<unsigned>(channel));
            for (unsigned seed = 0; seed < 200; ++seed) {
                const unsigned own_seed = seed + 10000 * static_cast<unsigned>(channel);
                if (!round_is_right(comm, channel, group, {0, 1, 2}, random_shape(random), own_seed)) ++wrong;
                if (seed % 7 == 0) comm.barrier(channel, group);
            }
        };
        std::thread communication(rounds, 1);
        rounds(0);
        communication.join();
    });
    EXPECT_EQ(wrong, 0);
}

TEST(CommLocal, AThousandRoundsOfReusedBuffers) {
    World world(4);
    std::atomic<int> wrong = 0;
    run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group(all_ranks(4));
        std::vector<int32_t> value(100), gathered(400);
        for (int32_t round = 0; round < 1000; ++round) {
            for (int32_t& v : value) v = round + comm.rank();
            comm.run(0, group, all_gather(Type::Int32, value.data(), gathered.data(), 1, 100, 1));
            comm.run(0, group, all_reduce(Type::Int32, value.data(), value.data(), 100));
            for (size_t i = 0; i < 400; ++i) wrong += gathered[i] != round + static_cast<int32_t>(i / 100);
            for (int32_t v : value) wrong += v != 4 * round + 6;
        }
    });
    EXPECT_EQ(wrong, 0);
}

TEST(CommLocal, MaximumIsTheFirstNanOnEveryRank) {
    World world(4);
    std::atomic<int> wrong = 0;
    run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group(all_ranks(4));
        std::vector<float> value(37, static_cast<float>(comm.rank()));
        const uint32_t bits = 0x7fc00000u + static_cast<uint32_t>(comm.rank());  // a NaN that tells its rank
        if (comm.rank() == 1 || comm.rank() == 2) std::memcpy(&value[20], &bits, sizeof bits);
        if (comm.rank() == 3) value[5] = std::numeric_limits<float>::infinity();
        comm.run(0, group, all_reduce(Type::Float32, value.data(), value.data(), 37, ReduceOp::Max));
        uint32_t got = 0;
        std::memcpy(&got, &value[20], sizeof got);
        wrong += got != 0x7fc00001u || value[5] != std::numeric_limits<float>::infinity() || value[36] != 3;
    });
    EXPECT_EQ(wrong, 0);
}

TEST(CommLocal, LinkModelHoldsALaunchBack) {
    World world(2, {{.bandwidth_bytes_per_s = 4e6, .latency_s = 0.01}});
    std::atomic<int> wrong = 0;
    run_ranks(world, [&](Communicator& comm) {
        const GroupId group = comm.add_group({0, 1});
        std::vector<float> block(10000, 1), whole(20000);  // 40 kB over the link: 10 ms and one step of 10 ms
        const auto began = std::chrono::steady_clock::now();
        comm.run(0, group, all_gather(Type::Float32, block.data(), whole.data(), 1, 10000, 1));
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        wrong += took.count() < 0.0199;
    });
    EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace lockstep::comm
