// The rows of a cluster file's tables (fields.h), in the order in which they are printed. [[catalog]] and rates of kernels have
// theirs in catalog_keys.h. `lockstep clusters --keys` prints them all.
#pragma once

#include "sim/catalog_keys.h"
#include "sim/cluster.h"
#include "sim/fields.h"

namespace lockstep::sim {

// Bounds only keep what is computed from the numbers finite.
inline constexpr Allowed kCount = from_to(1, 1 << 20), kBytes = from_to(0, 0x1p50), kRate = above_to(0, 1e24),
                         kSeconds = from_to(0, 3600), kShare = from_to(0, 1), kEfficiency = above_to(0, 1),
                         kAmount = from_to(0, 1e24), kRowSeconds = above_to(0, 1e6), kBytesOfElement = from_to(0, 64);

// Keys that no member of a Cluster holds as they are.
struct OtherKeys {
    std::string kernels, chip_class, chip, cluster, stack;
    double mtbf_hours = 0;  // mtbf_hours_of reads it
    std::vector<std::string> instruction_sets;
};
// Generations of attention kernels.
std::vector<std::string> attention_kernels();

inline constexpr Field<OtherKeys> kKernelsKey[] = {field<&OtherKeys::kernels>(
    "kernels",
    "a file with [[catalog]] and [[ops]] that chips share; a chip's file may name it too. Later files override earlier "
    "ones: kernels, class, chip, on, cluster, stack",
    {}, Printed::Never)};
inline constexpr Field<OtherKeys> kClassKey[] = {
    field<&OtherKeys::chip_class>("class",
                                  "a file of clusters/classes: what is known of chips like this one, with the spread of each "
                                  "number; a chip's file may name it too",
                                  {}, Printed::Never)};
inline constexpr Field<OtherKeys> kChipKey[] = {
    field<&OtherKeys::chip>("chip",
                            "a file in the folder of this one, with rates and kernels of a device; keys of this file override "
                            "the chip's",
                            {}, Printed::Never),
    field<&OtherKeys::cluster>("on",
                               "the file of a cluster that this one changes; a [[links]] table changes the one with the same "
                               "ranks",
                               {}, Printed::Never)};
inline constexpr Field<OtherKeys> kOnKey[] = {
    field<&OtherKeys::stack>("on", "the file of a stack that this one changes", {}, Printed::Never)};

inline constexpr Field<Cluster> kTop[] = {
    field<&Cluster::name>("name", "name of the machine"),
    field<&Cluster::description>("description", "what the machine is"),
    field<&Cluster::declared>("declared", "true: rates are published; false: measured"),
};

inline constexpr Field<Cluster> kMachine[] = {
    field<&Cluster::devices>("devices", "true: each rank has a device to itself; false: ranks are threads that share the cores"),
    field<&Cluster::costs, &ops::CostTable::cores>("cores", "cores that share memory", kCount),
    field<&Cluster::memory_bytes>("memory_bytes", "memory of a device, or of the machine; 0: not said", kBytes, Printed::Always,
                                  "{}"),
    field<&Cluster::reserve_bytes>("reserve_bytes", "of memory_bytes, what is outside the arena (libraries, drivers)", kBytes,
                                   Printed::Always, "{}"),
    field<&Cluster::peer_access>("peer_access",
                                 "devices of a host read and write each other's memory, as those with NVLink do: Lockstep's "
                                 "collectives among them then take no processors",
                                 {}, Printed::UnlessDefault),
};
inline constexpr Field<OtherKeys> kMachineOther[] = {
    field<&OtherKeys::mtbf_hours>("mtbf_hours", "hours of a device between two failures", from_to(0, 1e9), Printed::Never),
    field<&OtherKeys::instruction_sets>("instruction_sets",
                                        "of a processor: one of baseline, avx2 and avx512; with avx512 also avx512_bf16 or "
                                        "fast_avx512_bf16, and amx; onednn if the build has it",
                                        one_of([] { return instruction_set_words(); }), Printed::UnlessDefault),
};

inline constexpr Field<Cluster> kRates[] = {
    field<&Cluster::costs, &ops::CostTable::bytes_per_s>(
        "bytes_per_s", "bytes that copies read and write in a second; with 1, 2, .. threads", kRate),
    field<&Cluster::costs, &ops::CostTable::op_overhead_s>("op_overhead_s", "seconds of an op in addition to its kernel",
                                                           kSeconds),
    field<&Cluster::costs, &ops::CostTable::step_overhead_s>("step_overhead_s", "seconds of a step, to wake the ranks", kSeconds),
    field<&Cluster::costs, &ops::CostTable::product_efficiency>("product_efficiency", "share of flops_per_s that products reach",
                                                                kEfficiency),
    field<&Cluster::costs, &ops::CostTable::bandwidth_efficiency>("bandwidth_efficiency",
                                                                  "share of bytes_per_s that kernels reach", kEfficiency),
    field<&Cluster::costs, &ops::CostTable::processors>(
        "processors", "processors of a device, over which tiles are spread; 0: not said", kCount, Printed::UnlessDefault),
    field<&Cluster::beside_collective>("beside_collective",
                                       "share of a device's rates that ops keep during a collective that takes processors",
                                       kEfficiency, Printed::UnlessDefault),
};

// One list of rates for each element type, [rates.flops_per_s].
struct RatesOfType {
    std::vector<double> flops_per_s;
};
inline constexpr Field<RatesOfType> kRatesOfType[] = {field<&RatesOfType::flops_per_s>(
    "TYPE",
    "FLOPs in a second, by element type: f64, f32, f16, bf16, and f8 for both types of float8; with 1, 2, .. threads. Without its "
    "rates f8 has those of bf16, and another type those of f32",
    kRate)};

inline constexpr Field<Hosts> kHosts[] = {
    field<&Hosts::ranks>("ranks", "ranks of a host", kCount),
    field<&Hosts::ranks_per_process>("ranks_per_process", "ranks of a process", kCount),
    field<&Hosts::share_cores>("share_cores", "several hosts are one machine, and all ranks share its cores"),
    field<&Hosts::link, &mesh::Link::bandwidth_bytes_per_s>("bandwidth_bytes_per_s",
                                                            "rate that large gathers and reductions reach on a host's link",
                                                            kRate, Printed::UnlessDefault, "{:.6g}"),
    field<&Hosts::link, &mesh::Link::latency_s>(
        "latency_s", "seconds of a message of the smallest collective, among ranks that compute before it", kSeconds),
    field<&Hosts::core_s_per_byte>("core_s_per_byte", "core time of both ends for a byte on the link", kShare),
    field<&Hosts::process_bytes_per_s>("process_bytes_per_s", "rate between two processes of a host; without it not counted",
                                       kRate, Printed::UnlessDefault, "{:.6g}"),
    field<&Hosts::process_latency_s>("process_latency_s", "seconds of a message between two processes of a host", kSeconds),
    field<&Hosts::polling>("polling", "share of a core that a process spends on polling for messages while it waits", kShare),
};

inline constexpr Field<ops::CacheLevel> kCaches[] = {
    field<&ops::CacheLevel::bytes>("bytes", "size of the cache", above_to(0, 0x1p50), Printed::Always, "{}"),
    field<&ops::CacheLevel::cores>("cores", "cores that share one such cache", kCount),
    field<&ops::CacheLevel::price_beyond>("price_beyond", "cost of a miss: 0 as in the nearest cache, 1 as in memory", kShare),
};

inline constexpr Field<LinkLevel> kLinks[] = {
    field<&LinkLevel::ranks>("ranks", "consecutive ranks that this level joins; 0, of the last level: any number",
                             from_to(0, 1 << 20)),
    field<&LinkLevel::link, &mesh::Link::bandwidth_bytes_per_s>("bandwidth_bytes_per_s", "rate of a port", kRate, Printed::Always,
                                                                "{:.6g}"),
    field<&LinkLevel::link, &mesh::Link::latency_s>("latency_s", "seconds of a message", kSeconds),
    field<&LinkLevel::ports>("ports", "ports of each block of the level below; without it one of each rank", kCount,
                             Printed::UnlessDefault),
    field<&LinkLevel::efficiency>("efficiency", "share of the bandwidth that large collectives reach", kEfficiency,
                                  Printed::UnlessDefault),
    field<&LinkLevel::message_efficiency>("message_efficiency",
                                          "the same of messages between two ranks; without it as collectives", kEfficiency,
                                          Printed::UnlessDefault),
    field<&LinkLevel::group_bytes_per_s>("group_bytes_per_s", "the most that one collective gets; without it no limit", kRate,
                                         Printed::UnlessDefault, "{:.6g}"),
    field<&LinkLevel::crowded_beyond>(
        "crowded_beyond", "ranks of a job beyond which the rate of collectives falls: by (ranks / crowded_beyond)^crowding",
        kCount, Printed::WithNext, "{}"),
    field<&LinkLevel::crowding>("crowding", "the power by which it falls; 0: never", from_to(0, 2), Printed::UnlessDefault),
    field<&LinkLevel::trees>("trees", "an all_reduce may run over trees", {}, Printed::UnlessDefault),
    field<&LinkLevel::in_switch>("in_switch", "the switch can sum: an all_reduce then sends its bytes once", {},
                                 Printed::UnlessDefault),
};

inline constexpr Field<Host> kHost[] = {
    field<&Host::launch_s>("launch_s", "seconds of the host, an op", kSeconds),
    field<&Host::collective_s>("collective_s",
                               "seconds of the host, a collective of a forward or backward, in addition; of the device, if "
                               "blocking_s is above 0",
                               kSeconds, Printed::UnlessDefault),
    field<&Host::blocking_s>("blocking_s", "seconds in which the device idles, an op", kSeconds),
    field<&Host::microbatch_s>("microbatch_s", "seconds of the device, a microbatch and stage", kSeconds),
    field<&Host::step_s>("step_s", "seconds of a step", kSeconds),
    field<&Host::lost_per_doubling>("lost_per_doubling", "share of a step, each time the number of hosts doubles", kShare),
};

inline constexpr Field<Module> kModule[] = {
    field<&Module::name>(
        "name",
        "the module for GPUs. If no stack is asked for, its kernels run on the devices, and keys of [host] in this table replace "
        "that table",
        one_of({"cuda"})),
    field<&Module::compute_capability>("compute_capability", "of the devices; 90: Hopper", from_to(80, 1000)),
};

inline constexpr Field<Stack> kStack[] = {
    field<&Stack::name>("name", "name of the software"),
    field<&Stack::description>("description", "what the software is"),
    field<&Stack::reduces_last>("reduces_last", "gradients are reduced when all backwards are over"),
    field<&Stack::transfers_block>("transfers_block",
                                   "a rank computes nothing while it sends to or receives from another pipeline rank"),
    field<&Stack::merged_products>(
        "merged_products",
        "products that share an operand run as one; without it every product runs by itself (no training.pack_products)"),
    field<&Stack::broadcast_s>(
        "broadcast_s",
        "seconds of a broadcast in addition to its bytes, if owners broadcast updated weights in turn; 0: weights "
        "are gathered",
        kSeconds),
    field<&Stack::split_sends>("split_sends", "tensor-parallel ranks that hold the same activations send a part each"),
    field<&Stack::whole_recompute>("whole_recompute",
                                   "a recomputed layer runs to its end, although its last product is not needed"),
    field<&Stack::copies_blocks>(
        "copies_blocks",
        "activations that are gathered or scattered along another than their first dim are copied for it once, by each rank"),
    field<&Stack::repeats_keys>("repeats_keys", "context ranks exchange keys and values once for each query head"),
    field<&Stack::casts_gathered>("casts_gathered",
                                  "float8 by rows: tensor-parallel ranks gather values in 16 bits, and each casts all of them"),
    field<&Stack::whole_logits>("whole_logits", "the loss is not computed in chunks"),
    field<&Stack::attention>("attention",
                             "generation of its attention kernels; [[attention]] of the chip's files has their rates",
                             one_of(attention_kernels), Printed::UnlessDefault),
    field<&Stack::group_bytes_per_s>("group_bytes_per_s",
                                     "the most that one collective between hosts gets, on any machine; without it no limit",
                                     kRate, Printed::UnlessDefault, "{:.6g}"),
};

inline constexpr Field<StackMemory> kMemory[] = {
    field<&StackMemory::gradient_bytes>("gradient_bytes", "bytes of a parameter's gradient", above_to(0, 64)),
    field<&StackMemory::sum_bytes>("sum_bytes", "bytes of a parameter in a separate sum of gradients, split as the optimizer is",
                                   kBytesOfElement),
    field<&StackMemory::whole_sums>("whole_sums", "that sum is whole on each data rank", {}, Printed::UnlessDefault),
    field<&StackMemory::logit_bytes>(
        "logit_bytes", "bytes of a logit, in all copies that the loss and its backward need together", kBytesOfElement),
    field<&StackMemory::score_bytes>(
        "score_bytes", "bytes of a query's score for a key, kept by unfused attention; 0 if attention is fused", kBytesOfElement),
    field<&StackMemory::mask_bytes>(
        "mask_bytes", "bytes of an element of the residual stream that the dropout before each norm keeps", kBytesOfElement),
    field<&StackMemory::saves_gathered>("saves_gathered",
                                        "operands that tensor parallelism gathered are kept whole, rather than gathered again"),
    field<&StackMemory::policy_keeps_last>("policy_keeps_last",
                                           "recompute by op keeps the result of a layer's last product, which no backward reads"),
    field<&StackMemory::splits_optimizer>("splits_optimizer",
                                          "optimizer states are split over all data ranks, whatever the partition"),
    field<&StackMemory::keeps_gathered>("keeps_gathered",
                                        "pipeline ranks keep split parameters and their gradients whole through the step"),
    field<&StackMemory::gathered_layers>("gathered_layers", "layers whose split parameters are whole at a time; without it 2",
                                         from_to(1, 1000)),
    field<&StackMemory::gathered_bytes>("gathered_bytes", "bytes of whole parameters that are held at least", kBytes,
                                        Printed::Always, "{:.10g}"),
    field<&StackMemory::bucket_bytes>("bucket_bytes", "bytes of gradients that are being communicated", kBytes, Printed::Always,
                                      "{:.10g}"),
    field<&StackMemory::reserve>(
        "reserve", "memory that the allocator holds and that is not allocated, as a share of what is allocated", kShare),
};

// One number for each op, [memory.saved_bytes].
struct SavedByOp {
    double bytes = 0;
};
inline constexpr Field<SavedByOp> kSavedByOp[] = {field<&SavedByOp::bytes>(
    "OP", "bytes that are kept for each element of the op's result, in addition to its operands", kBytesOfElement)};

inline constexpr Field<Measured> kMeasured[] = {
    field<&Measured::multiplier>("multiplier", "of every planned step, by `lockstep calibrate --multiplier`", above_to(0, 100)),
    field<&Measured::spread>("spread", "deviation of the logarithm that is left", above_to(0, 10)),
    field<&Measured::runs>("runs", "runs that were measured", kCount),
};

inline constexpr Field<Part> kRuns[] = {
    field<&Part::runs>("count", "published runs that plans with this file were compared with", kCount),
    field<&Part::sources>("sources", "their publications", kCount),
};

// Of which kernels a table says the rate.
struct RatedKernels {
    std::vector<std::string> ops;
    std::string op, kernel;
    bool assumed = false;
};
inline constexpr Field<RatedKernels> kOps[] = {
    field<&RatedKernels::ops>("ops", "kinds of op, whichever kernel runs them", one_of(ops_with_kernels))};
inline constexpr Field<RatedKernels> kModuleOps[] = {
    field<&RatedKernels::op>("op", "kind of op that the kernel runs", one_of(ops_with_kernels)),
    field<&RatedKernels::kernel>("kernel", "kernel of the module; its rates are on top of those of its op", kKernelName),
    field<&RatedKernels::assumed>("assumed", "nobody has measured these rates; a plan says so", {}, Printed::UnlessDefault),
};

inline constexpr Field<AttentionRate> kAttention[] = {
    field<&AttentionRate::kernel>(
        "kernel",
        "generation of kernels: flash1 to flash3 (FlashAttention), triton (FlashAttention in Triton), vendor (the maker's "
        "library), unfused (products and softmax by themselves)",
        one_of(attention_kernels)),
    field<&AttentionRate::op>("op", "kind of op", one_of({"attention", "attention_backward"})),
    field<&AttentionRate::flops_per_s>("flops_per_s", "executed FLOPs in a second, of types of 16 bits, at long sequences", kRate,
                                       Printed::UnlessDefault, "{:.6g}"),
};

inline constexpr Field<ops::CollectiveRow> kCollectives[] = {
    field<&ops::CollectiveRow::op>("op", "kind of collective"),
    field<&ops::CollectiveRow::members>("members", "ranks that take part", kCount),
    field<&ops::CollectiveRow::block_bytes>("block_bytes", "bytes of a member's block", kAmount, Printed::Always, "{:.0f}"),
    field<&ops::CollectiveRow::time_s>("time_s", "seconds from the arrival of the last member", kSeconds),
    field<&ops::CollectiveRow::core_s>("core_s", "of them, seconds in which a member's thread computes; without it all",
                                       kSeconds),
};

inline constexpr Field<ops::CostRow> kKernels[] = {
    field<&ops::CostRow::key, &ops::CostKey::op>("op", "kind of op"),
    field<&ops::CostRow::key, &ops::CostKey::kernel>("kernel", "kernel that ran it"),
    field<&ops::CostRow::key, &ops::CostKey::dtype>("dtype", "element type"),
    field<&ops::CostRow::key, &ops::CostKey::variant>("variant", "of a product: how its operands are stored"),
    field<&ops::CostRow::key, &ops::CostKey::threads>("threads", "threads of a rank", kCount),
    field<&ops::CostRow::key, &ops::CostKey::sizes>(
        "sizes", "of a product m, n, k; of attention heads, seq, kv_seq, head_dim; else rows and columns of the largest tensor",
        kAmount),
    field<&ops::CostRow::key, &ops::CostKey::flops>("flops", "executed FLOPs", kAmount, Printed::Always, "{:.10g}"),
    field<&ops::CostRow::key, &ops::CostKey::bytes>("bytes", "bytes moved", kAmount, Printed::Always, "{:.10g}"),
    field<&ops::CostRow::warm_s>("warm_s", "seconds with operands in the cache", kRowSeconds),
    field<&ops::CostRow::cold_s>("cold_s", "seconds with operands in memory", kRowSeconds),
    field<&ops::CostRow::crowded_s>("crowded_s", "seconds with operands in memory and all other cores doing the same",
                                    kRowSeconds),
};

inline constexpr Field<Constant> kConstants[] = {
    field<&Constant::key>("key", "a number of this file that runs may fit: links.8.efficiency, ops.attention.of_products"),
    field<&Constant::prior>("prior", "its value before any run", above_to(0, 1e24)),
    field<&Constant::spread>("spread", "deviation of the logarithm of `prior`", above_to(0, 10)),
    field<&Constant::low>("low", "what runs leave open, one deviation below; 0: no run was asked", kAmount),
    field<&Constant::high>("high", "the same, one deviation above", kAmount),
    field<&Constant::runs>("runs", "runs that depended on it", from_to(0, 1 << 20)),
};

}  // namespace lockstep::sim
