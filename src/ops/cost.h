// What ops cost on a machine, as plain data next to the kernel catalog: rows measured for kernels and shapes, and the machine's
// rates for what no row covers. It speaks of op kinds, kernels, dtypes and sizes, so a new op is served as soon as it is
// measured, and by the rates before that. Never a whole step, a layer or a routine.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ops/rule.h"

namespace lockstep::ops {

// An op on one rank as the tables see it. Sizes: of a product m, n, k; of attention heads, seq, kv_seq, head_dim; of any other
// op rows and columns of its largest tensor.
struct CostKey {
    std::string op, kernel, dtype;
    std::string variant;  // of a product: how the operands are stored; else empty
    int threads = 1;
    std::vector<double> sizes;
    double flops = 0, bytes = 0;  // executed FLOPs (flops_of) and bytes_moved
};
CostKey cost_key(const mesh::Mesh& mesh, const Routine& routine, const Op& op, int threads);

struct CostRow {
    CostKey key;
    double warm_s = 0;     // operands in the cache
    double cold_s = 0;     // operands in memory
    double crowded_s = 0;  // operands in memory, all other cores doing the same
};

// A collective inside one process: every member's thread does its share of the copying.
struct CollectiveRow {
    std::string op;
    int members = 0;
    double block_bytes = 0;  // of one block (mesh/collective.h)
    double time_s = 0;       // from the arrival of the last member; times cores / members if members outnumber cores
    double core_s = 0;       // the part of time_s in which a member's thread computes; the rest is waking up
};

// A cache level shared by `cores` cores. price_beyond: the cost of a miss, from 0 (as in the nearest cache)
// to 1 (as in memory).
struct CacheLevel {
    double bytes = 0;
    int cores = 1;
    double price_beyond = 1;
};

// A share n / (n + half) of a rate, where n is the op's size of that name (CostKey): short ones leave a device idle.
struct Ramp {
    std::string size;
    double half = 0;
};

// A tile of a product's result that one processor of a device computes, and the share of the rate that it reaches by itself.
struct Tile {
    double rows = 0, columns = 0, share = 1;
};

// How fast a kernel is, and what it does besides what its op counts. 0, empty, none: as the table says.
struct KernelRate {
    double product = 0, bandwidth = 0;  // shares of the rates
    double of_products = 0;             // in place of `product`: of the table's product_efficiency
    std::vector<Ramp> ramps;            // of the share of FLOPs
    // Products: whole waves of the best tile over the processors are computed, whatever part of them is used. The used part to
    // the power of wave_exponent is the share of the rate; where n or k is no multiple of aligned_to, also `unaligned`.
    std::vector<Tile> tiles;
    double wave_exponent = 1, aligned_to = 0, unaligned = 1;
    double flops = 1;         // executed, over the op's
    double traffic = 1;       // bytes moved, over operands and results
    double score_bytes = 0;   // moved per query, key and head of attention, after its products
    double turned_bytes = 0;  // moved, before a product, per element of a factor whose innermost dim is not summed over
};
// By op and kernel; no kernel: any that is not named.
using KernelRates = std::map<std::pair<std::string, std::string>, KernelRate>;

// Under which name a machine has its rate for a type: its own, or "f8" for both types of float8.
std::string rates_name(Dtype type);

// The names of CostKey::sizes, by the op's kind.
const std::vector<std::string>& size_names();

struct CostTable {
    int cores = 1;                   // that share memory
    std::vector<CacheLevel> caches;  // the nearest first
    double op_overhead_s = 0;        // in addition to the kernel's own
    double step_overhead_s = 0;      // waking the ranks
    // By the name of rates (rates_name), [i]: i + 1 threads together. Without its rates float8 has those of bf16, and all else
    // those of f32.
    std::map<std::string, std::vector<double>> flops_per_s;
    std::vector<double> bytes_per_s;  // copies: read plus written
    // Of the rates, what kernels reach where no row says more.
    double product_efficiency = 1, bandwidth_efficiency = 1;
    int processors = 0;        // of a device, over which tiles are spread; 0: not said
    KernelRates kernel_rates;  // of single kernels
    std::vector<CostRow> rows;
    std::vector<CollectiveRow> collectives;
};

// A resource model of one op: by itself it takes max(core_s, memory_s); where several run at once they share the memory, and
// each needs it, all for itself, for memory_s.
struct OpCost {
    double core_s = 0, memory_s = 0;
    bool measured = false;  // by rows of this kernel
};

// The price of bytes that a rank touches again after `distance_bytes` others, if `ranks` ranks of `threads` threads share the
// cores.
double price_of(const CostTable& table, double distance_bytes, int threads, double ranks);

// `cold`: the mean price of the op's bytes. Between measured shapes the ratio to the
// rates' estimate is interpolated, in the logarithms of the sizes; so the estimate carries the growth, the rows the rest.
OpCost cost_of(const CostTable& table, const CostKey& key, double cold);

// The least that the rates allow: the larger of FLOPs and bytes over their rates.
double rated_s(const CostTable& table, const CostKey& key);
double flops_roof(const CostTable& table, const std::string& dtype, int threads);
double bytes_roof(const CostTable& table, int threads);

struct CollectiveCost {
    double time_s = 0, core_s = 0;  // as in CollectiveRow
};
// Interpolated in bytes; of other numbers of members by the bytes that a member moves.
CollectiveCost collective_cost(const CostTable& table, mesh::Collective kind, int members, double block_bytes);
// Of an op with all its operands.
CollectiveCost collective_cost(const CostTable& table, const mesh::Mesh& mesh, const Routine& routine, const Op& op);
// The bytes of one member's block of the op's i-th operand (mesh/ring.h).
double block_bytes(const mesh::Mesh& mesh, const Routine& routine, const Op& op, size_t i);

}  // namespace lockstep::ops
