// The table of op cases in use: the CPU's kernels against the reference, and every derivative against finite differences.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>

#include "kernels/cuda/planned.h"
#include "kernels/gpu/catalog.h"
#include "kernels/gpu/emulator.h"
#include "passes/select_kernels.h"
#include "plugins/gpu_module.h"
#include "tests/kernels/emulated_gpu.h"
#include "tests/ops/device_interpreter.h"
#include "tests/ops/interpreter.h"
#include "tests/ops/op_cases.h"

namespace lockstep::testing {
namespace {

using Values = std::map<std::string, std::vector<double>>;

mesh::Mesh mesh_of(const OpCase& c) { return mesh::Mesh::build({1, 1, 1, 1, 1, c.split.empty() ? 1 : 2}, {}); }

std::vector<std::string> names_of(const ir::Routine& r, ir::Access access) {
    std::vector<std::string> out;
    for (const ir::Tensor& t : r.tensors) {
        if (t.port >= 0 && r.ports[t.port].access == access) out.push_back(t.name);
    }
    return out;
}

template <class Run>
void fill(Run& run, const Values& values) {
    for (const auto& [name, v] : values) {
        if (run.has(name)) run.set(name, v);
    }
}

// Every written, updated or accumulated port after a run that finds 0.5 in what is added to.
template <class Run>
Values results_of(Run& run, const ir::Routine& r, const Values& values, bool fresh) {
    fill(run, values);
    for (const std::string& name : names_of(r, ir::Access::Accumulate))
        run.set(name, std::vector<double>(run.get(name).size(), 0.5));
    run.run(fresh);
    Values out;
    for (ir::Access access : {ir::Access::Write, ir::Access::Update, ir::Access::Accumulate}) {
        for (const std::string& name : names_of(r, access)) out[name] = run.get(name);
    }
    return out;
}
Values results(const mesh::Mesh& mesh, const ir::Routine& r, int64_t rank, int threads, const Values& values, bool fresh) {
    Interpreter run(mesh, r, rank, threads);
    return results_of(run, r, values, fresh);
}

void expect_close(const Values& want, const Values& got, double tolerance, const std::string& what) {
    ASSERT_FALSE(want.empty()) << what;
    for (const auto& [name, w] : want) {
        const std::vector<double>& g = got.at(name);
        ASSERT_EQ(w.size(), g.size());
        double scale = 0.1, worst = 0;
        for (size_t i = 0; i < w.size(); ++i) {
            if (w[i] == g[i]) continue;  // infinities too
            if (std::isfinite(w[i])) scale = std::max(scale, std::abs(w[i]));
            worst = std::max(worst, std::isfinite(w[i] - g[i]) ? std::abs(w[i] - g[i]) : INFINITY);
        }
        EXPECT_LE(worst, tolerance * scale) << what << ", " << name;
    }
}

Values operands(const OpCase& c, const ir::Routine& r, const mesh::Mesh& mesh, std::mt19937& random) {
    Values out;
    for (size_t i = 0; i < c.in.size(); ++i) out["in" + std::to_string(i)] = values_for(c, r, mesh, i, random);
    return out;
}

// The case's op, then the cotangents of its differentiable operands, added into grad0, grad1, ..; results' cotangents are read
// from seed0, seed1, ..
ir::Routine with_derivative(const OpCase& c, const mesh::Mesh& mesh, ir::Routine r) {
    ops::Builder b(r);
    const std::vector<ir::Op> forward = r.ops;
    const ir::Op op = forward[0];
    std::vector<ir::TensorId> sources;
    for (size_t i = 0; i < c.in.size(); ++i) {
        if (c.in[i].differentiable) sources.push_back(op.in[i]);
    }
    ops::Derivative derivative(b, ops::depends_on(r, forward, sources));
    for (size_t i = 0; i < c.out.size(); ++i) {
        if (!c.out[i].has_cotangent) continue;
        derivative.seed(op.out[i], b.port("seed" + std::to_string(i), ir::PortKind::Value, ir::Access::Read, b.dims(op.out[i])));
    }
    derivative.run(forward);
    for (size_t i = 0; i < c.in.size(); ++i) {
        ir::TensorId total = derivative.total(op.in[i]);
        EXPECT_EQ(total >= 0, c.in[i].differentiable) << c.kind << " " << c.name << ", operand " << i;
        if (total >= 0 && !may_accumulate(c.in[i].dims)) total = b.add("total", {total});
        if (total >= 0)
            b.accumulate(b.port("grad" + std::to_string(i), ir::PortKind::Gradients, ir::Access::Accumulate, b.dims(op.in[i])),
                         total);
    }
    place(c, mesh, r);
    return r;
}

bool has_derivative(const OpCase& c) {
    return std::any_of(c.in.begin(), c.in.end(), [](const Operand& o) { return o.differentiable; });
}

// A large case is drawn in both narrow types, and no more.
unsigned seeds_of(const OpCase& c, unsigned seeds) { return c.sizes.empty() ? seeds : 2; }

std::string title(const OpCase& c) { return c.kind + "_" + c.name; }

// A case as a seed draws it, with its derivative where it has one: as the CPU's kernels run it, as the reference does, and what
// both read.
struct Drawn {
    ir::Routine fast, exact;
    Values values;
    bool differentiated = false;
    int threads = 1;
};

using Catalog = std::function<ops::KernelCatalog(int threads)>;
const Catalog kCpu = [](int threads) { return kernels::cpu_catalog(threads); };
const Catalog kGpu = [](int) { return emulated_gpu_catalog(kernels::reference_kernels()); };

Drawn draw(const OpCase& c, const mesh::Mesh& mesh, unsigned seed, Results kind,
           const std::function<ir::Routine(ir::Routine)>& typed, const Catalog& catalog = kCpu) {
    std::mt19937 random(seed);
    Drawn d;
    d.threads = 1 + static_cast<int>(seed % 2);
    const ir::Routine plain = make_routine(c, mesh, random, kind);
    d.differentiated = kind == Results::Written && c.split.empty() && has_derivative(c);
    d.fast = d.exact = typed(d.differentiated ? with_derivative(c, mesh, plain) : plain);
    d.values = operands(c, plain, mesh, random);
    for (const std::string& name : names_of(d.fast, ir::Access::Read)) {
        if (!name.starts_with("seed")) continue;
        d.values[name].resize(static_cast<size_t>(ir::local_elements(mesh, d.fast, d.fast.tensors[d.fast.find(name)])));
        for (double& v : d.values[name]) v = static_cast<double>(random() % 2001) / 1000 - 1;
    }
    passes::select_kernels(mesh, d.fast, catalog(d.threads));
    passes::select_kernels(mesh, d.exact, kernels::reference_catalog());
    return d;
}

class OpTable : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpTable, CpuKernelsAgreeWithTheReference) {
    const OpCase& c = GetParam();
    const mesh::Mesh mesh = mesh_of(c);
    for (unsigned seed = 0; seed < seeds_of(c, 12); ++seed) {
        for (Results kind : {Results::Written, Results::Accumulated}) {
            const Drawn d = draw(c, mesh, seed, kind, [](ir::Routine r) { return r; });
            for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
                for (bool fresh : {true, false}) {
                    const std::string what =
                        title(c) + ", seed " + std::to_string(seed) + ", rank " + std::to_string(rank) + (fresh ? ", fresh" : "");
                    expect_close(results(mesh, d.exact, rank, 1, d.values, fresh),
                                 results(mesh, d.fast, rank, d.threads, d.values, fresh), 1e-5, what);
                }
            }
        }
    }
}

// The routine as it stands under bfloat16 or float16: what the ops' rules keep wide and what is added to stays in float32.
// A cast goes from one type to the other.
ir::Routine in_narrow(Dtype narrow, ir::Routine r, bool cast_widens) {
    std::vector<bool> wide(r.tensors.size(), false);
    const auto keep = [&](const std::vector<ir::TensorId>& tensors, const std::vector<int>& positions, bool all) {
        for (size_t i = 0; i < tensors.size(); ++i) {
            if (all || std::count(positions.begin(), positions.end(), static_cast<int>(i))) wide[tensors[i]] = true;
        }
    };
    for (const ir::Op& op : r.ops) {
        const ops::OpRule& rule = ops::rule(op.kind);
        keep(op.in, rule.precision.wide_in, rule.precision.wide);
        const bool updates = rule.step_end.obeys_control || op.kind == "orthogonalize";
        keep(op.out, rule.precision.wide_out, rule.precision.wide || updates || op.kind == "accumulate");
        for (const ir::Op& piece : ops::pieces_of(op)) {
            if (piece.kind == "amax") keep(piece.out, {0}, false);
        }
        if (updates) keep(op.in, {}, true);
        if (op.kind == "accumulate") keep(op.in, {}, r.tensors[op.in[0]].port < 0);
        if (op.kind == "rmsnorm_backward") keep(op.out, {1}, false);  // gradients of parameters
        if (op.kind == "scatter") keep(op.out, {0}, false);
        if (op.kind == "cast") keep(cast_widens ? op.out : op.in, {0}, false);
    }
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        if (r.tensors[t].dtype == Dtype::F32 && !wide[t]) r.tensors[t].dtype = narrow;
    }
    return r;
}

// Both compute from equal values and round results once; intermediate values that are stored may differ by a rounding.
void expect_narrow_agrees(const Drawn& d, const mesh::Mesh& mesh, const std::string& what) {
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
        expect_close(results(mesh, d.exact, rank, 1, d.values, false), results(mesh, d.fast, rank, d.threads, d.values, false),
                     0x1p-6, what);
    }
}

constexpr Dtype kNarrow[] = {Dtype::BF16, Dtype::F16};

TEST_P(OpTable, CpuKernelsAgreeWithTheReferenceInNarrowTypes) {
    const OpCase& c = GetParam();
    const mesh::Mesh mesh = mesh_of(c);
    for (unsigned seed = 0; seed < seeds_of(c, 12); ++seed) {
        const Drawn d = draw(c, mesh, seed, Results::Written,
                             [&](ir::Routine r) { return in_narrow(kNarrow[seed % 2], std::move(r), seed % 4 < 2); });
        expect_narrow_agrees(d, mesh, title(c) + ", seed " + std::to_string(seed));
    }
}

// Operands and results that belong to the residual stream.
struct OnStream {
    const char* kind;
    std::vector<int> in, out;
};
const std::vector<OnStream> kOnStream = {{"gather", {}, {0}},          {"scatter", {0}, {0}},
                                         {"rmsnorm", {0}, {}},         {"rmsnorm_backward", {0, 1}, {0, 1}},
                                         {"add_rmsnorm", {0, 1}, {0}}, {"rmsnorm_backward_add", {0, 1, 2}, {0, 1}},
                                         {"layernorm", {0}, {}},       {"layernorm_backward", {0, 1}, {0, 1, 2}},
                                         {"addmm", {0}, {0}},          {"bias_dropout_add", {0, 2}, {0}}};

const OnStream* on_stream(const ir::Op& op) {
    const auto it = std::find_if(kOnStream.begin(), kOnStream.end(), [&](const OnStream& s) { return s.kind == op.kind; });
    return it == kOnStream.end() ? nullptr : &*it;
}

// in_narrow, with the residual stream, and sums of it, in float32.
ir::Routine with_a_wide_stream(Dtype narrow, ir::Routine r) {
    r = in_narrow(narrow, std::move(r), true);
    for (const ir::Op& op : r.ops) {
        const OnStream* s = on_stream(op);
        if (!s) continue;
        for (int i : s->in) r.tensors[op.in[static_cast<size_t>(i)]].dtype = Dtype::F32;
        for (int i : s->out) r.tensors[op.out[static_cast<size_t>(i)]].dtype = Dtype::F32;
    }
    for (const ir::Op& op : r.ops) {
        const auto is_wide = [&](ir::TensorId t) { return r.tensors[t].dtype == Dtype::F32; };
        if (op.kind == "add" && std::any_of(op.in.begin(), op.in.end(), is_wide)) r.tensors[op.out[0]].dtype = Dtype::F32;
    }
    return r;
}

std::vector<OpCase> stream_cases() {
    std::vector<OpCase> out = op_cases();
    std::erase_if(out, [](const OpCase& c) {
        ir::Op op;
        op.kind = c.kind;
        return !on_stream(op);
    });
    return out;
}

class OpTableOnStream : public OpTable {};

TEST_P(OpTableOnStream, CpuKernelsAgreeWithTheReferenceBesideNarrowTypes) {
    const OpCase& c = GetParam();
    const mesh::Mesh mesh = mesh_of(c);
    for (unsigned seed = 0; seed < seeds_of(c, 12); ++seed) {
        const Drawn d = draw(c, mesh, seed, Results::Written,
                             [&](ir::Routine r) { return with_a_wide_stream(kNarrow[seed % 2], std::move(r)); });
        size_t served = 0;
        for (const ir::Op& op : d.fast.ops) served += on_stream(op) && op.kernel.starts_with("cpu.");
        const bool is_of_gpus = c.attrs.contains(ops::kAmaxOf);
        EXPECT_GE(served, is_of_gpus ? 0u : d.differentiated && c.kind != "bias_dropout_add" ? 2u : 1u) << title(c);
        expect_narrow_agrees(d, mesh, title(c) + ", seed " + std::to_string(seed));
    }
}

std::set<std::string> kinds_on_a_gpu() {
    std::set<std::string> kinds;
    for (const kernels::Registered& r : kernels::gpu::all_kernels()) kinds.insert(r.op);
    return kinds;
}
// What the CPU has a kernel for, a GPU has, too.
void expect_kernels_of_a_gpu(const mesh::Mesh& mesh, const ir::Routine& r, const std::string& what) {
    static const std::set<std::string> kinds = kinds_on_a_gpu();
    for (const ir::Op& op : r.ops) {
        if (!kinds.contains(op.kind) || op.kernel.starts_with("gpu.")) continue;
        const kernels::KernelContext context{mesh, r, op, 0, 1};
        for (const kernels::Registered& cpu : kernels::cpu_kernels())
            EXPECT_FALSE(cpu.op == op.kind && cpu.takes(context) && (!cpu.serves || cpu.serves(context)))
                << what << ": " << op.kind << " by " << op.kernel << ", where the CPU has " << cpu.kernel;
    }
}

// On the emulator, with the warps of a block in three orders: equal bits, near the reference.
void expect_gpu_agrees(const Drawn& d, const mesh::Mesh& mesh, double tolerance, const std::string& what) {
    using kernels::gpu::emulator::Order;
    expect_kernels_of_a_gpu(mesh, d.fast, what);
    for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
        for (bool fresh : {true, false}) {
            std::vector<Values> got;
            for (const Order order : {Order::Ascending, Order::Descending, Order::Shuffled}) {
                kernels::gpu::emulator::set_order(order, 7);
                got.push_back(results(mesh, d.fast, rank, 1, d.values, fresh));
            }
            expect_close(results(mesh, d.exact, rank, 1, d.values, fresh), got[0], tolerance, what);
            for (const auto& [name, values] : got[0]) {
                for (size_t order : {1, 2})
                    EXPECT_EQ(std::memcmp(values.data(), got[order].at(name).data(), values.size() * sizeof(double)), 0)
                        << what << ", " << name << ": another order of warps gives other bits";
            }
        }
    }
}

std::vector<OpCase> cases_of(const std::set<std::string>& kinds) {
    std::vector<OpCase> out = op_cases();
    std::erase_if(out, [&](const OpCase& c) { return !kinds.contains(c.kind); });
    return out;
}
std::vector<OpCase> gpu_cases() { return cases_of(kinds_on_a_gpu()); }
// Of the cases of scaled_einsum: does cuBLASLt serve it on such a GPU? Large ones only, and not every GPU the same.
bool is_by_library(const OpCase& c, int compute_capability) {
    if (c.kind != "scaled_einsum") return false;
    if (c.name.starts_with("of_one_scale")) return compute_capability >= 89;
    const bool is_hopper = compute_capability == 90, is_blackwell = compute_capability / 10 == 10;
    if (c.name.starts_with("of_rows_") && !c.sizes.empty()) return is_hopper || is_blackwell;
    return c.name.starts_with("of_128") ? is_hopper : c.name.starts_with("of_32") && is_blackwell;
}
// Those that libraries serve, too.
std::vector<OpCase> module_cases() {
    std::set<std::string> kinds;
    for (const ops::KernelEntry& e : kernels::cuda::planned_catalog("", 90).entries) kinds.insert(e.op);
    std::vector<OpCase> all = cases_of(kinds);
    // Large products of float8 with several scales are for the blocks of processors: here they are made of parts.
    std::erase_if(all, [](const OpCase& c) {
        return c.kind == "scaled_einsum" && !c.sizes.empty() && !is_by_library(c, 90) && !is_by_library(c, 100);
    });
    return all;
}

class OpTableGpu : public OpTable {};

TEST_P(OpTableGpu, KernelsAgreeWithTheReferenceInAnyOrderOfWarps) {
    const OpCase& c = GetParam();
    const mesh::Mesh mesh = mesh_of(c);
    const auto as_it_is = [](ir::Routine r) { return r; };
    for (unsigned seed = 0; seed < (c.sizes.empty() ? 6u : 1u); ++seed) {
        const Dtype narrow = kNarrow[seed % 2];
        const std::string what = title(c) + ", seed " + std::to_string(seed);
        const auto in_narrow_types = [&](ir::Routine r) { return in_narrow(narrow, std::move(r), seed % 4 < 2); };
        expect_gpu_agrees(draw(c, mesh, seed, Results::Written, in_narrow_types, kGpu), mesh, 0x1p-6, what + ", narrow");
        if (!c.sizes.empty()) continue;
        for (const Results kind : {Results::Written, Results::Accumulated})
            expect_gpu_agrees(draw(c, mesh, seed, kind, as_it_is, kGpu), mesh, 1e-5, what);
        const auto beside_narrow = [&](ir::Routine r) { return with_a_wide_stream(narrow, std::move(r)); };
        expect_gpu_agrees(draw(c, mesh, seed, Results::Written, beside_narrow, kGpu), mesh, 0x1p-6, what + ", on a stream");
    }
}

// A product of float8 that is made of parts rounds its factors.
bool expands_to_bfloat16(const Drawn& d) {
    return std::any_of(d.fast.ops.begin(), d.fast.ops.end(), [](const ir::Op& op) { return op.note == "from scaled_einsum"; });
}

// On the device of the module that LOCKSTEP_GPU_MODULE names, by its kernels.
class OpTableDevice : public OnNamedDevice<OpTable> {};

TEST_P(OpTableDevice, KernelsAgreeWithTheReference) {
    const OpCase& c = GetParam();
    const mesh::Mesh mesh = mesh_of(c);
    const auto as_it_is = [](ir::Routine r) { return r; };
    const Catalog catalog = [](int) {
        ops::KernelCatalog all = plugins::gpu_catalog();
        add_to(all, kernels::reference_kernels());
        // What cuBLASLt does not serve is made of parts.
        std::erase_if(all.entries, [](const ops::KernelEntry& e) { return e.kernel == "reference.scaled_einsum"; });
        return all;
    };
    const bool has_cudnn = plugins::gpu_module().description.find(", cuDNN") != std::string::npos;
    int held = 0;
    for (unsigned seed = 0; seed < seeds_of(c, 3); ++seed) {
        const auto in_narrow_types = [&](ir::Routine r) { return in_narrow(kNarrow[seed % 2], std::move(r), seed % 4 < 2); };
        const auto hold = [&](const Drawn& d, double tolerance) {
            if (is_by_library(c, plugins::gpu_module().compute_capability)) {
                EXPECT_TRUE(std::any_of(d.fast.ops.begin(), d.fast.ops.end(),
                                        [](const ir::Op& op) { return op.kernel == "cublaslt.scaled_matmul"; }));
            }
            if (std::any_of(d.fast.ops.begin(), d.fast.ops.end(),
                            [](const ir::Op& op) { return op.kernel.starts_with("reference."); }))
                return;  // it has none for these types
            ++held;
            for (const ir::Op& op : d.fast.ops) {
                const bool is_by_cudnn = has_cudnn && !c.sizes.empty() && op.attrs.contains("one_document");
                EXPECT_TRUE(!is_by_cudnn || op.kernel == "cudnn." + op.kind) << op.kernel;
            }
            for (int64_t rank = 0; rank < mesh.ranks(); ++rank) {
                for (bool fresh : {true, false}) {
                    DeviceInterpreter run(*arena_, mesh, d.fast, rank);
                    const Values got = results_of(run, d.fast, d.values, fresh);
                    expect_close(results(mesh, d.exact, rank, 1, d.values, fresh), got, tolerance,
                                 title(c) + ", seed " + std::to_string(seed));
                    EXPECT_TRUE(!fresh || got == results_of(run, d.fast, d.values, fresh))
                        << title(c) << ": other bits the next time";
                }
            }
        };
        for (const Results kind : {Results::Written, Results::Accumulated}) {
            if (!c.sizes.empty()) continue;
            const Drawn d = draw(c, mesh, seed, kind, as_it_is, catalog);
            hold(d, expands_to_bfloat16(d) ? 0x1p-6 : 1e-5);
        }
        hold(draw(c, mesh, seed, Results::Written, in_narrow_types, catalog), 0x1p-6);
    }
    EXPECT_TRUE(held > 0 || title(c) == "dropout_heads");
}

// A shard's op is a part of a sum only: nothing to differentiate by itself.
std::vector<OpCase> differentiable_cases() {
    std::vector<OpCase> out = op_cases();
    std::erase_if(out, [](const OpCase& c) { return !has_derivative(c) || !c.split.empty() || !c.sizes.empty(); });
    return out;
}

class OpTableDerivative : public OpTable {};

TEST_P(OpTableDerivative, IsThatOfFiniteDifferences) {
    const OpCase& c = GetParam();
    const mesh::Mesh mesh;
    for (unsigned seed = 0; seed < 4; ++seed) {
        std::mt19937 random(seed);
        ir::Routine forward = make_routine(c, mesh, random, Results::Written);
        ir::Routine both = with_derivative(c, mesh, forward);
        for (ir::Routine* r : {&forward, &both}) {
            for (ir::Tensor& t : r->tensors) {
                if (t.dtype == Dtype::F32) t.dtype = Dtype::F64;
            }
            passes::select_kernels(mesh, *r, kernels::reference_catalog());
        }
        Values values = operands(c, forward, mesh, random);
        Interpreter run(mesh, forward), backward(mesh, both);
        fill(run, values), fill(backward, values);
        Values seeds;
        for (size_t i = 0; i < c.out.size(); ++i) {
            if (!c.out[i].has_cotangent) continue;
            std::vector<double> s(run.get("out" + std::to_string(i)).size());
            for (double& v : s) v = static_cast<double>(random() % 2001) / 1000 - 1;
            if (backward.has("seed" + std::to_string(i))) backward.set("seed" + std::to_string(i), s);
            seeds["out" + std::to_string(i)] = std::move(s);
        }
        backward.run(true);
        const auto loss = [&] {
            run.run();
            double sum = 0;
            for (const auto& [name, s] : seeds) {
                const std::vector<double> out = run.get(name);
                for (size_t k = 0; k < s.size(); ++k) sum += s[k] * out[k];
            }
            return sum;
        };
        for (size_t i = 0; i < c.in.size(); ++i) {
            if (!c.in[i].differentiable) continue;
            const std::string in = "in" + std::to_string(i);
            const std::vector<double> gradient = backward.get("grad" + std::to_string(i));
            for (size_t k = 0; k < gradient.size(); k += 1 + gradient.size() / 40) {
                std::vector<double> moved = values.at(in);
                constexpr double kStep = 1e-5;
                moved[k] += kStep;
                run.set(in, moved);
                const double above = loss();
                moved[k] -= 2 * kStep;
                run.set(in, moved);
                const double difference = (above - loss()) / (2 * kStep);
                run.set(in, values.at(in));
                EXPECT_NEAR(gradient[k], difference, 1e-7 * std::max(1.0, std::abs(difference)))
                    << title(c) << ", operand " << i << ", element " << k;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpTable, ::testing::ValuesIn(op_cases()), [](const auto& info) { return title(info.param); });
INSTANTIATE_TEST_SUITE_P(Ops, OpTableOnStream, ::testing::ValuesIn(stream_cases()),
                         [](const auto& info) { return title(info.param); });
INSTANTIATE_TEST_SUITE_P(Ops, OpTableGpu, ::testing::ValuesIn(gpu_cases()), [](const auto& info) { return title(info.param); });
INSTANTIATE_TEST_SUITE_P(Ops, OpTableDevice, ::testing::ValuesIn(module_cases()),
                         [](const auto& info) { return title(info.param); });
INSTANTIATE_TEST_SUITE_P(Ops, OpTableDerivative, ::testing::ValuesIn(differentiable_cases()),
                         [](const auto& info) { return title(info.param); });

// The kernels that a catalog chooses for the cases.
void add_chosen(const ops::KernelCatalog& catalog, std::set<std::string>& used) {
    for (OpCase c : op_cases()) {
        const mesh::Mesh mesh;
        c.split.clear();
        for (unsigned seed = 0; seed < seeds_of(c, 12); ++seed) {  // kernels of one query serve some sizes only
            std::mt19937 random(seed);
            ir::Routine r = make_routine(c, mesh, random, Results::Written);
            if (has_derivative(c)) r = with_derivative(c, mesh, r);
            for (const ir::Routine& typed : {r, in_narrow(Dtype::BF16, r, false)}) {
                ir::Routine selected = typed;
                passes::select_kernels(mesh, selected, catalog);
                for (const ir::Op& op : selected.ops) used.insert(op.kernel);
            }
        }
    }
}

TEST(OpTableCoverage, EveryCpuKernelHasACase) {
    std::set<std::string> used;
    // Of the kernels of products one alone: what is taken where those before it are not.
    std::vector<ops::KernelCatalog> catalogs = {kernels::cpu_catalog(1)};
    std::set<std::string> products;
    for (const ops::KernelEntry& e : catalogs[0].entries) {
        if (e.kernel.starts_with("cpu.matmul") || e.kernel.starts_with("cpu.scaled_matmul")) products.insert(e.kernel);
    }
    for (const std::string& product : products) {
        std::erase_if(catalogs.emplace_back(kernels::cpu_catalog(1)).entries,
                      [&](const ops::KernelEntry& e) { return products.contains(e.kernel) && e.kernel != product; });
    }
    for (const ops::KernelCatalog& catalog : catalogs) add_chosen(catalog, used);
    for (const ops::KernelEntry& e : kernels::cpu_catalog(1).entries) {
        EXPECT_TRUE(!e.kernel.starts_with("cpu.") || used.contains(e.kernel)) << e.kernel;
    }
}

TEST(OpTableCoverage, EveryGpuKernelHasACase) {
    std::set<std::string> used;
    add_chosen(kGpu(1), used);
    // Of blocks of several ranks: EquivalenceGpuKernels.
    const std::set<std::string> of_ranks = {"gpu.slice", "gpu.block", "gpu.join_blocks", "gpu.sum_blocks"};
    for (const kernels::Registered& r : kernels::gpu::all_kernels())
        EXPECT_TRUE(used.contains(r.kernel) || of_ranks.contains(r.kernel)) << r.kernel;
}

TEST(OpTableCoverage, OpsWithoutAGpuKernel) {
    std::set<std::string> without;
    const std::set<std::string> kinds = kinds_on_a_gpu();
    for (const auto* backend : {&kernels::cpu_kernels(), &kernels::reference_kernels()}) {
        for (const kernels::Registered& r : *backend) {
            if (!kinds.contains(r.op)) without.insert(r.op);
        }
    }
    EXPECT_EQ(without, (std::set<std::string>{"qkv_rope", "scaled_einsum"}));
}

TEST(OpTableCoverage, EveryDerivativeHasACase) {
    std::set<std::string> differentiated;
    for (const OpCase& c : op_cases()) {
        if (has_derivative(c) && c.split.empty()) differentiated.insert(c.kind);
    }
    for (const ops::OpRule& rule : ops::all_rules()) {
        if (rule.collective) continue;  // of several ranks: CollectiveTable.Derivatives
        EXPECT_TRUE(!rule.derivative || differentiated.contains(std::string(rule.name))) << rule.name;
    }
}

}  // namespace
}  // namespace lockstep::testing
