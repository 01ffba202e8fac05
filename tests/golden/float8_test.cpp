// Float8 against torchao (make_float8.py): casts, scales and blocks bit for bit, the products of one linear, and training.
#include "base/float8.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "base/random.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "ops/verify.h"
#include "passes/select_kernels.h"
#include "tests/golden/golden_run.h"
#include "tests/ops/interpreter.h"

namespace lockstep::testing {
namespace float8 {
namespace {

const nlohmann::json& figures() {
    static const nlohmann::json all = golden_case("float8");
    return all;
}

template <class T>
std::string hash_of(const std::vector<T>& x) {
    return fmt::format("{:#018x}", hash_name({reinterpret_cast<const char*>(x.data()), x.size() * sizeof(T)}));
}

constexpr uint64_t kChunk = 4000;

// Hashes of the chunks of n values. Where one differs, its inputs are kChunk i to kChunk (i + 1).
template <class Make>
std::vector<std::string> hashes(uint64_t n, const Make& make) {
    std::vector<std::string> out;
    for (uint64_t first = 0; first < n; first += kChunk) {
        std::vector<decltype(make(0))> chunk;
        for (uint64_t i = first; i < std::min(n, first + kChunk); ++i) chunk.push_back(make(i));
        out.push_back(hash_of(chunk));
    }
    return out;
}

// ---- codes and scales

struct Type {
    const char* name;
    int mantissa_bits, bias;
    uint64_t top;  // code of the largest value
    double width;  // of uniform inputs
};
constexpr Type kE4M3 = {"e4m3", 3, 7, 0x7e, 600}, kE5M2 = {"e5m2", 2, 15, 0x7b, 70000};
constexpr uint64_t kCasts = 400000;

float cast_input(const Type& type, uint64_t i) {
    constexpr float kSpecial[] = {0.0F, -0.0F, INFINITY, -INFINITY, NAN, 0x1p-149F, 0x1.fffffep127F, -0x1.fffffep127F};
    if (i < std::size(kSpecial)) return kSpecial[i];
    const uint64_t stream = hash_name(std::string("float8.") + type.name), h = splitmix64(stream + i);
    const double uniform = 2 * (static_cast<double>(h >> 11) * 0x1p-53) - 1;
    switch (i % 5) {
        case 0: return static_cast<float>(normal_draw(stream, i));
        case 1: return static_cast<float>(type.width * uniform);
        case 2: {  // halfway to the next code, and the floats before and after that
            const auto code = static_cast<int>(h % (type.top + 1));
            const int exponent = code >> type.mantissa_bits, mantissas = 1 << type.mantissa_bits, mantissa = code % mantissas;
            const float half = std::ldexp(static_cast<float>(exponent > 0 ? mantissas + mantissa : mantissa) + 0.5F,
                                          std::max(exponent, 1) - type.bias - type.mantissa_bits);
            const auto near = std::bit_cast<float>(std::bit_cast<uint32_t>(half) + static_cast<uint32_t>((h >> 32) % 3) - 1);
            return h >> 63 != 0 ? -near : near;
        }
        case 3: return static_cast<float>(std::ldexp(uniform, 2 - type.bias));  // half of them are subnormal
        default: return std::bit_cast<float>(static_cast<uint32_t>(h));
    }
}

template <class T>
void expect_torchaos_codes(const Type& type) {
    std::vector<float> inputs;
    for (uint64_t i = 0; i < kCasts; ++i) {
        const float x = cast_input(type, i);
        inputs.push_back(std::isnan(x) ? 0 : x);
    }
    const nlohmann::json& golden = figures()["codes"][type.name];
    ASSERT_EQ(hash_of(inputs), golden["inputs"].get<std::string>());
    const auto code = [&](const auto& value) {  // a NaN without its sign
        return static_cast<uint8_t>(std::isnan(value) ? T(value).bits & 0x7f : T(value).bits);
    };
    EXPECT_EQ(hashes(kCasts, [&](uint64_t i) { return code(cast_input(type, i)); }), golden["codes"]);
    EXPECT_EQ(hashes(kCasts, [&](uint64_t i) { return code(static_cast<double>(cast_input(type, i))); }), golden["codes"]);
}

TEST(GoldenFloat8, CodesOfE4M3) { expect_torchaos_codes<F8E4M3>(kE4M3); }
TEST(GoldenFloat8, CodesOfE5M2) { expect_torchaos_codes<F8E5M2>(kE5M2); }

void expect_torchaos_scales(const Type& type, float largest) {
    const uint64_t stream = hash_name("float8.amax");
    for (const bool power_of_two : {false, true}) {
        const nlohmann::json& golden = figures()["scales"][type.name][power_of_two ? "power_of_two" : "plain"];
        const auto scale = [&](float amax) { return scale_of(amax, largest, power_of_two); };
        const auto of_bfloat16 = [&](uint64_t i) { return scale(std::bit_cast<float>(static_cast<uint32_t>(i + 1) << 16)); };
        const auto of_float = [&](uint64_t i) {
            return scale(std::bit_cast<float>(static_cast<uint32_t>(splitmix64(stream + i) % 0x7f800000)));
        };
        EXPECT_EQ(hashes(0x7f80, of_bfloat16), golden["bfloat16"]) << power_of_two;  // up to infinity
        EXPECT_EQ(hashes(100000, of_float), golden["float32"]) << power_of_two;
        for (const auto& [amax, want] : golden["known"].items())
            EXPECT_EQ(scale(std::stof(amax)), want.get<float>()) << amax << " " << power_of_two;
        EXPECT_TRUE(std::isnan(scale(NAN)));
    }
}

TEST(GoldenFloat8, ScalesOfE4M3) { expect_torchaos_scales(kE4M3, F8E4M3::kLargest); }
TEST(GoldenFloat8, ScalesOfE5M2) { expect_torchaos_scales(kE5M2, F8E5M2::kLargest); }

// ---- blocks of 32 by the op of a program

constexpr int kBlocks = 4000, kBlock = 32;

std::vector<float> block_inputs(float largest) {
    const uint64_t stream = hash_name("float8.blocks");
    std::vector<float> out;
    for (uint64_t b = 0; b < kBlocks; ++b) {
        const int power = static_cast<int>(splitmix64(stream + b) % 61) - 30;
        for (uint64_t i = 0; i < kBlock; ++i) {
            auto x = static_cast<float>(std::ldexp(normal_draw(stream, kBlock * b + i), power));
            const uint32_t top = std::bit_cast<uint32_t>(std::ldexp(largest, power));
            if (i == 0 && b % 50 == 1) x = std::bit_cast<float>(top);
            if (i == 0 && b % 50 == 2) x = std::bit_cast<float>(top + 65536);
            if (i == 0 && b % 50 == 3) x = std::bit_cast<float>(top - 65536);
            if (b % 2 == 0) x = static_cast<float>(Bf16(x));
            out.push_back(b % 50 == 0 ? 0 : x);
        }
    }
    return out;
}

// of_rows: blocks are neighbours of a row, or else of a column.
template <class T>
void expect_torchaos_blocks(const Type& type, const std::string& rounding, bool of_rows) {
    const nlohmann::json& golden = figures()["blocks"][type.name];
    const std::vector<float> inputs = block_inputs(T::kLargest);
    ASSERT_EQ(hash_of(inputs), golden["inputs"].get<std::string>());
    const char *dims = of_rows ? "b, n" : "n, b", *of_scale = of_rows ? "b, n.b" : "n.b, b";
    const ir::Program p =
        ir::parse(fmt::format("mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nmicrobatches 1\narena 0\nblock b x1\n"
                              "routine f block b kind forward entry train chunks 1 scratch 0\n  dims b={} n={} n.b=1(n/{})\n"
                              "  port x value read\n    x: f32[{}]\n  port y value write\n    q: f8{}[{}]\n    s: e8m0[{}]\n"
                              "  q; s = to_blocks(x) {{along='n' block={} rounding='{}'}}\n",
                              kBlocks, kBlock, kBlock, dims, type.name, dims, of_scale, kBlock, rounding));
    const auto violation = ops::verify(p);
    ASSERT_FALSE(violation) << violation->message;
    const auto at = [&](size_t b, size_t i) { return of_rows ? kBlock * b + i : kBlocks * i + b; };
    std::vector<double> x(inputs.size());
    for (size_t b = 0; b < kBlocks; ++b) {
        for (size_t i = 0; i < kBlock; ++i) x[at(b, i)] = inputs[kBlock * b + i];
    }
    for (const ops::KernelCatalog& catalog : {kernels::reference_catalog(), kernels::cpu_catalog(1)}) {
        ir::Routine r = p.routines[0];
        passes::select_kernels(p.mesh, r, catalog);
        Interpreter run(p.mesh, r);
        run.set("x", x);
        run.run();
        std::vector<uint8_t> scales;
        for (const double s : run.get("s")) scales.push_back(E8M0(s).bits);
        EXPECT_EQ(hash_of(scales), golden["mx_" + rounding]["scales"].get<std::string>()) << catalog.name;
        const std::vector<double> q = run.get("q");
        EXPECT_EQ(hashes(q.size(), [&](uint64_t i) { return T(q[at(i / kBlock, i % kBlock)]).bits; }),
                  golden["mx_" + rounding]["codes"])
            << catalog.name;
    }
}

TEST(GoldenFloat8, BlocksByFloor) {
    for (const bool of_rows : {true, false}) {
        expect_torchaos_blocks<F8E4M3>(kE4M3, "floor", of_rows);
        expect_torchaos_blocks<F8E5M2>(kE5M2, "floor", of_rows);
    }
}
TEST(GoldenFloat8, BlocksByCeiling) {
    for (const bool of_rows : {true, false}) {
        expect_torchaos_blocks<F8E4M3>(kE4M3, "rceil", of_rows);
        expect_torchaos_blocks<F8E5M2>(kE5M2, "rceil", of_rows);
    }
}

// ---- the products of a linear, by their definition

struct Matrix {
    int rows, columns;
    std::vector<double> x;  // row-major

    double& at(int r, int c) { return x[static_cast<size_t>(r) * static_cast<size_t>(columns) + static_cast<size_t>(c)]; }
    double at(int r, int c) const { return const_cast<Matrix*>(this)->at(r, c); }
};

constexpr int kM = 192, kK = 256, kN = 128;

// Element (r, c) is a normal draw times 2^exponent(r, c), as bfloat16.
template <class Exponent>
Matrix operand(const char* name, int rows, int columns, const Exponent& exponent) {
    Matrix out{rows, columns, {}};
    for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < columns; ++c) {
            const double draw = normal_draw(hash_name(name), out.x.size());
            out.x.push_back(static_cast<float>(Bf16(std::ldexp(draw, exponent(r, c)))));
        }
    }
    return out;
}

struct Operands {
    Matrix x = operand("float8.x", kM, kK, [](int m, int k) { return m % 5 - 2 + k % 3 - 1; });
    Matrix w = operand("float8.w", kN, kK, [](int n, int k) { return n % 5 - 8 + k % 7 - 3; });
    Matrix dy = operand("float8.dy", kM, kN, [](int m, int n) { return m % 3 - 14 + n % 5 - 2; });
};

Matrix transposed(const Matrix& a) {
    Matrix out{a.columns, a.rows, {}};
    for (int c = 0; c < a.columns; ++c) {
        for (int r = 0; r < a.rows; ++r) out.x.push_back(a.at(r, c));
    }
    return out;
}

// [rows of a, rows of b]: sums over the columns of both.
Matrix exact_product(const Matrix& a, const Matrix& b) {
    Matrix out{a.rows, b.rows, {}};
    for (int r = 0; r < a.rows; ++r) {
        for (int c = 0; c < b.rows; ++c) {
            double sum = 0;
            for (int k = 0; k < a.columns; ++k) sum += a.at(r, k) * b.at(c, k);
            out.x.push_back(sum);
        }
    }
    return out;
}
// Rounded once.
Matrix product(const Matrix& a, const Matrix& b) {
    Matrix out = exact_product(a, b);
    for (double& x : out.x) x = static_cast<float>(Bf16(x));
    return out;
}

// Values after the cast, group by group: `rows` x `columns` elements share a scale. `store` writes a group.
template <class Store>
Matrix in_groups(Matrix a, int rows, int columns, const Store& store) {
    for (int r = 0; r < a.rows; r += rows) {
        for (int c = 0; c < a.columns; c += columns) {
            const int last_row = std::min(r + rows, a.rows), last_column = std::min(c + columns, a.columns);
            double amax = 0;
            for (int i = r; i < last_row; ++i) {
                for (int j = c; j < last_column; ++j) amax = std::max(amax, std::abs(a.at(i, j)));
            }
            for (int i = r; i < last_row; ++i) {
                for (int j = c; j < last_column; ++j) a.at(i, j) = store(a.at(i, j), amax);
            }
        }
    }
    return a;
}

template <class T, bool power_of_two>
double scaled(double x, double amax) {
    const float scale = scale_of(amax, T::kLargest, power_of_two);
    return static_cast<double>(static_cast<float>(T(static_cast<float>(x) * scale))) / scale;
}
template <class T, bool power_of_two = false>
Matrix by_tensor(const Matrix& a) {
    return in_groups(a, a.rows, a.columns, scaled<T, power_of_two>);
}
Matrix by_row(const Matrix& a) { return in_groups(a, 1, a.columns, scaled<F8E4M3, true>); }

// MX: 32 elements of a row share a power of two.
double floored(double x, double amax) {
    const int exponent = std::ilogb(amax) - 8;
    return std::ldexp(static_cast<float>(F8E4M3(std::ldexp(x, -exponent))), exponent);
}
double ceiled(double x, double amax) {
    int exponent = std::ilogb(amax) - 8;
    if (std::ldexp(448.0, exponent) < amax) ++exponent;
    return std::ldexp(static_cast<float>(F8E4M3(std::ldexp(x, -exponent))), exponent);
}

struct Products {
    Matrix y, dx, dw;
};

// y = x w^T, dx = dy w, dw = dy^T x, each operand of a product cast along what is summed, its columns.
template <class Along>
Products three(const Along& cast) {
    const Operands o;
    return {product(cast(o.x), cast(o.w)), product(cast(o.dy), cast(transposed(o.w))),
            product(cast(transposed(o.dy)), cast(transposed(o.x)))};
}

Products by_definition(const std::string& recipe) {
    const Operands o;
    if (recipe == "tensorwise") {
        const Matrix x = by_tensor<F8E4M3>(o.x), w = by_tensor<F8E4M3>(o.w), dy = by_tensor<F8E5M2>(o.dy);
        return {product(x, w), product(dy, transposed(w)), product(transposed(dy), transposed(x))};
    }
    if (recipe == "rowwise") return three(by_row);
    if (recipe == "rowwise_with_gw_hp")
        return {product(by_row(o.x), by_row(o.w)), product(by_row(o.dy), transposed(by_tensor<F8E4M3, true>(o.w))),
                product(transposed(o.dy), transposed(o.x))};
    if (recipe == "blockwise") {  // torchao has no emulation of it
        const auto by_block = [](const Matrix& a) { return in_groups(a, 1, 128, scaled<F8E4M3, false>); };
        const Matrix w = in_groups(o.w, 128, 128, scaled<F8E4M3, false>);
        return {product(by_block(o.x), w), product(by_block(o.dy), transposed(w)),
                product(by_block(transposed(o.dy)), by_block(transposed(o.x)))};
    }
    return three([&](const Matrix& a) { return in_groups(a, 1, 32, recipe == "mx_floor" ? floored : ceiled); });
}

// ---- the same by the ops of a program

struct Factor {
    const char *operand, *dims, *type, *groups;  // a scale for each index of `groups`
};

// As program text: {name} = a b, both cast. mx: the rounding of scales of blocks along the dim that `groups` lacks, or empty.
std::string scaled_product(const std::string& name, const Factor& a, const Factor& b, bool power_of_two, const std::string& mx) {
    std::string out;
    for (const Factor& c : {a, b}) {
        if (!mx.empty()) {
            const std::string dims = c.dims, along = dims.substr(dims.starts_with(c.groups) ? dims.size() - 1 : 0, 1);
            const std::string of_scale = dims.starts_with(along) ? along + ".b" + dims.substr(1) : dims + ".b";
            out += fmt::format(
                "  {0}.{1}.q: f8e4m3[{2}]; {0}.{1}.s: e8m0[{3}] = to_blocks({1}) {{along='{4}' block=32 rounding='{5}'}}\n", name,
                c.operand, dims, of_scale, along, mx);
            continue;
        }
        out += fmt::format("  {0}.{1}.a: f32[{2}] = amax({1})\n", name, c.operand, c.groups);
        out += fmt::format("  {0}.{1}.q: {2}[{3}]; {0}.{1}.s: f32[{4}] = to_float8({1}, {0}.{1}.a){5}\n", name, c.operand, c.type,
                           c.dims, c.groups, power_of_two ? " {power_of_two=1}" : "");
    }
    return out + fmt::format("  {0} = scaled_einsum({0}.{1}.q, {0}.{2}.q, {0}.{1}.s, {0}.{2}.s)\n", name, a.operand, b.operand);
}

std::string program_of(const std::string& recipe) {
    const bool one = recipe == "tensorwise";
    const std::string mx = recipe.starts_with("mx_") ? recipe.substr(3) : "";
    const auto scaled = [&](const char* name, const Factor& a, const Factor& b) { return scaled_product(name, a, b, !one, mx); };
    const auto x = [&](const char* groups) { return Factor{"x", "m, k", "f8e4m3", one ? "" : groups}; };
    const auto w = [&](const char* groups) { return Factor{"w", "n, k", "f8e4m3", one ? "" : groups}; };
    const auto dy = [&](const char* groups) { return Factor{"dy", "m, n", one ? "f8e5m2" : "f8e4m3", one ? "" : groups}; };
    const bool wide = recipe == "rowwise_with_gw_hp";
    return "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nmicrobatches 1\narena 0\nblock b x1\n"
           "routine f block b kind forward entry train chunks 1 scratch 0\n  dims m=192 k=256 n=128 m.b=6(m/32) "
           "k.b=8(k/32) n.b=4(n/32)\n"
           "  port x value read\n    x: bf16[m, k]\n    w: bf16[n, k]\n    dy: bf16[m, n]\n"
           "  port y value write\n    y: bf16[m, n]\n    dx: bf16[m, k]\n    dw: bf16[n, k]\n" +
           scaled("y", x("m"), w("n")) + scaled("dx", dy("m"), w(wide ? "" : "k")) +
           (wide ? "  dw = einsum(dy, x)\n" : scaled("dw", dy("n"), x("k")));
}

Products by_ops(const std::string& recipe, const ops::KernelCatalog& catalog) {
    ir::Program p = ir::parse(program_of(recipe));
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message;
    passes::select_kernels(p.mesh, p.routines[0], catalog);
    Interpreter interpreter(p.mesh, p.routines[0]);
    const Operands o;
    interpreter.set("x", o.x.x), interpreter.set("w", o.w.x), interpreter.set("dy", o.dy.x);
    interpreter.run(true);
    return {{kM, kN, interpreter.get("y")}, {kM, kK, interpreter.get("dx")}, {kN, kK, interpreter.get("dw")}};
}

// ---- both against torchao

std::vector<uint16_t> from_base64(const std::string& text) {
    constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string bytes;
    uint32_t bits = 0;
    int held = 0;
    for (char c : text.substr(0, text.find('='))) {
        bits = bits << 6 | static_cast<uint32_t>(kDigits.find(c));
        if ((held += 6) >= 8) bytes += static_cast<char>(bits >> (held -= 8));
    }
    std::vector<uint16_t> out(bytes.size() / 2);
    std::memcpy(out.data(), bytes.data(), out.size() * 2);
    return out;
}

struct Differing {
    size_t results = 0, different = 0;
    std::string farther;  // the last that is more than a unit in the last place away
};

// torchao sums in float32, so that a result whose terms cancel may be further off, by 2^-20 of the largest.
void compare_rows(const Matrix& got, const std::string& torchao, int every_row, Differing& found) {
    const std::vector<uint16_t> want = from_base64(torchao);
    double largest = 0;
    for (double x : got.x) largest = std::max(largest, std::abs(x));
    size_t next = 0;
    for (int r = 0; r < got.rows; r += every_row) {
        for (int c = 0; c < got.columns; ++c) {
            const double a = got.at(r, c), b = std::bit_cast<float>(static_cast<uint32_t>(want.at(next++)) << 16);
            if (a == b) continue;
            ++found.different;
            const double unit = std::ldexp(1.0, std::ilogb(std::max(std::abs(a), std::abs(b))) - 7);
            if (!(std::abs(a - b) <= std::max(unit, largest * 0x1p-20)))
                found.farther = fmt::format("{} instead of {} at {}, {}", a, b, r, c);
        }
    }
    EXPECT_EQ(next, want.size());
    found.results += next;
}

TEST(GoldenFloat8, OperandsOfTheLinear) {
    const Operands o;
    std::vector<std::string> hashes;
    for (const Matrix* a : {&o.x, &o.w, &o.dy}) {
        std::vector<uint16_t> bits;
        for (double x : a->x) bits.push_back(Bf16(x).bits);
        hashes.push_back(hash_of(bits));
    }
    EXPECT_EQ(hashes, figures()["linear"]["operands"]);
}

void expect_torchaos(const std::string& recipe, const Products& ours) {
    const nlohmann::json &golden = figures()["linear"], &theirs = golden[recipe], &rows = golden["every_row"];
    Differing found;
    compare_rows(ours.y, theirs["y"], rows["y"], found);
    compare_rows(ours.dx, theirs["dx"], rows["dx"], found);
    compare_rows(ours.dw, theirs["dw"], rows["dw"], found);
    EXPECT_EQ(found.farther, "");
    EXPECT_LE(found.different * 1000, found.results);
}

std::string name_of_recipe(const ::testing::TestParamInfo<const char*>& info) { return info.param; }

class GoldenFloat8Linear : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, GoldenFloat8Linear,
                         ::testing::Values("tensorwise", "rowwise", "rowwise_with_gw_hp", "mx_floor", "mx_rceil"),
                         name_of_recipe);
TEST_P(GoldenFloat8Linear, ByDefinition) { expect_torchaos(GetParam(), by_definition(GetParam())); }

class GoldenFloat8Ops : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Recipes, GoldenFloat8Ops,
                         ::testing::Values("tensorwise", "rowwise", "rowwise_with_gw_hp", "mx_floor", "mx_rceil"),
                         name_of_recipe);
TEST_P(GoldenFloat8Ops, OfTheReference) { expect_torchaos(GetParam(), by_ops(GetParam(), kernels::reference_catalog())); }
TEST_P(GoldenFloat8Ops, OfTheProcessor) { expect_torchaos(GetParam(), by_ops(GetParam(), kernels::cpu_catalog(1))); }

// |got - exact| / |exact|
double error_of(const Matrix& got, const Matrix& exact) {
    double difference = 0, whole = 0;
    for (size_t i = 0; i < got.x.size(); ++i) {
        difference += std::pow(got.x[i] - exact.x[i], 2);
        whole += exact.x[i] * exact.x[i];
    }
    return std::sqrt(difference / whole);
}

// The figures of docs/float8.md.
TEST(GoldenFloat8Errors, AreThoseOfTheDocuments) {
    struct Errors {
        const char* recipe;
        double y, dx, dw;
    };
    const Operands o;
    const Products exact{exact_product(o.x, o.w), exact_product(o.dy, transposed(o.w)),
                         exact_product(transposed(o.dy), transposed(o.x))};
    for (const Errors& want : {Errors{"tensorwise", 0.038, 0.060, 0.061}, Errors{"rowwise", 0.037, 0.037, 0.038},
                               Errors{"rowwise_with_gw_hp", 0.037, 0.037, 0.002}, Errors{"blockwise", 0.034, 0.036, 0.035},
                               Errors{"mx_floor", 0.044, 0.050, 0.046}, Errors{"mx_rceil", 0.037, 0.037, 0.038}}) {
        const Products got = by_definition(want.recipe);
        const double y = error_of(got.y, exact.y), dx = error_of(got.dx, exact.dx), dw = error_of(got.dw, exact.dw);
        fmt::print("{:18} y {:.4f} dx {:.4f} dw {:.4f}\n", want.recipe, y, dx, dw);
        EXPECT_NEAR(y, want.y, 5e-4) << want.recipe;
        EXPECT_NEAR(dx, want.dx, 5e-4) << want.recipe;
        EXPECT_NEAR(dw, want.dw, 5e-4) << want.recipe;
    }
}

}  // namespace
}  // namespace float8
}  // namespace lockstep::testing
