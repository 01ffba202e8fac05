// What every transport does: against plain loops, and bit for bit what the local transport does; random shapes, groups, types,
// aliasing, grouped launches and two channels.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "base/bfloat16.h"
#include "base/float16.h"
#include "base/float8.h"
#include "comm/launch.h"
#include "tests/comm/jobs.h"

namespace lockstep::comm::test {
namespace {

template <class T>
constexpr Dtype kType = std::is_same_v<T, float>    ? Dtype::F32
                        : std::is_same_v<T, double> ? Dtype::F64
                                                    : Dtype::I32;

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
    const Dtype type = kType<T>;
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

template <class Make>
void put_elements(std::vector<std::byte>& buffer, Make make) {
    using T = decltype(make());
    for (size_t at = 0; at + sizeof(T) <= buffer.size(); at += sizeof(T)) {
        const T value = make();
        std::memcpy(buffer.data() + at, &value, sizeof value);
    }
}

void fill_whole_numbers(std::vector<std::byte>& buffer, Dtype type, int number) {
    switch (type) {
        case Dtype::F32: return put_elements(buffer, [&] { return static_cast<float>(number); });
        case Dtype::F64: return put_elements(buffer, [&] { return static_cast<double>(number); });
        case Dtype::I32: return put_elements(buffer, [&] { return static_cast<int32_t>(number); });
        case Dtype::BF16: return put_elements(buffer, [&] { return Bf16(static_cast<float>(number)); });
        case Dtype::F16: return put_elements(buffer, [&] { return F16(static_cast<float>(number)); });
        case Dtype::I8: return put_elements(buffer, [&] { return static_cast<int8_t>(number); });
        case Dtype::F8E4M3: return put_elements(buffer, [&] { return F8E4M3(static_cast<float>(number)); });
        case Dtype::F8E5M2: return put_elements(buffer, [&] { return F8E5M2(static_cast<float>(number)); });
        case Dtype::E8M0: return put_elements(buffer, [&] { return E8M0(static_cast<float>(number)); });
    }
}

// Finite values of a type, whose sums depend on their order.
void fill(std::vector<std::byte>& buffer, Dtype type, std::mt19937& random) {
    const auto put = [&](auto make) { put_elements(buffer, make); };
    const auto number = [&] {
        const double mantissa = static_cast<double>(random()) - 2e9;
        return std::ldexp(mantissa, static_cast<int>(random() % 24) - 12);
    };
    switch (type) {
        case Dtype::F32: return put([&] { return static_cast<float>(number()); });
        case Dtype::F64: return put([&] { return number(); });
        case Dtype::I32: return put([&] { return static_cast<int32_t>(random()); });
        case Dtype::BF16: return put([&] { return Bf16(static_cast<float>(number())); });
        case Dtype::F16: return put([&] { return F16(static_cast<float>(number() / 0x1p28)); });  // so that sums are finite
        case Dtype::I8: return put([&] { return static_cast<int8_t>(random()); });
        case Dtype::F8E4M3: return put([&] { return F8E4M3(number()); });
        case Dtype::F8E5M2: return put([&] { return F8E5M2(number()); });
        case Dtype::E8M0: return put([&] { return E8M0(std::abs(number())); });
    }
}

TEST_P(Comm, MatchesPlainLoopsForGroupsOfAllSizes) {
    const int ranks = GetParam().ranks();
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        for (int members = comm.rank() + 1; members <= ranks; ++members) {
            const GroupId group = comm.add_group(all_ranks(members));
            std::mt19937 random(static_cast<unsigned>(members));
            for (unsigned seed = 0; seed < 30; ++seed) {
                if (!round_is_right(comm, 0, group, all_ranks(members), random_shape(random), seed)) ++wrong;
            }
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

TEST_P(Comm, MatchesPlainLoopsOverSeveralPieces) {
    const std::vector<int> ranks = all_ranks(GetParam().ranks());
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group(ranks);
        std::vector<Shape> shapes = {{2, 7, 1001}, {1000, 1, 5}};
        if (ranks.size() <= 3) shapes.push_back({1, 50001, 1});
        for (const Shape& shape : shapes) {
            for (unsigned seed = 0; seed < 3; ++seed) {
                if (!round_is_right(comm, 1, group, ranks, shape, seed)) ++wrong;
            }
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

TEST_P(Comm, DisjointStridedGroupsAndOverlappingOnesTakeTurns) {
    const int half = GetParam().ranks() / 2;
    if (GetParam().ranks() % 2) GTEST_SKIP() << "an even number of ranks only";
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const int r = comm.rank();
        std::vector<int> rows;
        for (int k = 0; k < half; ++k) rows.push_back(r / half * half + k);
        const std::vector<int> columns = {r % half + half, r % half};  // descending
        const GroupId row = comm.add_group(rows), column = comm.add_group(columns), self = comm.add_group({r});
        const GroupId world_group = comm.add_group(all_ranks(2 * half));
        EXPECT_EQ(comm.position(column), r < half ? 1 : 0);
        EXPECT_EQ(comm.members(row), half);
        std::mt19937 random(5);
        for (unsigned seed = 0; seed < 40; ++seed) {
            const Shape shape = random_shape(random);
            const bool right = round_is_right(comm, 0, row, rows, shape, seed) &&
                               round_is_right(comm, 0, column, columns, shape, seed) &&
                               round_is_right(comm, 0, self, {r}, shape, seed) &&
                               round_is_right(comm, 0, world_group, all_ranks(2 * half), shape, seed);
            if (!right) ++wrong;
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

// Members of a process then do not follow each other in the group.
TEST_P(Comm, GroupsMayListRanksInAnyOrder) {
    std::vector<int> ranks = all_ranks(GetParam().ranks());
    std::mt19937 order(3);
    std::atomic<int> wrong = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {
        std::shuffle(ranks.begin(), ranks.end(), order);
        const auto errors = GetParam().run([&](Communicator& comm) {
            const GroupId group = comm.add_group(ranks);
            std::mt19937 random(7);
            for (unsigned seed = 0; seed < 20; ++seed) {
                if (!round_is_right(comm, 0, group, ranks, random_shape(random), seed)) ++wrong;
            }
        });
        expect_all(errors, "");
    }
    EXPECT_EQ(wrong, 0);
}

TEST_P(Comm, TwoChannelsOfOneGroupRunAtTheSameTime) {
    const std::vector<int> ranks = all_ranks(GetParam().ranks());
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group(ranks);
        const auto rounds = [&](int channel) {
            std::mt19937 random(static_cast<unsigned>(channel));
            for (unsigned seed = 0; seed < 100; ++seed) {
                const unsigned own_seed = seed + 10000 * static_cast<unsigned>(channel);
                if (!round_is_right(comm, channel, group, ranks, random_shape(random), own_seed)) ++wrong;
                if (seed % 7 == 0) comm.barrier(channel, group);
            }
        };
        std::thread communication(rounds, 1);
        rounds(0);
        communication.join();
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

TEST_P(Comm, ManyRoundsOfReusedBuffers) {
    const int n = GetParam().ranks();
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group(all_ranks(n));
        std::vector<int32_t> value(100), gathered(static_cast<size_t>(100 * n));
        for (int32_t round = 0; round < 500; ++round) {
            for (int32_t& v : value) v = round + comm.rank();
            comm.run(0, group, all_gather(Dtype::I32, value.data(), gathered.data(), 1, 100, 1));
            comm.run(0, group, all_reduce(Dtype::I32, value.data(), value.data(), 100));
            for (size_t i = 0; i < gathered.size(); ++i) wrong += gathered[i] != round + static_cast<int32_t>(i / 100);
            for (int32_t v : value) wrong += v != n * round + n * (n - 1) / 2;
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

TEST_P(Comm, MaximumIsTheFirstNanOnEveryRank) {
    const int n = GetParam().ranks(), first = n > 2 ? 1 : 0;
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId group = comm.add_group(all_ranks(n));
        std::vector<float> value(37, static_cast<float>(comm.rank()));
        const uint32_t bits = 0x7fc00000u + static_cast<uint32_t>(comm.rank());  // a NaN that tells its rank
        if (comm.rank() == first || comm.rank() == first + 1) std::memcpy(&value[20], &bits, sizeof bits);
        if (comm.rank() == n - 1) value[5] = std::numeric_limits<float>::infinity();
        comm.run(0, group, all_reduce(Dtype::F32, value.data(), value.data(), 37, ReduceOp::Max));
        uint32_t got = 0;
        std::memcpy(&got, &value[20], sizeof got);
        wrong += got != 0x7fc00000u + static_cast<uint32_t>(first) || value[5] != std::numeric_limits<float>::infinity() ||
                 value[36] != static_cast<float>(n - 1);
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

// Messages along a line of ranks, in launches of several requests; the receiver comes late, early or in between.
TEST_P(Comm, MessagesArriveInTheirOrder) {
    const int n = GetParam().ranks();
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const int r = comm.rank();
        std::vector<GroupId> before, after;  // none or one
        if (r > 0) before.push_back(comm.add_group({r - 1, r}));
        if (r + 1 < n) after.push_back(comm.add_group({r, r + 1}));
        std::vector<float> small(3), got_small(3);
        std::vector<int32_t> large(30000), got_large(30000);
        for (int round = 0; round < 40; ++round) {
            std::fill(small.begin(), small.end(), static_cast<float>(100 * r + round));
            std::iota(large.begin(), large.end(), 1000 * r + round);
            for (GroupId to : after) {
                const Request sent[] = {send(Dtype::F32, small.data(), 3), send(Dtype::I32, large.data(), 30000),
                                        send(Dtype::I32, nullptr, 0)};
                comm.run(round % 2, to, sent);
            }
            for (GroupId from : before) {
                const Request received[] = {recv(Dtype::F32, got_small.data(), 3), recv(Dtype::I32, got_large.data(), 30000),
                                            recv(Dtype::I32, nullptr, 0)};
                comm.run(round % 2, from, received);
                wrong += got_small[2] != static_cast<float>(100 * (r - 1) + round);
                for (int i = 0; i < 30000; ++i) wrong += got_large[static_cast<size_t>(i)] != 1000 * (r - 1) + round + i;
            }
            for (GroupId to : after) comm.wait(round % 2, to);
        }
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

// Any algorithm that such a group can have; often none, which leaves the choice to the transport.
std::optional<mesh::CollectiveAlgorithm> random_algorithm(const std::vector<int>& ranks, const mesh::Topology& topology,
                                                          Collective kind, std::mt19937& random) {
    const mesh::GroupLayout layout = mesh::group_layout(ranks, topology);
    if (!mesh::traits_of(kind).has_algorithm()) return std::nullopt;
    mesh::CollectiveAlgorithm algorithm{static_cast<mesh::GatherBy>(random() % 3), static_cast<mesh::ReduceBy>(random() % 4)};
    if (algorithm.reduce == mesh::ReduceBy::TwoLevel) algorithm.level = layout.level;
    if (kind == Collective::ReduceScatter && algorithm.reduce == mesh::ReduceBy::Everywhere) return std::nullopt;
    return mesh::unfit(layout, kind, algorithm).empty() ? std::optional(algorithm) : std::nullopt;
}

// What a request must bring: as `blocks` of bytes, by plain loops. wholes[k]: the operand of member k, of Members blocks or one.
std::vector<std::byte> moved(const Request& r, const std::vector<std::vector<std::byte>>& operands, int position) {
    const auto n = static_cast<int64_t>(operands.size()), element = bytes_of(r.type), total = r.block_elements();
    std::vector<std::byte> out(static_cast<size_t>(r.out_bytes(static_cast<int>(n))));
    const auto put = [&](int64_t to, int64_t member, int64_t from) {
        std::memcpy(out.data() + to * element, operands[static_cast<size_t>(member)].data() + from * element,
                    static_cast<size_t>(element));
    };
    for (int64_t i = 0; i < total; ++i) {
        const int64_t run = r.dim * r.inner, run_out = total / r.outer_out;
        switch (r.kind) {
            case Collective::AllGather:
                for (int64_t k = 0; k < n; ++k) put((i / run * n + k) * run + i % run, k, i);
                break;
            case Collective::AllToAll:
                for (int64_t k = 0; k < n; ++k)
                    put((i / run_out * n + k) * run_out + i % run_out, k, (i / run * n + position) * run + i % run);
                break;
            case Collective::Broadcast: put(i, r.root, i); break;
            case Collective::Permute: put(i, (position - r.by + n) % n, i); break;
            default: ADD_FAILURE() << "only moves are worked out here";
        }
    }
    return out;
}

Collective any_symmetric(std::mt19937& random) {
    while (true) {
        const mesh::CollectiveTraits& traits = mesh::kCollectives[random() % mesh::kCollectives.size()];
        if (traits.symmetric) return traits.kind;
    }
}

// What a kind asks for beside its sizes.
void set_parameters(Request& r, int members, std::mt19937& random) {
    if (r.kind == Collective::Permute) r.by = static_cast<int32_t>(random() % static_cast<unsigned>(members));
    if (r.kind == Collective::Broadcast) r.root = static_cast<int32_t>(random() % static_cast<unsigned>(members));
    if (r.kind == Collective::AllToAll) r.outer_out = std::array{r.outer, int64_t{1}, r.outer * r.dim, r.dim}[random() % 4];
}

// Every row of the table, in every element type, none and many elements; a kind that a transport does not serve would leave what
// stood in the results. Sums are of small whole numbers, so that they are exact in every type.
TEST_P(Comm, ServesEveryKindOfTheTable) {
    const int n = GetParam().ranks();
    std::atomic<int> wrong = 0, served = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const GroupId all = comm.add_group(all_ranks(n));
        const int me = comm.position(all);
        std::vector<GroupId> before, after;  // none or one
        if (me > 0) before.push_back(comm.add_group({me - 1, me}));
        if (me + 1 < n) after.push_back(comm.add_group({me, me + 1}));
        std::mt19937 random(11);  // the same on every rank
        for (const mesh::CollectiveTraits& traits : mesh::kCollectives) {
            for (Dtype type : kDtypes) {
                for (const std::array<int64_t, 3>& sizes :
                     std::vector<std::array<int64_t, 3>>{{1, 0, 3}, {0, 2, 2}, {1, 5, 1}, {3, 4, 7}, {2, 60, 31}, {31, 2, 40}}) {
                    if (traits.reduces && is_coded(type)) {  // nothing sums them
                        ++served;
                        continue;
                    }
                    Request r;
                    r.kind = traits.kind, r.type = type;
                    r.outer = sizes[0], r.dim = sizes[1], r.inner = sizes[2];
                    set_parameters(r, n, random);
                    r.outer_out = std::max<int64_t>(r.outer_out, 1);
                    std::vector<std::vector<std::byte>> operands;
                    for (int k = 0; k < n; ++k) {
                        operands.emplace_back(static_cast<size_t>(r.in_bytes(n)));
                        if (traits.symmetric && !traits.reduces) {
                            std::mt19937 own(static_cast<unsigned>(100 + k));
                            fill(operands.back(), type, own);
                        } else {
                            fill_whole_numbers(operands.back(), type, k);
                        }
                    }
                    std::vector<std::byte> out(static_cast<size_t>(r.out_bytes(n)), std::byte{0x5a});
                    r.in = operands[static_cast<size_t>(me)].data(), r.out = out.data();
                    if (!traits.symmetric) {
                        if (traits.kind != Collective::Send) {  // with its recv, and the wait
                            ++served;
                            continue;
                        }
                        for (GroupId to : after) comm.run(0, to, r);
                        std::vector<std::byte> got(static_cast<size_t>(r.block_bytes()));
                        for (GroupId from : before) {
                            Request q = r;
                            q.kind = Collective::Recv, q.in = nullptr, q.out = got.data();
                            comm.run(0, from, q);
                            wrong += got != operands[static_cast<size_t>(me - 1)];
                        }
                        for (GroupId to : after) comm.wait(0, to);
                        ++served;
                        continue;
                    }
                    comm.run(0, all, r);
                    if (traits.reduces) {
                        std::vector<std::byte> sum(out.size());
                        fill_whole_numbers(sum, type, n * (n - 1) / 2);
                        wrong += out != sum;
                    } else {
                        wrong += out != moved(r, operands, me);
                    }
                    ++served;
                }
            }
        }
    });
    EXPECT_EQ(wrong, 0);
    EXPECT_EQ(served, static_cast<int>(errors.size() * mesh::kCollectives.size() * std::size(kDtypes) * 6));
    expect_all(errors, "");
}

// Two collectives over sub-axes in the place of one over both: rows are the ranks of a host, columns one rank of each.
TEST_P(Comm, CollectivesInTwoLevels) {
    const int n = GetParam().ranks(), each = n / 2;
    if (n % 2) GTEST_SKIP() << "an even number of ranks only";
    constexpr int64_t kCount = 500;
    std::atomic<int> wrong = 0;
    const auto errors = GetParam().run([&](Communicator& comm) {
        const int host = comm.rank() / each, slot = comm.rank() % each;
        std::vector<int> row, both;  // both: the row's axis, then the column's
        for (int k = 0; k < each; ++k) row.push_back(host * each + k), both.insert(both.end(), {k, each + k});
        const std::vector<int> column = {slot, each + slot};
        const GroupId within = comm.add_group(row), between = comm.add_group(column), all = comm.add_group(both);
        const std::vector<double> block = values<double>(3, comm.rank(), kCount);
        std::vector<double> one(static_cast<size_t>(kCount * n)), near(static_cast<size_t>(2 * kCount)), two(one.size());
        comm.run(0, all, all_gather(Dtype::F64, block.data(), one.data(), 1, kCount, 1));
        comm.run(0, between, all_gather(Dtype::F64, block.data(), near.data(), 1, kCount, 1));
        comm.run(0, within, all_gather(Dtype::F64, near.data(), two.data(), 1, 2 * kCount, 1));
        wrong += !same_bits(one, two);
        // Sums within a host in ascending order, then these between the hosts.
        const std::vector<double> whole = values<double>(4, comm.rank(), kCount * n);
        std::vector<double> mine(static_cast<size_t>(kCount)), expected(mine.size());
        comm.run(0, within, reduce_scatter(Dtype::F64, whole.data(), near.data(), 1, 2 * kCount, 1));
        comm.run(0, between, reduce_scatter(Dtype::F64, near.data(), mine.data(), 1, kCount, 1));
        std::vector<std::vector<double>> wholes;
        for (int rank = 0; rank < n; ++rank) wholes.push_back(values<double>(4, rank, kCount * n));
        for (int64_t i = 0; i < kCount; ++i) {
            const auto at = static_cast<size_t>((2 * slot + host) * kCount + i);
            double sums[2];
            for (int h = 0; h < 2; ++h) {
                sums[h] = wholes[static_cast<size_t>(h * each)][at];
                for (int k = 1; k < each; ++k) sums[h] += wholes[static_cast<size_t>(h * each + k)][at];
            }
            expected[static_cast<size_t>(i)] = sums[0] + sums[1];
        }
        wrong += !same_bits(mine, expected);
    });
    EXPECT_EQ(wrong, 0);
    expect_all(errors, "");
}

// Random launches on random groups, all types: the bytes of every output are those of the local transport.
std::vector<std::byte> random_launches(Communicator& comm, const mesh::Topology& topology, unsigned seed) {
    std::mt19937 random(seed);  // the same on every rank
    const int n = comm.ranks();
    std::vector<std::byte> outputs;
    std::vector<std::vector<int>> groups(8);
    std::vector<GroupId> ids(groups.size());
    for (size_t g = 0; g < groups.size(); ++g) {
        std::vector<int>& ranks = groups[g];
        ranks = all_ranks(n);
        std::shuffle(ranks.begin(), ranks.end(), random);
        ranks.resize(1 + random() % static_cast<unsigned>(n));
        if (g % 4 != 0) std::sort(ranks.begin(), ranks.end());
        if (std::find(ranks.begin(), ranks.end(), comm.rank()) != ranks.end()) ids[g] = comm.add_group(ranks);
    }
    comm.connect();
    for (int launch = 0; launch < 30; ++launch) {
        const size_t g = random() % groups.size();
        const std::vector<int>& ranks = groups[g];
        const int members = static_cast<int>(ranks.size());
        std::vector<Request> requests(1 + random() % 3);
        for (Request& r : requests) {
            r.kind = any_symmetric(random);
            r.type = std::array{Dtype::F32, Dtype::F64, Dtype::I32, Dtype::BF16, Dtype::F16}[random() % 5];
            r.op = random() % 3 ? ReduceOp::Sum : ReduceOp::Max;
            r.outer = 1 + random() % 5, r.dim = 1 + random() % 40, r.inner = 1 + random() % (launch % 5 ? 9 : 150);
            r.accumulate = r.kind == Collective::ReduceScatter && random() % 2;
            set_parameters(r, members, random);
            r.algorithm = random_algorithm(ranks, topology, r.kind, random);
        }
        if (std::find(ranks.begin(), ranks.end(), comm.rank()) == ranks.end()) continue;
        std::mt19937 own(seed + static_cast<unsigned>(1000 * launch + comm.rank()));
        std::vector<std::vector<std::byte>> ins, outs;
        for (Request& r : requests) {
            ins.emplace_back(static_cast<size_t>(r.in_bytes(members)));
            outs.emplace_back(static_cast<size_t>(r.out_bytes(members)));
            for (auto* buffer : {&ins.back(), &outs.back()}) fill(*buffer, r.type, own);
            r.in = ins.back().data(), r.out = outs.back().data();
            if ((r.kind == Collective::AllReduce || r.kind == Collective::Broadcast) && launch % 2) r.out = ins.back().data();
        }
        comm.run(launch % kChannels, ids[g], requests);
        for (size_t i = 0; i < requests.size(); ++i) {
            const std::vector<std::byte>& result = requests[i].out == requests[i].in ? ins[i] : outs[i];
            outputs.insert(outputs.end(), result.begin(), result.end());
        }
    }
    return outputs;
}

TEST_P(CommBits, GivesTheBitsOfTheLocalTransport) {
    const int n = GetParam().ranks();
    for (unsigned seed = 1; seed <= 2; ++seed) {
        std::vector<std::vector<std::byte>> expected(static_cast<size_t>(n)), got(static_cast<size_t>(n));
        expect_all(local_job(n).run([&](Communicator& c) {
            expected[static_cast<size_t>(c.rank())] = random_launches(c, GetParam().topology, seed);
        }),
                   "");
        const Errors errors = GetParam().run(
            [&](Communicator& c) { got[static_cast<size_t>(c.rank())] = random_launches(c, GetParam().topology, seed); });
        expect_all(errors, "");
        for (const auto& [rank, error] : errors)
            EXPECT_TRUE(same_bits(got[static_cast<size_t>(rank)], expected[static_cast<size_t>(rank)]))
                << "rank " << rank << ", seed " << seed;
    }
}

}  // namespace
}  // namespace lockstep::comm::test
