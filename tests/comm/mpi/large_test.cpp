// Collectives over more than 2^31 elements, and 2^32 bytes, for real: 9 GiB of memory in two processes. Not part of the ordinary
// run (`make large`); collectives_cases.cpp holds the same ways with a limit that small messages reach.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/bfloat16.h"
#include "tests/comm/jobs.h"
#include "tests/comm/mpi/start.h"

namespace lockstep::comm::test {
namespace {

constexpr int64_t kElements = (int64_t{1} << 31) + 12346;  // of two blocks, or of one

uint64_t mix(int64_t i) { return static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15 >> 32; }
Bf16 any_bits(int64_t i) {
    Bf16 out;
    out.bits = static_cast<uint16_t>(mix(i));
    return out;
}
// Whole numbers whose sum over two ranks bfloat16 holds exactly.
float term(int64_t i, int rank) { return static_cast<float>(mix(i) >> (rank * 8) & 127); }
Bf16 sum(int64_t i) { return Bf16(term(i, 0) + term(i, 1)); }

class Elements {
public:
    explicit Elements(int64_t n) : data_(new uint16_t[static_cast<size_t>(n)]) {}
    Bf16* at(int64_t i) { return reinterpret_cast<Bf16*>(data_.get() + i); }
    template <class Value>
    void fill(int64_t begin, int64_t end, const Value& value) {
        for (int64_t i = begin; i < end; ++i) *at(i) = value(i);
    }
    // The first element of [begin, end) that is another, or -1.
    template <class Value>
    int64_t wrong(int64_t begin, int64_t end, const Value& value) {
        for (int64_t i = begin; i < end; ++i) {
            if (at(i)->bits != value(i).bits) return i;
        }
        return -1;
    }

private:
    std::unique_ptr<uint16_t[]> data_;
};

// body(communicator, group of both, rank, so many elements)
template <class Body>
void on_two(const Body& body) {
    processes::ProcessTransport world(session().wire(), 1);
    ASSERT_EQ(world.ranks(), 2) << "start this in two processes, of one rank each";
    const Errors errors = run_ranks(world, world.first_rank(), 1, [&](Communicator& c) {
        Elements elements(kElements);
        body(c, c.add_group({0, 1}), c.rank(), elements);
    });
    expect_all(errors, "");
}

constexpr int64_t kHalf = kElements / 2;

TEST(DISABLED_Large, AllGather) {
    on_two([](Communicator& c, GroupId group, int rank, Elements& x) {
        x.fill(rank * kHalf, (rank + 1) * kHalf, any_bits);
        c.run(0, group, all_gather(Dtype::BF16, x.at(rank * kHalf), x.at(0), 1, kHalf, 1));
        EXPECT_EQ(x.wrong(0, kElements, any_bits), -1);
    });
}

TEST(DISABLED_Large, AllReduce) {
    on_two([](Communicator& c, GroupId group, int rank, Elements& x) {
        x.fill(0, kElements, [&](int64_t i) { return Bf16(term(i, rank)); });
        c.run(0, group, all_reduce(Dtype::BF16, x.at(0), x.at(0), kElements));
        EXPECT_EQ(x.wrong(0, kElements, sum), -1);
    });
}

TEST(DISABLED_Large, ReduceScatter) {
    on_two([](Communicator& c, GroupId group, int rank, Elements& x) {
        x.fill(0, kElements, [&](int64_t i) { return Bf16(term(i, rank)); });
        c.run(0, group, reduce_scatter(Dtype::BF16, x.at(0), x.at(rank * kHalf), 1, kHalf, 1));
        EXPECT_EQ(x.wrong(rank * kHalf, (rank + 1) * kHalf, sum), -1);
    });
}

TEST(DISABLED_Large, Send) {
    on_two([](Communicator& c, GroupId group, int rank, Elements& x) {
        if (rank == 0) x.fill(0, kElements, any_bits);
        c.run(0, group, rank == 0 ? send(Dtype::BF16, x.at(0), kElements) : recv(Dtype::BF16, x.at(0), kElements));
        if (rank == 0) c.wait(0, group);
        EXPECT_EQ(x.wrong(0, kElements, any_bits), -1);
    });
}

}  // namespace
}  // namespace lockstep::comm::test
