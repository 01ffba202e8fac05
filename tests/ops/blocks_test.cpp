// Ops on blocks (ops/blocks.cpp), rank by rank, against the whole tensor and against a reduce_scatter.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "base/elements.h"
#include "ir/text.h"
#include "ops/verify.h"
#include "passes/select_kernels.h"
#include "tests/ops/interpreter.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kBatch = 3, kSeq = 8, kHidden = 5;

struct BlocksCase {
    Dtype dtype;
    int ranks;
    int dim;  // that is cut: 0 batch's place, 1 the middle
};
void PrintTo(const BlocksCase& c, std::ostream* out) { *out << name_of(c.dtype) << " on " << c.ranks << ", dim " << c.dim; }

// One routine on `ranks` tensor-parallel ranks. `seq` is the dim that is cut; it stands at place c.dim.
class BlocksOf : public ::testing::TestWithParam<BlocksCase> {
protected:
    std::string dims(const std::string& seq) const {
        return GetParam().dim == 0 ? "[" + seq + ", batch, hidden]" : "[batch, " + seq + ", hidden]";
    }
    std::string type() const { return std::string(name_of(GetParam().dtype)); }
    int64_t outer() const { return GetParam().dim == 0 ? 1 : kBatch; }
    int64_t inner() const { return GetParam().dim == 0 ? kBatch * kHidden : kHidden; }

    ir::Program program(const std::string& body) const {
        const std::string n = std::to_string(GetParam().ranks);
        ir::Program p =
            ir::parse("mesh dp_replicate=1 dp_shard=1 cp=1 tp=" + n + " tp:(1)" + n +
                      "\nblock b x1\nroutine b.forward block b kind forward entry train chunks 1 scratch 0\n  dims batch=3 "
                      "seq=8 hidden=5 seq.block=" +
                      std::to_string(kSeq / GetParam().ranks) + "\n" + body);
        const auto violation = ops::verify(p);
        EXPECT_FALSE(violation) << violation->message;
        passes::select_kernels(p.mesh, p.routines[0], kernels::cpu_catalog(1));
        return p;
    }
    // Values that the type holds, other ones for each rank.
    std::vector<double> values(int64_t count, int rank) const {
        std::mt19937 random(static_cast<unsigned>(rank) + 17);
        std::vector<double> out;
        for (int64_t i = 0; i < count; ++i) {
            const double v = std::ldexp(static_cast<double>(random() % 255) - 127, static_cast<int>(random() % 7) - 6);
            out.push_back(GetParam().dtype == Dtype::I32 ? std::round(v) : v);
        }
        return out;
    }
    // Block `index` of `whole` [outer, kSeq, inner].
    std::vector<double> block(const std::vector<double>& whole, int64_t index) const {
        const int64_t rows = kSeq / GetParam().ranks;
        std::vector<double> out;
        for (int64_t o = 0; o < outer(); ++o) {
            const auto begin = whole.begin() + (o * kSeq + index * rows) * inner();
            out.insert(out.end(), begin, begin + rows * inner());
        }
        return out;
    }
};

TEST_P(BlocksOf, ABlockOfTheWholeIsThatOfTheRankBehind) {
    const int ranks = GetParam().ranks;
    for (int shift = 0; shift < ranks; ++shift) {
        const ir::Program p =
            program("  port x value read\n    x: " + type() + dims("seq") + "\n  port b value write\n    b: " + type() +
                    dims("seq.block") + "\n  b = block(x) {dim=" + std::to_string(GetParam().dim) +
                    ", shift=" + std::to_string(shift) + "} over tp\n");
        for (int rank = 0; rank < ranks; ++rank) {
            Interpreter run(p.mesh, p.routines[0], rank, 2);
            const std::vector<double> whole = values(kBatch * kSeq * kHidden, 0);
            run.set("x", whole);
            run.run();
            EXPECT_EQ(run.get("b"), block(whole, (rank + shift) % ranks)) << "rank " << rank << ", shift " << shift;
        }
    }
}

TEST_P(BlocksOf, JoinedBlocksAreTheWhole) {
    const int ranks = GetParam().ranks;
    std::string ports, operands;
    for (int i = 0; i < ranks; ++i) {
        const std::string name = "b" + std::to_string(i);
        ports += "  port " + name + " value read\n    " + name + ": " + type() + dims("seq.block") + "\n";
        operands += (i == 0 ? "" : ", ") + name;
    }
    const ir::Program p = program(ports + "  port y value write\n    y: " + type() + dims("seq") + "\n  y = join_blocks(" +
                                  operands + ") {dim=" + std::to_string(GetParam().dim) + "} over tp\n");
    const std::vector<double> whole = values(kBatch * kSeq * kHidden, 0);
    for (int rank = 0; rank < ranks; ++rank) {
        Interpreter run(p.mesh, p.routines[0], rank, 2);
        for (int i = 0; i < ranks; ++i) run.set("b" + std::to_string(i), block(whole, (rank - i + ranks) % ranks));
        run.run();
        EXPECT_EQ(run.get("y"), whole) << "rank " << rank;
    }
}

// Bit by bit: the sum depends on its order, and all ranks take the same.
TEST_P(BlocksOf, SummedBlocksAreThoseOfAReduceScatter) {
    if (GetParam().dtype == Dtype::I32) GTEST_SKIP() << "integers are not summed";
    const int ranks = GetParam().ranks;
    std::string ports, operands;
    for (int i = 0; i < ranks; ++i) {
        const std::string name = "b" + std::to_string(i);
        ports += "  port " + name + " value read\n    " + name + ": " + type() + dims("seq.block") + " partial sum tp\n";
        operands += (i == 0 ? "" : ", ") + name;
    }
    const ir::Program p = program(ports + "  port y value write\n    y: " + type() + dims("seq/tp") + "\n  y = sum_blocks(" +
                                  operands + ") {dim=" + std::to_string(GetParam().dim) + "} over tp\n");
    for (int rank = 0; rank < ranks; ++rank) {
        Interpreter run(p.mesh, p.routines[0], rank, 2);
        std::vector<std::vector<double>> of_rank;
        for (int from = 0; from < ranks; ++from) of_rank.push_back(block(values(kBatch * kSeq * kHidden, from), rank));
        for (int i = 0; i < ranks; ++i)
            run.set("b" + std::to_string(i), of_rank[static_cast<size_t>((rank - i + ranks) % ranks)]);
        run.run();
        const std::vector<double> got = run.get("y");
        for (size_t k = 0; k < got.size(); ++k) {
            // In ascending order of ranks, rounded to the type after each.
            std::array<char, 8> sum{};
            set_element(sum.data(), GetParam().dtype, 0, of_rank[0][k]);
            for (int from = 1; from < ranks; ++from)
                set_element(sum.data(), GetParam().dtype, 0,
                            element(sum.data(), GetParam().dtype, 0) + of_rank[static_cast<size_t>(from)][k]);
            EXPECT_EQ(got[k], element(sum.data(), GetParam().dtype, 0)) << "rank " << rank << ", element " << k;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, BlocksOf,
                         ::testing::Values(BlocksCase{Dtype::F32, 2, 1}, BlocksCase{Dtype::F64, 4, 0},
                                           BlocksCase{Dtype::BF16, 4, 1}, BlocksCase{Dtype::F16, 2, 0},
                                           BlocksCase{Dtype::F32, 8, 1}, BlocksCase{Dtype::I32, 2, 1}));

}  // namespace
}  // namespace lockstep::testing
