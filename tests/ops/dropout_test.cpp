// Dropout's mask: how much it drops, what it depends on, and that neither shards nor evaluation change what is kept.
#include "ops/dropout.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "ops/builder.h"
#include "passes/select_kernels.h"
#include "tests/ops/interpreter.h"

namespace lockstep::testing {
namespace {

constexpr int64_t kTokens = 32, kWidth = 512;
constexpr double kDropped = 0.1;

struct Noise {
    uint64_t seed = 7, first_sample = 100;
};

ir::Routine routine(const char* site, const mesh::Mesh& mesh) {
    ir::Routine r;
    r.name = "case";
    r.dims = {{"batch", 2, 2}, {"seq", kTokens / 2, kTokens / 2}, {"hidden", kWidth, kWidth}};
    ops::Builder b(r);
    const auto port = [&](const char* name, std::initializer_list<std::string_view> dims, Dtype t) {
        return b.port(name, ir::PortKind::Value, ir::Access::Read, b.dims(dims), t);
    };
    const ir::TensorId x = port("x", {"batch", "seq", "hidden"}, Dtype::F32), noise = port("noise", {"batch", "seq"}, Dtype::I32);
    const ir::TensorId y = b.op("dropout", {x, noise}, {{"y", b.dims(x)}}, ops::dropout_attrs(kDropped, site))[0];
    r.tensors[y].port = 2;
    r.ports.push_back({"y", ir::PortKind::Value, ir::Access::Write, ir::PortRole::Y, ""});
    for (ir::Tensor& t : r.tensors) {
        for (ir::DimId d : t.dims) t.placement.dims.push_back(r.dims[d].name == "hidden" ? mesh.all() : mesh::AxisList{});
    }
    return r;
}

// The result for an input of ones, on one rank.
std::vector<double> mask(const char* site, const Noise& noise, int64_t layer, const mesh::Mesh& mesh = {}, int64_t rank = 0) {
    ir::Routine r = routine(site, mesh);
    passes::select_kernels(mesh, r, kernels::cpu_catalog(1));
    Interpreter run(mesh, r, rank);
    std::vector<double> tokens;
    for (int64_t t = 0; t < kTokens; ++t) {
        const int64_t sample = t / (kTokens / 2), place = t % (kTokens / 2);
        const uint32_t bits =
            token_noise(noise.seed, noise.first_sample + static_cast<uint64_t>(sample), static_cast<uint64_t>(place));
        tokens.push_back(static_cast<int32_t>(bits));
    }
    run.set("noise", tokens);
    run.set("x", std::vector<double>(run.get("x").size(), 1.0));
    run.run(true, layer);
    return run.get("y");
}

double share_that_differs(const std::vector<double>& a, const std::vector<double>& b) {
    int64_t n = 0;
    for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i];
    return static_cast<double>(n) / static_cast<double>(a.size());
}

TEST(Dropout, DropsItsShareAndScalesTheRest) {
    const std::vector<double> y = mask("a", {}, 0);
    double dropped = 0;
    for (double v : y) {
        if (v == 0) ++dropped;
        else EXPECT_EQ(v, static_cast<float>(1 / (1 - kDropped)));
    }
    const double n = static_cast<double>(y.size()), sigma = std::sqrt(n * kDropped * (1 - kDropped));
    EXPECT_NEAR(dropped, n * kDropped, 4 * sigma);
    for (int64_t t = 0; t < kTokens; ++t) {  // and of each token
        double of_token = 0;
        for (int64_t i = 0; i < kWidth; ++i) of_token += y[static_cast<size_t>(t * kWidth + i)] == 0;
        EXPECT_NEAR(of_token, kWidth * kDropped, 5 * std::sqrt(kWidth * kDropped * (1 - kDropped))) << t;
    }
}

TEST(Dropout, TheMaskIsOfThePlaceTheLayerTheSeedAndTheSample) {
    const std::vector<double> y = mask("a", {}, 3);
    EXPECT_EQ(y, mask("a", {}, 3));
    const double independent = 2 * kDropped * (1 - kDropped);
    for (const std::vector<double>& other : {mask("b", {}, 3), mask("a", {}, 4), mask("a", {8, 100}, 3), mask("a", {7, 101}, 3)})
        EXPECT_NEAR(share_that_differs(y, other), independent, 0.02);
    const auto row = [&](int64_t t) { return std::vector<double>(y.begin() + t * kWidth, y.begin() + (t + 1) * kWidth); };
    for (int64_t t = 1; t < kTokens; ++t) EXPECT_NEAR(share_that_differs(row(0), row(t)), independent, 0.08) << t;
}

TEST(Dropout, ShardsDropWhatTheWholeDrops) {
    const std::vector<double> whole = mask("a", {}, 1);
    const mesh::Mesh two = mesh::Mesh::build({1, 1, 1, 1, 1, 2}, {});
    for (int64_t rank = 0; rank < 2; ++rank) {
        const std::vector<double> part = mask("a", {}, 1, two, rank);
        for (int64_t t = 0; t < kTokens; ++t) {
            for (int64_t i = 0; i < kWidth / 2; ++i) {
                EXPECT_EQ(part[static_cast<size_t>(t * kWidth / 2 + i)],
                          whole[static_cast<size_t>(t * kWidth + rank * kWidth / 2 + i)]);
            }
        }
    }
}

TEST(Dropout, EvaluationDropsNothing) {
    ir::Routine r = routine("a", {});
    ops::remove_dropout(r);
    ASSERT_EQ(r.ops.size(), 1u);
    EXPECT_EQ(r.ops[0].kind, "add");
    EXPECT_EQ(ops::check_op(r, r.ops[0]), "");
    ops::renumber(r);
    EXPECT_EQ(r.port("noise"), -1);
}

}  // namespace
}  // namespace lockstep::testing
