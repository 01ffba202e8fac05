#include "kernels/cuda/planned_products.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>

#include "base/error.h"
#include "base/text_file.h"
#include "base/toml.h"
#include "kernels/cuda/product_kernels.h"

namespace lockstep::kernels::cuda {
namespace {

using Words = std::array<uint64_t, ProductAlgorithm::kWords>;

std::string kernel_name() { return std::string(kProductsName) + ".matmul"; }

// A number of all characters of `text`.
template <class T>
bool read_number(std::string_view text, int base, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    return !text.empty() && error == std::errc() && end == text.data() + text.size();
}
// Words in hexadecimal, between underscores.
bool read_words(std::string_view text, Words& words) {
    for (uint64_t& word : words) {
        const size_t end = text.find('_');
        if (!read_number(text.substr(0, end), 16, word)) return false;
        if (end == std::string_view::npos) return true;
        text.remove_prefix(end + 1);
    }
    return false;
}
std::string text_of(const Words& words) {
    size_t count = words.size();
    while (count > 1 && words[count - 1] == 0) --count;
    std::string out;
    for (size_t i = 0; i < count; ++i) out += fmt::format("{}{:x}", i == 0 ? "" : "_", words[i]);
    return out;
}

std::string epilogue_of(const ir::Op& op) {
    if (op.kind == ir::kLinear) return "bias";
    if (op.kind == ir::kLinearGelu) return op.out.size() == 2 ? "gelu_aux_bias" : "gelu_bias";
    if (op.kind == ir::kMatmulDgelu) return "dgelu";
    return "none";
}
constexpr std::string_view kOps[] = {ir::kEinsum, ir::kAddmm, ir::kLinear, ir::kLinearGelu, ir::kMatmulDgelu};

constexpr std::string_view kEpilogues[] = {"none", "bias", "gelu_bias", "gelu_aux_bias", "dgelu"};

// Whether the op is that product. Adding is no part of it: the first of a step's microbatches overwrites.
bool is(const ProductRow& row, const KernelContext& c) {
    std::optional<ProductRow> own = product_of(c);
    if (own) own->adds = row.adds;
    return own && *own == row;
}

// ---- The file.

constexpr const char* kHead =
    "# Written by `lockstep bench --products`: for each product the algorithm of cuBLASLt that was fastest. Of use with\n"
    "# runtime.products, on this device and with this version of the library.\n";

UserError refusal(const std::string& file, const std::string& why) {
    return UserError("runtime.products", "runtime.products",
                     fmt::format("runtime.products = \"{}\": {}; lockstep bench --products RECIPE --out {} writes such a file",
                                 file, why, file));
}

class RowReader {
public:
    RowReader(const toml::table& table, const std::string& file) : table_(table), file_(file) {}

    template <class T>
    T take(const char* key, const char* what) {
        const toml::node* node = table_.get(key);
        const auto value = node ? node->value_exact<T>() : std::nullopt;
        if (!value) refuse(key, what);
        return *value;
    }
    int64_t size(const char* key) {
        const auto value = take<int64_t>(key, "a whole number of at least 1");
        if (value < 1) refuse(key, "a whole number of at least 1");
        return value;
    }
    double seconds(const char* key) {
        const auto value = take<double>(key, "seconds, more than 0");
        if (!(value > 0) || !std::isfinite(value)) refuse(key, "seconds, more than 0");
        return value;
    }
    Dtype type(const char* key) {
        const auto name = take<std::string>(key, "f32, bf16 or f16");
        for (const Dtype t : {Dtype::F32, Dtype::BF16, Dtype::F16}) {
            if (name == name_of(t)) return t;
        }
        refuse(key, "f32, bf16 or f16");
    }
    [[noreturn]] void refuse(const char* key, const char* what) const {
        const toml::node* node = table_.get(key);
        const auto line = (node ? node->source() : table_.source()).begin.line;
        throw UserError("runtime.products", "runtime.products",
                        fmt::format("{}, line {}: {} must be {}; write the file again with lockstep bench --products RECIPE",
                                    file_, line, key, what));
    }

private:
    const toml::table& table_;
    const std::string& file_;
};

ChosenProduct read_row(const toml::table& table, const std::string& file) {
    RowReader r(table, file);
    ChosenProduct out;
    ProductRow& p = out.product;
    p.op = r.take<std::string>("op", "a product's op");
    if (std::find(std::begin(kOps), std::end(kOps), p.op) == std::end(kOps)) r.refuse("op", "a product's op");
    p.m = r.size("m"), p.n = r.size("n"), p.k = r.size("k");
    p.a_transposed = r.take<bool>("a_transposed", "true or false");
    p.b_transposed = r.take<bool>("b_transposed", "true or false");
    p.in = r.type("in"), p.out = r.type("out");
    constexpr const char* kEpilogue = "none, bias, gelu_bias, gelu_aux_bias or dgelu";
    p.epilogue = r.take<std::string>("epilogue", kEpilogue);
    if (std::find(std::begin(kEpilogues), std::end(kEpilogues), p.epilogue) == std::end(kEpilogues))
        r.refuse("epilogue", kEpilogue);
    p.adds = r.take<bool>("adds", "true or false");
    out.algorithm.workspace_bytes = r.take<int64_t>("workspace_bytes", "a number of bytes, at most 1 GiB");
    if (out.algorithm.workspace_bytes < 0 || out.algorithm.workspace_bytes > int64_t{1} << 30)
        r.refuse("workspace_bytes", "a number of bytes, at most 1 GiB");
    const auto words = r.take<std::string>("words", "up to eight words in hexadecimal, between underscores");
    if (!read_words(words, out.algorithm.words)) r.refuse("words", "up to eight words in hexadecimal, between underscores");
    out.seconds = r.seconds("seconds"), out.first_seconds = r.seconds("first_seconds");
    return out;
}

}  // namespace

std::string kernel_of(int64_t version, const ProductAlgorithm& a) {
    return fmt::format("{}@{}_{}", kernel_name(), version, text_of(a.words));
}

std::optional<ChosenAlgorithm> chosen_by(std::string_view kernel) {
    const size_t at = kernel.find('@');
    if (at == std::string_view::npos) return std::nullopt;
    ChosenAlgorithm out;
    const std::string_view rest = kernel.substr(at + 1);
    const size_t end = rest.find('_');
    const bool is_one = end != std::string_view::npos && read_number(rest.substr(0, end), 10, out.version) &&
                        read_words(rest.substr(end + 1), out.words);
    ensure(is_one, fmt::format("{} names no algorithm of cuBLASLt", kernel));
    return out;
}

std::optional<ProductRow> product_of(const KernelContext& c) {
    ops::MatmulShape s;
    const bool is_known = std::find(std::begin(kOps), std::end(kOps), c.op.kind) != std::end(kOps);
    if (!is_known || !ops::is_matmul(c.mesh, c.routine, c.op, &s)) return std::nullopt;
    const size_t first = c.op.kind == ir::kAddmm ? 1 : 0;
    return ProductRow{c.op.kind,
                      s.m,
                      s.n,
                      s.k,
                      s.a_transposed,
                      s.b_transposed,
                      c.in(first).dtype,
                      c.out(0).dtype,
                      epilogue_of(c.op),
                      c.op.kind == ir::kAddmm || c.op.accumulates(0)};
}

std::string print(const ChosenProducts& all) {
    std::string text = fmt::format("{}device = \"{}\"\nversion = {}\n", kHead, all.device, all.version);
    for (const ChosenProduct& row : all.rows) {
        const ProductRow& p = row.product;
        text += fmt::format(
            "\n[[products]]\nop = \"{}\"\nm = {}\nn = {}\nk = {}\na_transposed = {}\nb_transposed = {}\nin = \"{}\"\nout = \"{}\"\n"
            "epilogue = \"{}\"\nadds = {}\nworkspace_bytes = {}\nwords = \"{}\"\nseconds = {:.4e}\nfirst_seconds = {:.4e}\n",
            p.op, p.m, p.n, p.k, p.a_transposed, p.b_transposed, name_of(p.in), name_of(p.out), p.epilogue, p.adds,
            row.algorithm.workspace_bytes, text_of(row.algorithm.words), row.seconds, row.first_seconds);
    }
    return text;
}

ChosenProducts read_chosen_products(const std::string& file) {
    const TextFile text = read_text_file(file);
    if (!text.is_readable()) throw refusal(file, fmt::format("cannot be read ({})", text.reason));
    return parse_chosen_products(text.text, file);
}

ChosenProducts parse_chosen_products(const std::string& text, const std::string& file) {
    toml::table top;
    try {
        top = parse_toml(text, file);
    } catch (const toml::parse_error& e) {
        throw refusal(file, fmt::format("line {} is no TOML: {}", e.source().begin.line, e.description()));
    }
    ChosenProducts out;
    const auto device = top["device"].value<std::string>();
    const auto version = top["version"].value<int64_t>();
    const toml::array* rows = top["products"].as_array();
    const auto is_plain = [](char c) { return c >= ' ' && c != '"' && c != '\\' && c != 127; };
    if (!device || !version || !std::all_of(device->begin(), device->end(), is_plain) || (top.contains("products") && !rows))
        throw refusal(file, "it has no device, version and [[products]], as a file of products has");
    out.device = *device, out.version = *version;
    for (size_t i = 0; rows && i < rows->size(); ++i) {
        const toml::table* row = rows->get(i)->as_table();
        if (!row) throw refusal(file, "its products are no tables");
        out.rows.push_back(read_row(*row, file));
    }
    return out;
}

void add_chosen(ops::KernelCatalog& catalog, const ChosenProducts& products) {
    std::vector<ops::KernelEntry> added;
    for (const ChosenProduct& row : products.rows) {
        for (const ops::KernelEntry& e : catalog.entries) {
            if (e.kernel != kernel_name() || e.op != row.product.op || e.dtype != row.product.out) continue;
            ops::KernelEntry chosen = e;
            chosen.kernel = kernel_of(products.version, row.algorithm);
            chosen.serves = [product = row.product, any = e.serves](const mesh::Mesh& mesh, const ir::Routine& r,
                                                                    const ir::Op& op) {
                return any(mesh, r, op) && is(product, {mesh, r, op, 0, 1});
            };
            chosen.workspace_bytes = [bytes = row.algorithm.workspace_bytes](const mesh::Mesh&, const ir::Routine&,
                                                                             const ir::Op&) {
                return whole_product_bytes(bytes);
            };
            added.push_back(std::move(chosen));
        }
    }
    catalog.entries.insert(catalog.entries.begin(), added.begin(), added.end());
}

void add_times(ops::CostTable& table, const ChosenProducts& products) {
    for (const ChosenProduct& row : products.rows) {
        const ProductRow& p = row.product;
        const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.k);
        ops::CostKey key{p.op, kernel_of(products.version, row.algorithm), std::string(name_of(p.in)), "", 1, {m, n, k}, 0, 0};
        key.variant = std::string(p.a_transposed ? "t" : "n") + (p.b_transposed ? "n" : "t");
        key.flops = 2 * m * n * k;
        const auto in = static_cast<double>(bytes_of(p.in)), out = static_cast<double>(bytes_of(p.out));
        const bool has_bias = p.epilogue.find("bias") != std::string::npos,
                   has_other = p.op == ir::kAddmm || p.epilogue == "gelu_aux_bias" || p.epilogue == "dgelu";
        key.bytes = in * (m * k + n * k) + out * m * n * (has_other ? 2 : 1) + (has_bias ? in * n : 0);  // as ops::bytes_moved
        table.rows.push_back({key, row.seconds, row.seconds, row.seconds});
    }
}

}  // namespace lockstep::kernels::cuda
