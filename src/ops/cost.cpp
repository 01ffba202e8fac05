#include "ops/cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "ops/einsum.h"
#include "ops/rope.h"

namespace lockstep::ops {
namespace {

constexpr size_t kNeighbours = 6;

double product_of_sizes(const mesh::Mesh& mesh, const Routine& r, const ir::Tensor& t, int first, int last) {
    double n = 1;
    for (int i = first; i < last; ++i) n *= static_cast<double>(ir::local_size(mesh, r, t, i));
    return n;
}

const ir::Tensor& largest(const mesh::Mesh& mesh, const Routine& r, const Op& op) {
    TensorId best = op.out[0];
    for (const std::vector<TensorId>* list : {&op.in, &op.out}) {
        for (TensorId t : *list) {
            if (ir::local_elements(mesh, r, r.tensors[t]) > ir::local_elements(mesh, r, r.tensors[best])) best = t;
        }
    }
    return r.tensors[best];
}

// Attention and its like: one tensor lies along seq, another along kv_seq.
bool attention_sizes(const mesh::Mesh& mesh, const Routine& r, const Op& op, std::vector<double>& sizes) {
    const DimId kv_seq = r.dim(ir::DimRole::KvSeq), seq = r.dim(ir::DimRole::Seq);
    double keys = 0, queries = 0, heads = 0, width = 0;
    std::vector<TensorId> all = op.in;
    all.insert(all.end(), op.out.begin(), op.out.end());
    for (TensorId id : all) {
        const ir::Tensor& t = r.tensors[id];
        if (is_packed_qkv(r, id)) continue;
        const auto at = [&](DimId d) { return std::find(t.dims.begin(), t.dims.end(), d) - t.dims.begin(); };
        const auto rank = static_cast<std::ptrdiff_t>(t.dims.size());
        if (kv_seq >= 0 && at(kv_seq) < rank)
            keys = static_cast<double>(ir::local_size(mesh, r, t, static_cast<int>(at(kv_seq))));
        if (t.dims.size() == 5 && seq >= 0 && at(seq) < rank) {
            queries = static_cast<double>(ir::local_size(mesh, r, t, static_cast<int>(at(seq))));
            width = static_cast<double>(ir::local_size(mesh, r, t, 4));
            heads = product_of_sizes(mesh, r, t, 0, 5) / queries / width;
        }
    }
    if (keys == 0 || queries == 0) return false;
    sizes = {heads, queries, keys, width};
    return true;
}

double at_threads(const std::vector<double>& rates, int threads) {
    if (rates.empty()) return 0;
    return rates[std::min(rates.size(), static_cast<size_t>(std::max(threads, 1))) - 1];
}

double distance(const CostKey& a, const CostKey& b) {
    double sum = 0;
    for (size_t i = 0; i < std::min(a.sizes.size(), b.sizes.size()); ++i) {
        const double d = std::log(std::max(a.sizes[i], 1.0) / std::max(b.sizes[i], 1.0));
        sum += d * d;
    }
    return sum + (a.sizes.size() == b.sizes.size() ? 0 : 100);
}

// Rows that speak of this op, the most like it: same kernel, storage and threads, then less and less of that.
std::vector<const CostRow*> rows_for(const CostTable& table, const CostKey& key) {
    const auto alike = [&](auto same) {
        std::vector<const CostRow*> found;
        for (const CostRow& row : table.rows) {
            if (row.key.op == key.op && row.key.kernel == key.kernel && row.key.dtype == key.dtype && same(row.key))
                found.push_back(&row);
        }
        return found;
    };
    auto found = alike([&](const CostKey& k) { return k.variant == key.variant && k.threads == key.threads; });
    if (found.empty()) found = alike([&](const CostKey& k) { return k.threads == key.threads; });
    if (found.empty()) found = alike([&](const CostKey& k) { return k.variant == key.variant; });
    if (found.empty()) found = alike([](const CostKey&) { return true; });
    return found;
}

// Whatever they are added to. Every product of float8 costs what one of E4M3 does.
Dtype type_of_factors(const Routine& r, const Op& op) {
    const Dtype type = r.tensors[op.in[static_cast<size_t>(first_factor(op)) + 1]].dtype;
    return is_float8(type) ? Dtype::F8E4M3 : type;
}

}  // namespace

CostKey cost_key(const mesh::Mesh& mesh, const Routine& r, const Op& op, int threads) {
    CostKey key{op.kind, op.kernel, std::string(name_of(r.tensors[op.out[0]].dtype)), "", threads, {}, 0, 0};
    for (TensorId t : op.in) {
        if (!is_integer(r.tensors[t].dtype)) {
            key.dtype = name_of(r.tensors[t].dtype);
            break;
        }
    }
    key.flops = flops_of(mesh, r, op).executed;
    key.bytes = static_cast<double>(bytes_moved(mesh, r, op));
    MatmulShape shape;
    if (is_matmul(mesh, r, op, &shape)) {
        key.dtype = name_of(type_of_factors(r, op));
        key.variant = std::string(shape.a_transposed ? "t" : "n") + (shape.b_transposed ? "n" : "t");
        key.sizes = {static_cast<double>(shape.m), static_cast<double>(shape.n), static_cast<double>(shape.k)};
        return key;
    }
    if (attention_sizes(mesh, r, op, key.sizes)) return key;
    const ir::Tensor& t = largest(mesh, r, op);
    const int dims = static_cast<int>(t.dims.size());
    key.sizes = {dims > 1 ? product_of_sizes(mesh, r, t, 0, dims - 1) : 1.0,
                 product_of_sizes(mesh, r, t, std::max(dims - 1, 0), dims)};
    return key;
}

std::string rates_name(Dtype type) { return is_float8(type) ? "f8" : std::string(name_of(type)); }

double flops_roof(const CostTable& table, const std::string& dtype, int threads) {
    const std::optional<Dtype> type = dtype_from(dtype);
    auto rates = table.flops_per_s.find(type ? rates_name(*type) : dtype);
    // A machine that has no rate of float8 decodes it to bfloat16.
    if (rates == table.flops_per_s.end() && type && is_float8(*type)) rates = table.flops_per_s.find("bf16");
    if (rates == table.flops_per_s.end()) rates = table.flops_per_s.find("f32");
    return rates == table.flops_per_s.end() ? 0 : at_threads(rates->second, threads);
}

double bytes_roof(const CostTable& table, int threads) { return at_threads(table.bytes_per_s, threads); }

namespace {

const KernelRate& rate_of(const CostTable& table, const CostKey& key) {
    static const KernelRate none;
    for (const std::string& kernel : {key.kernel, std::string()}) {
        if (const auto rate = table.kernel_rates.find({key.op, kernel}); rate != table.kernel_rates.end()) return rate->second;
    }
    return none;
}

// The names of an op's sizes, in their order.
std::span<const std::string> names_of_sizes(const CostKey& key) {
    static const std::array<std::string, 3> product = {"m", "n", "k"};
    static const std::array<std::string, 4> attention = {"heads", "seq", "kv_seq", "head_dim"};
    static const std::array<std::string, 2> other = {"rows", "columns"};
    if (!key.variant.empty()) return product;
    if (key.sizes.size() == attention.size()) return attention;
    return other;
}

// The used part of the waves of the best tile.
double share_of_waves(const KernelRate& rate, int processors, double m, double n) {
    double best = 0;
    for (const Tile& t : rate.tiles) {
        for (const auto& [rows, columns] : {std::pair{t.rows, t.columns}, {t.columns, t.rows}}) {
            const double waves = std::ceil(std::ceil(m / rows) * std::ceil(n / columns) / processors);
            best = std::max(best, t.share * m * n / (waves * processors * rows * columns));
        }
    }
    return std::pow(best, rate.wave_exponent);
}

double product_share(const CostTable& table, const KernelRate& rate, const CostKey& key) {
    double share = rate.of_products > 0 ? rate.of_products * table.product_efficiency
                   : rate.product > 0   ? rate.product
                                        : table.product_efficiency;
    const auto names = names_of_sizes(key);
    for (const Ramp& ramp : rate.ramps) {
        const auto at = std::find(names.begin(), names.end(), ramp.size) - names.begin();
        if (at < static_cast<std::ptrdiff_t>(key.sizes.size())) share *= key.sizes[at] / (key.sizes[at] + ramp.half);
    }
    if (key.variant.empty()) return share;
    const double m = key.sizes[0], n = key.sizes[1], k = key.sizes[2];
    if (!rate.tiles.empty() && table.processors > 0) share *= share_of_waves(rate, table.processors, m, n);
    if (rate.aligned_to > 0 && (std::fmod(n, rate.aligned_to) != 0 || std::fmod(k, rate.aligned_to) != 0))
        share *= rate.unaligned;
    return share;
}

// Of a product's factors, those whose innermost dim is not the one that is summed over.
double turned_elements(const CostKey& key) {
    if (key.variant.empty()) return 0;
    return key.sizes[2] * ((key.variant[0] == 't' ? key.sizes[0] : 0) + (key.variant[1] == 'n' ? key.sizes[1] : 0));
}

double bandwidth_share(const CostTable& table, const KernelRate& rate) {
    return rate.bandwidth > 0 ? rate.bandwidth : table.bandwidth_efficiency;
}

}  // namespace

const std::vector<std::string>& size_names() {
    static const std::vector<std::string> names = {"m", "n", "k", "heads", "seq", "kv_seq", "head_dim", "rows", "columns"};
    return names;
}

double rated_s(const CostTable& table, const CostKey& key) {
    const double flops = flops_roof(table, key.dtype, key.threads), bytes = bytes_roof(table, key.threads);
    const KernelRate& rate = rate_of(table, key);
    const double bytes_per_s = bytes * bandwidth_share(table, rate);
    const double product_s = flops > 0 ? rate.flops * key.flops / flops / product_share(table, rate, key) : 0;
    const double copy_s = bytes_per_s > 0 ? rate.traffic * key.bytes / bytes_per_s : 0;
    const double scores_s = rate.score_bytes > 0 && key.sizes.size() == 4 && bytes_per_s > 0
                                ? rate.score_bytes * key.sizes[0] * key.sizes[1] * key.sizes[2] / bytes_per_s
                                : 0;
    const double turn_s = rate.turned_bytes > 0 && bytes_per_s > 0 ? rate.turned_bytes * turned_elements(key) / bytes_per_s : 0;
    return table.op_overhead_s + std::max(product_s, copy_s) + scores_s + turn_s;
}

double price_of(const CostTable& table, double distance_bytes, int threads, double ranks) {
    double price = table.caches.empty() ? 1 : 0;
    for (const CacheLevel& level : table.caches) {
        const double reached = std::ceil(static_cast<double>(threads) / level.cores),  // by the rank's threads
            share = table.cores / (level.cores * ranks);
        if (distance_bytes <= level.bytes * std::min(reached, share)) return price;
        price = level.price_beyond;
    }
    return price;
}

OpCost cost_of(const CostTable& table, const CostKey& key, double cold) {
    // Rows call warm what finds the op's own operands again.
    const double own = price_of(table, key.bytes, key.threads, 1);
    if (own < 1) cold = std::max(0.0, (cold - own) / (1 - own));
    const double rated = rated_s(table, key);
    std::vector<std::pair<double, const CostRow*>> near;
    for (const CostRow* row : rows_for(table, key)) near.emplace_back(distance(key, row->key), row);
    const size_t count = std::min(near.size(), kNeighbours);
    std::partial_sort(near.begin(), near.begin() + static_cast<long>(count), near.end());
    double warm = 0, full = 0, crowded = 0, weights = 0;  // means of the logarithms of the ratios
    for (size_t i = 0; i < count; ++i) {
        const CostRow& row = *near[i].second;
        const double weight = 1 / (near[i].first * near[i].first + 1e-6), base = std::max(rated_s(table, row.key), 1e-12);
        warm += weight * std::log(row.warm_s / base), full += weight * std::log(row.cold_s / base);
        crowded += weight * std::log(row.crowded_s / base);
        weights += weight;
    }
    if (weights == 0) {
        const double bytes = bytes_roof(table, table.cores);
        const KernelRate& rate = rate_of(table, key);
        return {rated, bytes > 0 ? rate.traffic * key.bytes / bytes / bandwidth_share(table, rate) : 0, false};
    }
    const double warm_s = rated * std::exp(warm / weights), cold_s = std::max(warm_s, rated * std::exp(full / weights)),
                 crowded_s = std::max(cold_s, rated * std::exp(crowded / weights));
    // What it takes with every core busy, shared out: n of them, each for itself, would need n times that of the memory.
    const double busy = std::max(1.0, std::floor(static_cast<double>(table.cores) / key.threads));
    return {warm_s + cold * (cold_s - warm_s), (warm_s + cold * (crowded_s - warm_s)) / busy, true};
}

CollectiveCost collective_cost(const CostTable& table, mesh::Collective kind, int members, double block_bytes) {
    const mesh::CollectiveTraits& traits = mesh::traits_of(kind);
    // Rows of the nearest number of members, in ascending order of bytes.
    int nearest = 0;
    for (const CollectiveRow& row : table.collectives) {
        if (row.op == traits.name && (nearest == 0 || std::abs(row.members - members) < std::abs(nearest - members)))
            nearest = row.members;
    }
    std::vector<const CollectiveRow*> points;
    for (const CollectiveRow& row : table.collectives) {
        if (row.op == traits.name && row.members == nearest) points.push_back(&row);
    }
    // A member copies n blocks to gather, reads n to reduce its own; of an all-reduce its slice of n, whatever n is.
    const bool one_block = traits.gives != mesh::Blocks::Members && traits.takes != mesh::Blocks::Members;
    if (nearest > 0 && !one_block) block_bytes *= static_cast<double>(members) / nearest;
    if (points.empty()) {
        const double bytes = bytes_roof(table, table.cores) / std::max(1, table.cores),
                     copy_s = bytes > 0 ? (one_block ? 2 : 2.0 * members) * block_bytes / bytes : 0;
        return {copy_s, copy_s};
    }
    std::sort(points.begin(), points.end(), [](const auto* a, const auto* b) { return a->block_bytes < b->block_bytes; });
    const auto mix = [](const CollectiveRow& a, double of_a, const CollectiveRow& b, double of_b) {
        return CollectiveCost{of_a * a.time_s + of_b * b.time_s, of_a * a.core_s + of_b * b.core_s};
    };
    if (block_bytes <= points.front()->block_bytes) return mix(*points[0], 1, *points[0], 0);
    for (size_t i = 1; i < points.size(); ++i) {
        const CollectiveRow &below = *points[i - 1], &above = *points[i];
        const double part = (block_bytes - below.block_bytes) / (above.block_bytes - below.block_bytes);
        if (part <= 1) return mix(below, 1 - part, above, part);
    }
    return mix(*points.back(), block_bytes / points.back()->block_bytes, *points.back(), 0);
}

double block_bytes(const mesh::Mesh& mesh, const Routine& r, const Op& op, size_t i) {
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    const bool is_result = traits.takes == mesh::Blocks::One && traits.gives != mesh::Blocks::One;
    const double bytes = static_cast<double>(ir::local_bytes(mesh, r, r.tensors[is_result ? op.out[i] : op.in[i]]));
    return !is_result && traits.gives == mesh::Blocks::Members ? bytes / static_cast<double>(mesh.size(op.group)) : bytes;
}

CollectiveCost collective_cost(const CostTable& table, const mesh::Mesh& mesh, const Routine& r, const Op& op) {
    const mesh::CollectiveTraits& traits = ir::traits_of(op);
    if (!traits.moves_bytes()) return {};
    double bytes = 0;
    for (size_t i = 0; i < std::max(op.in.size(), op.out.size()); ++i) bytes += block_bytes(mesh, r, op, i);
    return collective_cost(table, traits.kind, traits.symmetric ? static_cast<int>(mesh.size(op.group)) : 2, bytes);
}

}  // namespace lockstep::ops
