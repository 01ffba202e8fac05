#include "planning/kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/instruction_sets.h"
#include "kernels/cpu/isa.h"
#include "kernels/cuda/planned.h"
#include "kernels/kernel.h"
#include "ops/described_catalog.h"
#include "planning/products.h"
#include "plugins/gpu_module.h"
#include "telemetry/console.h"

namespace lockstep::planning {
namespace {

// runtime.instruction_set; none: the best one.
std::optional<Isa> isa_of(const compile::Config& config) {
    using compile::InstructionSet;
    switch (config.runtime.instruction_set) {
        case InstructionSet::Auto: return std::nullopt;
        case InstructionSet::Avx512: return Isa::avx512;
        case InstructionSet::Avx2: return Isa::avx2;
        case InstructionSet::Baseline: return Isa::baseline;
    }
    return std::nullopt;
}

void remove_disabled(const compile::Config& config, ops::KernelCatalog& catalog) {
    for (const std::string& op : config.runtime.disabled_kernels.names)
        std::erase_if(catalog.entries, [&](const ops::KernelEntry& e) { return e.op == op; });
    if (config.linear_float8.emulate)
        std::erase_if(catalog.entries, [](const ops::KernelEntry& e) { return e.kernel == "cublaslt.scaled_matmul"; });
}

// Rows of cluster.file choose between kernels of processors.
std::shared_ptr<const ops::CostTable> rows_of(const compile::Config& config) {
    if (config.cluster.file.empty()) return nullptr;
    sim::Cluster cluster = sim::read_cluster(config.cluster.file, "cluster.file");
    return cluster.devices ? nullptr : std::make_shared<ops::CostTable>(std::move(cluster.costs));
}

// What runtime.instruction_set leaves of a processor that a cluster file names.
InstructionSets sets_of(const compile::Config& config, const InstructionSets& all, const std::string& file) {
    const std::optional<Isa> wanted = isa_of(config);
    if (wanted && *wanted > all.isa)
        throw UserError("recipe.instruction_set", "runtime.instruction_set",
                        fmt::format("{}runtime.instruction_set = \"{}\": the best one of the processor in {} is {}",
                                    config.where("runtime.instruction_set"), word_of(config.runtime.instruction_set), file,
                                    words_of(all).front()));
    return wanted ? limited_to(all, *wanted) : all;
}

std::string cpu_kernels(const InstructionSets& sets) {
    return fmt::format("cpu kernels for {}", fmt::join(words_of(sets), ", "));
}

ops::KernelCatalog catalog_of(compile::Kernels kernels, int threads) {
    switch (kernels) {
        case compile::Kernels::Cpu: break;
        case compile::Kernels::Cuda: return plugins::gpu_catalog();
        case compile::Kernels::Reference: return kernels::reference_catalog();
    }
    return kernels::cpu_catalog(threads);
}
std::string text_of(compile::Kernels kernels) {
    switch (kernels) {
        case compile::Kernels::Cpu: break;
        case compile::Kernels::Cuda: return "kernels of " + plugins::gpu_module().description;
        case compile::Kernels::Reference: return "reference kernels";
    }
    return cpu_kernels(kernels::cpu::instruction_sets_here());
}

}  // namespace

void require_processor() {
    const Isa best = kernels::cpu::processor_isa(), of_build = kernels::cpu::detect_isa();
    if (of_build > best)
        throw UserError("recipe.instruction_set", "runtime.instruction_set",
                        fmt::format("this program was built for processors with {} (LOCKSTEP_ISA=native), and this one has {}: "
                                    "build it on this machine, or with cmake -DLOCKSTEP_ISA=all",
                                    kernels::cpu::name(of_build), kernels::cpu::name(best)));
}

void use_instruction_set(const compile::Config& config) {
    require_processor();
    const std::optional<Isa> wanted = isa_of(config);
    const Isa best = kernels::cpu::processor_isa(), of_build = kernels::cpu::detect_isa();
    const auto refuse = [&](const std::string& why) {
        return UserError("recipe.instruction_set", "runtime.instruction_set",
                         fmt::format("{}runtime.instruction_set = \"{}\": {}", config.where("runtime.instruction_set"),
                                     word_of(config.runtime.instruction_set), why));
    };
    if (wanted && *wanted > best) throw refuse(fmt::format("the best one of this processor is {}", kernels::cpu::name(best)));
    if (wanted && !kernels::cpu::has_isa(*wanted))
        throw refuse(
            fmt::format("this program was built with {} only (LOCKSTEP_ISA=native): build it with cmake "
                        "-DLOCKSTEP_ISA=all",
                        kernels::cpu::name(of_build)));
    kernels::cpu::use_isa(wanted.value_or(of_build));
}

ops::KernelCatalog catalog_here(const compile::Config& config, int threads) {
    ops::KernelCatalog catalog = catalog_of(config.runtime.kernels, threads);
    if (const auto products = products_here(config)) kernels::cuda::add_chosen(catalog, *products);
    remove_disabled(config, catalog);
    catalog.costs = rows_of(config);
    return catalog;
}

void note_other_machine(const compile::Config& config) {
    const std::string& file = config.cluster.file;
    if (file.empty()) return;
    const sim::Cluster cluster = sim::read_cluster(file, "cluster.file");
    if (cluster.devices)
        telemetry::info(
            fmt::format("cluster.file {} describes devices: this runs on this machine, with the kernels of its processor", file));
}

KernelsOf kernels_here(const compile::Config& config) { return {text_of(config.runtime.kernels), true}; }

Kernels kernels_of(const compile::Config& config, const sim::Cluster& cluster, const std::string& file, int threads) {
    Kernels k;
    if (config.runtime.kernels == compile::Kernels::Reference) {
        k = {kernels::reference_catalog(), {"reference kernels"}};
    } else if (cluster.runs_module()) {
        k = {kernels::cuda::planned_catalog(file, cluster.module.compute_capability),
             {"kernels of Lockstep's module for NVIDIA's GPUs"}};
        if (const auto products = products_of(config, cluster)) kernels::cuda::add_chosen(k.catalog, *products);
    } else if (!cluster.catalog.empty()) {
        k = {ops::described_catalog(cluster.catalog_name, file, cluster.catalog), {"kernels of " + cluster.catalog_name}};
    } else if (cluster.instruction_sets) {
        const InstructionSets sets = sets_of(config, *cluster.instruction_sets, file);
        k = {kernels::cpu_catalog(threads, sets), {cpu_kernels(sets)}};
    } else {
        use_instruction_set(config);
        k = {kernels::cpu_catalog(threads), {}};
        k.of = {fmt::format("the file names no kernels, so those of this machine: {}",
                            cpu_kernels(kernels::cpu::instruction_sets_here())),
                true};
    }
    remove_disabled(config, k.catalog);
    k.catalog.costs = cluster.devices ? std::make_shared<ops::CostTable>(cluster.costs) : rows_of(config);
    return k;
}

}  // namespace lockstep::planning
