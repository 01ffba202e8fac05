#include "measure/products.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/product_kernels.h"
#include "measure/op_bench.h"
#include "measure/pin.h"
#include "measure/stopwatch.h"
#include "plugins/gpu_module.h"

namespace lockstep::measure {
namespace {

using kernels::cuda::ChosenProduct;
using kernels::cuda::ProductAlgorithm;

// An op of a program, and what it is as a product.
struct Found {
    Subject subject;
    kernels::cuda::ProductRow product;
};

std::vector<Found> products_of(const compile::Compiled& compiled) {
    std::vector<Found> out;
    for (const ir::Program& p : compiled.programs) {
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (!op.kernel.starts_with(kernels::cuda::kProductsName)) continue;
                const auto product = kernels::cuda::product_of({p.mesh, r, op, 0, 1});
                const auto is_same = [&](const Found& f) { return f.product == *product; };
                if (!product || std::any_of(out.begin(), out.end(), is_same)) continue;
                out.push_back({{&p, &r, &op, ops::cost_key(p.mesh, r, op, 1)}, *product});
            }
        }
    }
    return out;
}

int64_t bytes_of_operands(const Subject& s) {
    int64_t most = 0;
    for (const std::vector<ir::TensorId>* list : {&s.op->in, &s.op->out}) {
        int64_t bytes = 0;
        for (const ir::TensorId t : *list)
            bytes += ir::local_bytes(s.program->mesh, *s.routine, s.routine->tensors[static_cast<size_t>(t)]) + 4096;
        most = std::max(most, bytes);
    }
    return most;
}

class Choice {
public:
    Choice(const Found& found, device::Device& device, const Places& places, const ProductOptions& options)
        : found_(found), device_(device), places_(places), options_(options), module_(plugins::gpu_module()) {}

    ChosenProduct run() {
        const std::vector<ProductAlgorithm> all = candidates();
        burn(all.front());
        const double first_s = time_s(all.front());
        ChosenProduct out{found_.product, all.front(), first_s, first_s};
        for (size_t i = 1; i < all.size(); ++i) {
            const double s = time_s(all[i]);
            if (s < out.seconds) out.algorithm = all[i], out.seconds = s;
        }
        if (out.seconds * kLeastGain > first_s) out.algorithm = all.front(), out.seconds = first_s;
        return out;
    }

private:
    // The first is what the library names first in the workspace that a program gives without a choice.
    std::vector<ProductAlgorithm> candidates() const {
        const Subject& s = found_.subject;
        std::vector<ProductAlgorithm> out;
        for (const int64_t bytes : kProductWorkspaces) {
            for (const ProductAlgorithm& a :
                 module_.product_algorithms({s.program->mesh, *s.routine, *s.op, 0, 1}, bytes, kMostAlgorithms)) {
                if (std::find(out.begin(), out.end(), a) == out.end()) out.push_back(a);
            }
        }
        return out;
    }
    ir::Op with(const ProductAlgorithm& a) const {
        ir::Op op = *found_.subject.op;
        op.kernel = kernels::cuda::kernel_of(module_.products_version, a);
        op.workspace_bytes = kernels::cuda::whole_product_bytes(a.workspace_bytes);
        return op;
    }
    double time_s(const ProductAlgorithm& a) const {
        const ir::Op op = with(a);
        const Subject s = {found_.subject.program, found_.subject.routine, &op, found_.subject.key};
        OpBench bench(s, device_, places_);
        const int64_t sets = 4 * module_.cache_bytes / std::max<int64_t>(bench.bytes(), 1) + 1;
        return bench.time_s(sets, options_.each_s);
    }
    void burn(const ProductAlgorithm& a) const {
        const ir::Op op = with(a);
        const Subject s = {found_.subject.program, found_.subject.routine, &op, found_.subject.key};
        OpBench(s, device_, places_).time_s(1, options_.burn_s);
    }

    const Found& found_;
    device::Device& device_;
    const Places& places_;
    const ProductOptions& options_;
    const plugins::GpuModule& module_;
};

}  // namespace

kernels::cuda::ChosenProducts products(const compile::Compiled& compiled, const ProductOptions& options) {
    const plugins::GpuModule& module = plugins::gpu_module();
    kernels::cuda::ChosenProducts out{module.name, module.products_version, {}};
    const std::vector<Found> all = products_of(compiled);
    if (all.empty()) return out;
    const int64_t most_bytes = module.memory_bytes / 3;
    int64_t region_bytes = std::min(4 * module.cache_bytes, most_bytes);  // so that operands in turn come from memory
    for (const Found& f : all) {
        if (const int64_t bytes = bytes_of_operands(f.subject); bytes <= most_bytes) region_bytes = std::max(region_bytes, bytes);
    }
    on_cpu(options.cpu, [&] {
        const std::unique_ptr<device::Machine> machine = module.machine(0);
        const std::unique_ptr<device::Device> device = machine->device({});
        const int64_t workspace_bytes =
            kernels::cuda::whole_product_bytes(*std::max_element(std::begin(kProductWorkspaces), std::end(kProductWorkspaces)));
        const Places places = new_places(*device, new_inputs(*device, region_bytes), region_bytes, workspace_bytes);
        for (size_t i = 0; i < all.size(); ++i) {
            if (options.progress) options.progress(all[i].product.op, static_cast<double>(i) / static_cast<double>(all.size()));
            if (bytes_of_operands(all[i].subject) > region_bytes) continue;
            out.rows.push_back(Choice(all[i], *device, places, options).run());
        }
    });
    return out;
}

}  // namespace lockstep::measure
