#include "measure/kernels.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/round.h"
#include "compile/compile.h"
#include "ir/timeline.h"
#include "kernels/kernel.h"
#include "measure/pin.h"
#include "measure/stopwatch.h"
#include "models/model.h"

namespace lockstep::measure {
namespace {

constexpr size_t kRegionBytes = size_t{288} << 20;

// Shapes whose ops are measured, one layer each. Chosen to spread every op's sizes over the range that a CPU trains: what lies
// between is interpolated.
struct Shape {
    int dim, heads, kv_heads, head_dim, ffn, vocab, seq, batch, tp, shard;
};
constexpr Shape kShapes[] = {
    {64, 4, 2, 16, 176, 512, 32, 1, 1, 1},        {128, 4, 4, 32, 352, 2048, 128, 1, 1, 1},
    {128, 2, 1, 64, 512, 8192, 512, 2, 1, 1},     {192, 6, 2, 32, 512, 1024, 64, 8, 2, 2},
    {256, 4, 2, 64, 704, 4096, 256, 2, 1, 1},     {256, 8, 8, 32, 1024, 16384, 1024, 1, 2, 1},
    {512, 8, 8, 64, 1408, 32000, 256, 4, 1, 1},   {512, 8, 4, 64, 2048, 8192, 512, 1, 2, 1},
    {768, 12, 12, 64, 2048, 16384, 128, 2, 1, 2}, {1024, 8, 2, 128, 2816, 8192, 256, 1, 1, 1},
};

constexpr size_t kSmallShapes = 2;  // the first

compile::Recipe recipe_of(const Shape& s, const models::ModelSpec& model) {
    compile::Recipe r;
    r.set("model.name", model.name);
    r.set("model.flavor", model.flavors.front().name);
    const std::pair<std::string, int> shape[] = {
        {"dim", s.dim},           {"n_layers", 1},    {"n_heads", s.heads},   {"n_kv_heads", s.kv_heads},
        {"head_dim", s.head_dim}, {"ffn_dim", s.ffn}, {"vocab_size", s.vocab}};
    for (const auto& [key, value] : shape) {
        const auto is = [&name = key](const models::ModelKey& k) { return k.name == name; };
        if (std::any_of(model.keys.begin(), model.keys.end(), is)) r.set("model." + key, std::to_string(value));
    }
    r.set("activation_checkpoint.mode", "none");
    r.set("training.seq_len", std::to_string(s.seq));
    r.set("training.local_batch_size", std::to_string(s.batch));
    r.set("parallelism.tensor_parallel_degree", std::to_string(s.tp));
    r.set("parallelism.data_parallel_shard_degree", std::to_string(s.shard));
    return r;
}

// One op to measure. The program that it stands in outlives it.
struct Subject {
    const ir::Program* program;
    const ir::Routine* routine;
    const ir::Op* op;
    ops::CostKey key;
};

std::string name_of(const ops::CostKey& k) {
    return fmt::format("{} {} {} {} {} [{}]", k.op, k.kernel, k.dtype, k.variant, k.threads, fmt::join(k.sizes, ","));
}

// Of which input an operand's integers are: renames, gathers and slices pass them on.
ir::PortRole input_of(const ir::Routine& r, ir::TensorId t) {
    for (auto op = r.ops.rbegin(); op != r.ops.rend(); ++op) {
        const auto at = std::find(op->out.begin(), op->out.end(), t);
        if (at == op->out.end() || op->in.empty()) continue;
        t = op->in[op->in.size() == op->out.size() ? static_cast<size_t>(at - op->out.begin()) : 0];
    }
    const int port = r.tensors[t].port;
    return port < 0 ? ir::PortRole::None : r.ports[port].role;
}

// Operands: read from one region that nobody writes, results into another; so no op meets the infinities or denormal numbers
// of the one before.
struct Regions {
    Regions() : in(new char[kRegionBytes]) {
        uint32_t state = 1;
        for (size_t i = 0; i < kRegionBytes / 4; ++i) {
            state = state * 1664525u + 1013904223u;
            const float value = 0.05f + static_cast<float>(state >> 8) * 0x1p-24f;
            uint32_t bits = 0;
            std::memcpy(&bits, &value, 4);
            bits = (bits & 0xffff0000u) | (bits >> 16);  // a number of that size as one float32 and as two bfloat16
            std::memcpy(in.get() + 4 * i, &bits, 4);
        }
    }
    std::unique_ptr<char[]> in;
};

// An op made ready on one thread team, with operands at places that move through the regions.
class Bench {
public:
    // `apart`: of several at once each reads another part of the regions, as ranks do, from 0 up to 1.
    Bench(const Subject& s, const Regions& regions, char* results, std::vector<int> cpus, double apart = 0)
        : s_(s),
          regions_(regions),
          results_(results),
          pool_(s.key.threads, std::move(cpus)),
          queue_(device::QueueName::Compute, &pool_),
          begin_(static_cast<size_t>(apart * kRegionBytes)) {
        kernel_ = kernels::make_kernel({s.program->mesh, *s.routine, *s.op, 0, s.key.threads});
        workspace_.resize(static_cast<size_t>(s.op->workspace_bytes) + 64);
        size_t at = 0;
        for (ir::TensorId t : s.op->in) in_.push_back(place(t, at));
        in_bytes_ = at, at = 0;
        for (ir::TensorId t : s.op->out) out_.push_back(place(t, at));
        out_bytes_ = at;
    }

    bool fits() const { return in_bytes_ <= kRegionBytes && out_bytes_ <= kRegionBytes; }
    size_t bytes() const { return in_bytes_ + out_bytes_; }

    // The k-th set of operands.
    void run(size_t k) {
        void *in[64], *out[64];
        const size_t in_at = in_bytes_ ? (begin_ + k * in_bytes_) % (kRegionBytes - in_bytes_ + 1) / 64 * 64 : 0;
        const size_t out_at = out_bytes_ ? k * out_bytes_ % (kRegionBytes - out_bytes_ + 1) / 64 * 64 : 0;
        for (size_t i = 0; i < in_.size(); ++i) in[i] = in_[i].fixed ? in_[i].fixed : regions_.in.get() + in_at + in_[i].offset;
        for (size_t i = 0; i < out_.size(); ++i) out[i] = results_ + out_at + out_[i].offset;
        auto* workspace =
            reinterpret_cast<void*>(round_up(static_cast<int64_t>(reinterpret_cast<intptr_t>(workspace_.data())), 64));
        kernel_->run({in, out, true, workspace, queue_});
    }

    // The lower quartile of some runs: other work on the machine only ever adds. sets: how many sets of operands they go through.
    double time_s(size_t sets, double budget_s) {
        run(0);
        std::vector<double> times;
        const double start_s = now_s();
        for (size_t k = 0; times.size() < 3 || (now_s() - start_s < budget_s && times.size() < 2000); ++k) {
            const double begin_s = now_s();
            run(k % sets);
            times.push_back(now_s() - begin_s);
            if (times.back() > budget_s && times.size() >= 2) break;
        }
        std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 4), times.end());
        return times[times.size() / 4];
    }

private:
    struct Operand {
        size_t offset = 0;
        void* fixed = nullptr;  // integers and scalars, whose values matter
    };

    Operand place(ir::TensorId id, size_t& at) {
        const ir::Tensor& t = s_.routine->tensors[id];
        const int64_t elements = ir::local_elements(s_.program->mesh, *s_.routine, t);
        const auto bytes = static_cast<size_t>(ir::local_bytes(s_.program->mesh, *s_.routine, t));
        if (t.dtype == Dtype::I32) return {0, integers(id, elements)};
        if (t.dtype == Dtype::F64 && elements <= 64) {
            scalars_.push_back(std::vector<double>(64, 1.0));
            return {0, scalars_.back().data()};
        }
        const size_t offset = at;
        at += (bytes + 127) / 64 * 64;
        return {offset, nullptr};
    }

    // Positions count up along the sequence, documents are one, ids and targets lie anywhere in the vocabulary.
    void* integers(ir::TensorId id, int64_t elements) {
        const ir::Tensor& t = s_.routine->tensors[id];
        std::vector<int32_t>& v = integers_.emplace_back(static_cast<size_t>(elements));
        const int64_t last =
            t.dims.empty() ? 1 : ir::local_size(s_.program->mesh, *s_.routine, t, static_cast<int>(t.dims.size()) - 1);
        const ir::DimId vocab = s_.routine->dim(ir::DimRole::Vocab);
        const int64_t bound = vocab >= 0 ? s_.routine->dims[vocab].valid : 1;
        const ir::PortRole input = input_of(*s_.routine, id);
        const bool position = input == ir::PortRole::Positions || input == ir::PortRole::KvPositions,
                   document = input == ir::PortRole::Documents || input == ir::PortRole::KvDocuments;
        for (int64_t i = 0; i < elements; ++i)
            v[static_cast<size_t>(i)] = static_cast<int32_t>(document ? 0 : position ? i % last : i * 7919 % bound);
        return v.data();
    }

    const Subject& s_;
    const Regions& regions_;
    char* results_;
    ThreadPool pool_;
    device::Queue queue_;
    const size_t begin_;
    std::unique_ptr<kernels::Kernel> kernel_;
    std::vector<char> workspace_;
    std::vector<Operand> in_, out_;
    size_t in_bytes_ = 0, out_bytes_ = 0;
    std::vector<std::vector<int32_t>> integers_;
    std::vector<std::vector<double>> scalars_;
};

// Mean over as many copies as cores allow, all at once.
double crowded_s(const Subject& s, const Regions& regions, std::vector<std::unique_ptr<char[]>>& results, const KernelOptions& o,
                 size_t sets, double budget_s) {
    const auto copies = static_cast<int>(o.cpus.size()) / s.key.threads;
    std::barrier together(copies);
    std::vector<double> times(static_cast<size_t>(copies));
    std::vector<std::thread> threads;
    for (int c = 0; c < copies; ++c) {
        threads.emplace_back([&, c] {
            const auto first = o.cpus.begin() + c * s.key.threads;
            Bench bench(s, regions, results[static_cast<size_t>(c)].get(), {first, first + s.key.threads},
                        static_cast<double>(c) / copies);
            pin_to(*first);
            together.arrive_and_wait();
            times[static_cast<size_t>(c)] = bench.time_s(sets, budget_s);
        });
    }
    for (std::thread& t : threads) t.join();
    double sum = 0;
    for (double t : times) sum += t;
    return sum / copies;
}

// A program of the grid and the kernels that its ops could have taken instead.
struct Sample {
    compile::Compiled compiled;
    const ops::KernelCatalog* catalog;
};

// Every op once for each fast kernel that serves it.
std::vector<Subject> subjects_of(const std::vector<std::unique_ptr<Sample>>& samples, std::deque<ir::Op>& others) {
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
                if (ops::rule(op.kind).collective || ir::is_view(r, op)) continue;
                add(r, op);
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

// Programs of every model, in every precision that it has, with one thread, two, four, ... all.
void compile_grid(const KernelOptions& o, std::vector<std::unique_ptr<Sample>>& samples,
                  std::deque<ops::KernelCatalog>& catalogs) {
    const auto cores = static_cast<int>(o.cpus.size());
    for (int threads = 1; threads <= cores; threads = threads < cores ? std::min(2 * threads, cores) : cores + 1) {
        compile::CompileOptions options;
        options.catalog = catalogs.emplace_back(kernels::cpu_catalog(threads));
        const size_t count = o.small_only ? kSmallShapes : std::size(kShapes);
        for (const models::ModelSpec& model : models::all_models()) {
            if (!model.alias_of.empty()) continue;  // its ops are those of the other
            for (size_t i = 0; i < 3 * count; ++i) {
                compile::Recipe recipe = recipe_of(kShapes[i / 3], model);
                recipe.set("training.mixed_precision_param", i % 3 == 0 ? "float32" : "bfloat16");
                recipe.set("training.fp32_residual_connection", i % 3 == 2 ? "true" : "false");
                samples.push_back(std::make_unique<Sample>(Sample{compile::compile(recipe, options), &catalogs.back()}));
            }
        }
    }
}

std::vector<ops::CostRow> measured_rows(const KernelOptions& o) {
    std::vector<std::unique_ptr<Sample>> samples;
    std::deque<ops::KernelCatalog> catalogs;
    std::deque<ir::Op> others;
    compile_grid(o, samples, catalogs);
    const std::vector<Subject> subjects = subjects_of(samples, others);
    const auto cores = static_cast<int>(o.cpus.size());
    const Regions regions;
    std::vector<std::unique_ptr<char[]>> results(o.cpus.size());
    for (auto& r : results) r.reset(new char[kRegionBytes]), std::memset(r.get(), 0, kRegionBytes);
    const double each_s = o.budget_s / static_cast<double>(subjects.size()) / 3;
    std::vector<ops::CostRow> rows;
    for (size_t i = 0; i < subjects.size(); ++i) {
        const Subject& s = subjects[i];
        if (o.progress) o.progress(s.key.op, static_cast<double>(i) / static_cast<double>(subjects.size()));
        Bench bench(s, regions, results[0].get(), o.cpus);
        if (!bench.fits()) continue;
        const size_t sets =
            static_cast<size_t>(std::ceil(o.cold_bytes / static_cast<double>(std::max<size_t>(bench.bytes(), 1))));
        ops::CostRow row{s.key, bench.time_s(1, each_s), 0, 0};
        row.cold_s = sets > 1 ? bench.time_s(sets, each_s) : row.warm_s;
        row.crowded_s = 2 * s.key.threads <= cores ? crowded_s(s, regions, results, o, sets, each_s) : row.cold_s;
        row.cold_s = std::max(row.cold_s, row.warm_s), row.crowded_s = std::max(row.crowded_s, row.cold_s);
        rows.push_back(std::move(row));
    }
    return rows;
}

}  // namespace

std::vector<ops::CostRow> kernel_rows(const KernelOptions& o) {
    std::vector<ops::CostRow> rows;
    on_cpu(o.cpus[0], [&] { rows = measured_rows(o); });
    return rows;
}

}  // namespace lockstep::measure
