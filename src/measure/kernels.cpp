#include "measure/kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "compile/compile.h"
#include "ir/timeline.h"
#include "kernels/kernel.h"
#include "measure/op_bench.h"
#include "measure/pin.h"
#include "models/model.h"

namespace lockstep::measure {
namespace {

constexpr int64_t kRegionBytes = int64_t{288} << 20;  // of the host

// Shapes whose ops are measured, one layer each. Chosen to spread every op's sizes over the range that a CPU, or a GPU, trains:
// what lies between is interpolated.
struct Shape {
    int dim, heads, kv_heads, head_dim, ffn, vocab, seq, batch, tp, shard;
    int context = 1;  // ranks, in a ring
};
constexpr Shape kShapes[] = {
    {64, 4, 2, 16, 176, 512, 32, 1, 1, 1},        {128, 4, 4, 32, 352, 2048, 128, 1, 1, 1},
    {128, 2, 1, 64, 512, 8192, 512, 2, 1, 1},     {192, 6, 2, 32, 512, 1024, 64, 8, 2, 2},
    {256, 4, 2, 64, 704, 4096, 256, 2, 1, 1},     {256, 8, 8, 32, 1024, 16384, 1024, 1, 2, 1},
    {512, 8, 8, 64, 1408, 32000, 256, 4, 1, 1},   {512, 8, 4, 64, 2048, 8192, 512, 1, 2, 1},
    {768, 12, 12, 64, 2048, 16384, 128, 2, 1, 2}, {1024, 8, 2, 128, 2816, 8192, 256, 1, 1, 1},
};

constexpr Shape kDeviceShapes[] = {
    {64, 4, 2, 16, 176, 512, 32, 1, 1, 1},
    {128, 4, 4, 32, 352, 2048, 128, 1, 1, 1},
    {64, 4, 2, 16, 176, 512, 256, 1, 1, 1, 2},
    {256, 4, 4, 64, 704, 2048, 256, 4, 1, 1},
    {768, 12, 12, 64, 2048, 50304, 1024, 4, 1, 2},
    {768, 12, 12, 64, 3072, 50304, 1024, 16, 1, 1},
    {1024, 16, 4, 64, 4096, 32000, 2048, 2, 2, 1},
    {2048, 16, 16, 128, 5632, 32000, 2048, 8, 1, 1},
    {4096, 32, 8, 128, 14336, 128256, 4096, 1, 1, 8},
    {4096, 32, 8, 128, 14336, 128256, 8192, 1, 2, 1},
    {8192, 64, 8, 128, 28672, 128256, 4096, 1, 8, 1},
    // Long sequences: a rank has 16,384 tokens, all of a sequence or half of it.
    {1024, 8, 8, 128, 2816, 8192, 16384, 1, 1, 1},
    {1024, 8, 8, 128, 2816, 8192, 32768, 1, 1, 1, 2},
};
constexpr int kLongSeq = 16384;  // measured in bfloat16 only

constexpr size_t kSmallShapes = 2, kSmallDeviceShapes = 3;  // the first of each

compile::Recipe recipe_of(const Shape& s, const models::ModelSpec& model) {
    compile::Recipe r;
    r.set("model.name", model.name);
    r.set("model.flavor", model.flavors.front().name);
    const std::pair<std::string, int> shape[] = {
        {"dim", s.dim},           {"n_layers", 1},    {"n_heads", s.heads},    {"n_kv_heads", s.kv_heads},
        {"head_dim", s.head_dim}, {"ffn_dim", s.ffn}, {"vocab_size", s.vocab}, {"n_positions", s.seq}};
    for (const auto& [key, value] : shape) {
        const auto is = [&name = key](const models::ModelKey& k) { return k.name == name; };
        if (std::any_of(model.keys.begin(), model.keys.end(), is)) r.set("model." + key, std::to_string(value));
    }
    r.set("activation_checkpoint.mode", "none");
    r.set("training.seq_len", std::to_string(s.seq));
    r.set("training.local_batch_size", std::to_string(s.batch));
    r.set("parallelism.tensor_parallel_degree", std::to_string(s.tp));
    r.set("parallelism.data_parallel_shard_degree", std::to_string(s.shard));
    if (s.context > 1) {
        r.set("parallelism.context_parallel_degree", std::to_string(s.context));
        r.set("parallelism.context_parallel_rotate_method", "alltoall");
    }
    return r;
}

std::string name_of(const ops::CostKey& k) {
    return fmt::format("{} {} {} {} {} [{}]", k.op, k.kernel, k.dtype, k.variant, k.threads, fmt::join(k.sizes, ","));
}

// The host's cores, or a device. Memory for each core that may be busy at once; inputs are the same for all.
struct Bench {
    device::Machine& machine;
    std::vector<int> cpus;                   // of the host
    std::unique_ptr<device::Device> device;  // has the memory; of the host, others of several threads run the kernels
    std::vector<Places> places;

    Bench(device::Machine& of, const KernelOptions& o, int64_t region_bytes, int64_t workspace_bytes)
        : machine(of), cpus(of.is_host() ? o.cpus : std::vector<int>{}), device(of.device({})) {
        const char* const in = new_inputs(*device, region_bytes);
        for (size_t i = 0; i < std::max<size_t>(cpus.size(), 1); ++i)
            places.push_back(new_places(*device, in, region_bytes, workspace_bytes));
    }
    // Calls f(device). On the host its kernels run on `threads` cores; `first_core` is the first of them.
    template <class F>
    auto on_device(size_t first_core, int threads, F f) {
        if (!machine.is_host()) return f(*device);
        const auto first = cpus.begin() + static_cast<long>(first_core);
        return f(*machine.device({threads, {first, first + threads}}));
    }
};

// Mean over as many copies as cores allow, all at once.
double crowded_s(const Subject& s, Bench& bench, int64_t sets, double budget_s) {
    const size_t each = static_cast<size_t>(s.key.threads), copies = bench.cpus.size() / each;
    std::barrier together(static_cast<std::ptrdiff_t>(copies));
    std::vector<double> times(copies);
    std::vector<std::thread> threads;
    for (size_t c = 0; c < copies; ++c) {
        threads.emplace_back([&, c] {
            pin_to(bench.cpus[c * each]);
            bench.on_device(c * each, s.key.threads, [&](device::Device& device) {
                OpBench op(s, device, bench.places[c], static_cast<double>(c) / static_cast<double>(copies));
                together.arrive_and_wait();
                times[c] = op.time_s(sets, budget_s);
            });
        });
    }
    for (std::thread& t : threads) t.join();
    double sum = 0;
    for (double t : times) sum += t;
    return sum / static_cast<double>(copies);
}

// A program of the grid and the kernels that its ops could have taken instead.
struct Sample {
    compile::Compiled compiled;
    const ops::KernelCatalog* catalog;
};

// The first block of a ring has the sizes of the others, and is the only one that is joined with none before it.
bool is_first_of_blocks(const ir::Op& op) {
    return op.attrs.contains("hops") && op.integer("hops") > 1 && op.integer("shift") == 0;
}

// Every op once for each fast kernel that serves it; or only for the one that it has.
std::vector<Subject> subjects_of(const std::vector<std::unique_ptr<Sample>>& samples, bool with_others,
                                 std::deque<ir::Op>& others) {
    std::map<std::string, Subject> found;
    for (const auto& sample : samples) {
        const ir::Program& p = sample->compiled.programs[0];
        const ops::KernelCatalog& catalog = *sample->catalog;
        const auto add = [&](const ir::Routine& r, const ir::Op& op) {
            const ops::CostKey key = ops::cost_key(p.mesh, r, op, catalog.threads);
            found.emplace(name_of(key), Subject{&p, &r, &op, key});
        };
        for (const ir::Routine& r : p.routines) {
            for (const ir::Op& op : r.ops) {
                if (ops::rule(op.kind).collective || ir::is_view(r, op) || is_first_of_blocks(op)) continue;
                add(r, op);
                if (!with_others) continue;
                for (const ops::KernelEntry& e : catalog.entries) {
                    const bool other =
                        e.op == op.kind && e.kernel != op.kernel && !e.is_reference && e.dtype == r.tensors[op.out[0]].dtype;
                    if (!other || (e.serves && !e.serves(p.mesh, r, op))) continue;
                    ir::Op& with = others.emplace_back(op);
                    with.kernel = e.kernel;
                    with.workspace_bytes = e.workspace_bytes ? e.workspace_bytes(p.mesh, r, op) : 0;
                    add(r, with);
                }
            }
        }
    }
    std::vector<Subject> out;
    for (const auto& [name, subject] : found) out.push_back(subject);
    return out;
}

// Programs of every model, in every precision that it has, with one thread, two, four, ... all; or on a device.
void compile_grid(const KernelOptions& o, std::vector<std::unique_ptr<Sample>>& samples,
                  std::deque<ops::KernelCatalog>& catalogs) {
    const int cores = o.device ? 1 : static_cast<int>(o.cpus.size());
    std::span<const Shape> shapes = o.device ? std::span<const Shape>(kDeviceShapes) : std::span<const Shape>(kShapes);
    if (o.small_only) shapes = shapes.first(o.device ? kSmallDeviceShapes : kSmallShapes);
    for (int threads = 1; threads <= cores; threads = threads < cores ? std::min(2 * threads, cores) : cores + 1) {
        compile::CompileOptions options;
        options.catalog = catalogs.emplace_back(o.device ? o.device->catalog : kernels::cpu_catalog(threads));
        // Of layouts that cannot pack products, or that shard the vocabulary.
        compile::CompileOptions apart = options;
        std::erase_if(apart.catalog.entries, [](const ops::KernelEntry& e) { return e.op == "cross_entropy_gradient"; });
        for (const models::ModelSpec& model : models::all_models()) {
            if (!model.alias_of.empty()) continue;  // its ops are those of the other
            for (size_t i = 0; i < 3 * shapes.size(); ++i) {
                if (shapes[i / 3].seq >= kLongSeq && i % 3 != 1) continue;
                compile::Recipe recipe = recipe_of(shapes[i / 3], model);
                recipe.set("training.mixed_precision_param", i % 3 == 0 ? "float32" : "bfloat16");
                recipe.set("training.fp32_residual_connection", i % 3 == 2 ? "true" : "false");
                const bool is_apart = i / 3 % 4 == 1;
                recipe.set("training.pack_products", is_apart ? "false" : "true");
                samples.push_back(
                    std::make_unique<Sample>(Sample{compile::compile(recipe, is_apart ? apart : options), &catalogs.back()}));
            }
        }
    }
}

std::vector<ops::CostRow> measured_rows(const KernelOptions& o, double& given_s) {
    std::vector<std::unique_ptr<Sample>> samples;
    std::deque<ops::KernelCatalog> catalogs;
    std::deque<ir::Op> others;
    compile_grid(o, samples, catalogs);
    const std::vector<Subject> subjects = subjects_of(samples, !o.device, others);
    int64_t workspace_bytes = 0;
    for (const Subject& s : subjects) workspace_bytes = std::max(workspace_bytes, s.op->workspace_bytes);
    const std::unique_ptr<device::Machine> host = device::host_machine();
    Bench bench(o.device ? o.device->machine : *host, o, o.device ? o.device->region_bytes : kRegionBytes, workspace_bytes);
    const double each_s = o.budget_s / static_cast<double>(subjects.size()) / 3;
    std::vector<ops::CostRow> rows;
    for (size_t i = 0; i < subjects.size(); ++i) {
        const Subject& s = subjects[i];
        if (o.progress) o.progress(s.key.op, static_cast<double>(i) / static_cast<double>(subjects.size()));
        bench.on_device(0, s.key.threads, [&](device::Device& device) {
            OpBench op(s, device, bench.places[0]);
            if (!op.fits()) return;
            const auto sets =
                static_cast<int64_t>(std::ceil(o.cold_bytes / static_cast<double>(std::max<int64_t>(op.bytes(), 1))));
            ops::CostRow row{s.key, op.time_s(1, each_s), 0, 0};
            row.cold_s = sets > 1 ? op.time_s(sets, each_s) : row.warm_s;
            row.crowded_s =
                2 * s.key.threads <= static_cast<int>(bench.cpus.size()) ? crowded_s(s, bench, sets, each_s) : row.cold_s;
            row.cold_s = std::max(row.cold_s, row.warm_s), row.crowded_s = std::max(row.crowded_s, row.cold_s);
            rows.push_back(std::move(row));
            given_s += op.given_s();
        });
    }
    given_s /= static_cast<double>(std::max<size_t>(rows.size(), 1));
    return rows;
}

}  // namespace

std::vector<ops::CostRow> kernel_rows(const KernelOptions& o, double* given_s) {
    std::vector<ops::CostRow> rows;
    double given = 0;
    on_cpu(o.cpus[0], [&] { rows = measured_rows(o, given); });
    if (given_s) *given_s = given;
    return rows;
}

}  // namespace lockstep::measure
