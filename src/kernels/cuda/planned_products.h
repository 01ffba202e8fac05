// Algorithms of cuBLASLt that were chosen by measurement: a file of rows (`lockstep bench --products`), and the kernels that
// they make of a catalog. The name of such a kernel, and so the text of a program, has the library's version and the algorithm.
// In every build, also where nothing but plans is made.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel.h"

namespace lockstep::kernels::cuda {

// cublasLtMatmulAlgo_t: to be stored, and used again with the same version of the library, as its header says.
struct ProductAlgorithm {
    static constexpr size_t kWords = 8;
    std::array<uint64_t, kWords> words = {};
    int64_t workspace_bytes = 0;
    bool operator==(const ProductAlgorithm&) const = default;
};

// "cublaslt.matmul@130100_2f_0_7": version, then the words, in hexadecimal, without the zeros at the end.
std::string kernel_of(int64_t version, const ProductAlgorithm& algorithm);
struct ChosenAlgorithm {
    int64_t version = 0;
    std::array<uint64_t, ProductAlgorithm::kWords> words = {};
};
// Of a kernel's name; nothing: the library chooses. InternalError where the name is none.
std::optional<ChosenAlgorithm> chosen_by(std::string_view kernel);

// One product: out [m, n] = a [m, k] b [n, k]^T, and what is done to it before it is stored.
struct ProductRow {
    std::string op;  // einsum, addmm, linear, linear_gelu, matmul_dgelu
    int64_t m = 0, n = 0, k = 0;
    bool a_transposed = false, b_transposed = false;
    Dtype in = Dtype::F32, out = Dtype::F32;
    std::string epilogue;  // none, bias, gelu_bias, gelu_aux_bias, dgelu
    bool adds = false;     // to what is there: beta is 1
    bool operator==(const ProductRow&) const = default;
};
// Of an op that cuBLASLt serves; nothing: of another one.
std::optional<ProductRow> product_of(const KernelContext& context);

struct ChosenProduct {
    ProductRow product;
    ProductAlgorithm algorithm;
    double seconds = 0, first_seconds = 0;  // with it, and with the one that the library names first
};
struct ChosenProducts {
    std::string device;   // "NVIDIA H100 80GB HBM3"
    int64_t version = 0;  // of cuBLASLt
    std::vector<ChosenProduct> rows;
};
std::string print(const ChosenProducts& products);
// UserError runtime.products: the file cannot be read, or is none of these. It names file and line.
ChosenProducts read_chosen_products(const std::string& file);
// The same of its text.
ChosenProducts parse_chosen_products(const std::string& text, const std::string& file);

// Kernels of these rows, before those that the catalog has.
void add_chosen(ops::KernelCatalog& catalog, const ChosenProducts& products);
// Their times, for plans.
void add_times(ops::CostTable& table, const ChosenProducts& products);

}  // namespace lockstep::kernels::cuda
