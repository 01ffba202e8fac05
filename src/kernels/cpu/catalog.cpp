// The CPU backend as the compiler and the executor see it: which op runs on which of this folder's functions.
#include <string_view>

#include "kernels/cpu/makers.h"
#include "kernels/cpu/matmul_onednn.h"

namespace lockstep::kernels {
namespace {

using namespace makers;

// One row of the table: a kernel, for operands and results of these element types: T float32 or bfloat16 (all T of an op
// alike), t the other of the two, f float32, d float64, i int32; the last letter before > also stands for any more operands.
struct Entry {
    const char *op, *kernel, *types;
    Made (*f32)(const KernelContext&);   // T is float32, or does not occur
    Made (*bf16)(const KernelContext&);  // T is bfloat16
    int accumulates = -1;                // KernelEntry's
    bool in_place = false;
};
constexpr const char *kMatmulDot = "cpu.matmul_bf16", *kMatmulAmx = "cpu.matmul_amx";
constexpr auto kDot = cpu::MatmulKernel::bf16_dot, kAmx = cpu::MatmulKernel::amx;
constexpr Entry kEntries[] = {
    {"einsum", "cpu.matmul", "ff>f", make_matmul<float, float>, nullptr, 0},
    {"einsum", "cpu.matmul_onednn", "ff>f", make_matmul_onednn, nullptr, 0},
    {"einsum", kMatmulAmx, "TT>T", nullptr, make_matmul<Bf16, Bf16, kAmx>},
    {"einsum", kMatmulAmx, "TT>f", nullptr, make_matmul<Bf16, float, kAmx>, 0},
    {"einsum", kMatmulDot, "TT>T", nullptr, make_matmul<Bf16, Bf16, kDot>},
    {"einsum", kMatmulDot, "TT>f", nullptr, make_matmul<Bf16, float, kDot>, 0},
    {"einsum", "cpu.matmul", "TT>T", nullptr, make_matmul<Bf16, Bf16>},
    {"einsum", "cpu.matmul", "TT>f", nullptr, make_matmul<Bf16, float>, 0},
    {"addmm", "cpu.matmul", "fff>f", make_matmul<float, float>, nullptr, -1, true},
    {"addmm", kMatmulAmx, "fTT>f", nullptr, make_matmul<Bf16, float, kAmx>, -1, true},
    {"addmm", kMatmulDot, "fTT>f", nullptr, make_matmul<Bf16, float, kDot>, -1, true},
    {"addmm", "cpu.matmul", "fTT>f", nullptr, make_matmul<Bf16, float>, -1, true},
    {"qkv_rope", "cpu.qkv_rope", "TTTTi>TTT", make_qkv_rope<float>, make_qkv_rope<Bf16>},
    {"add", "cpu.add", "T>T", make_add<float>, make_add<Bf16>, -1, true},
    {"scale", "cpu.scale", "T>T", make_scale<float>, make_scale<Bf16>, -1, true},
    {"cast", "cpu.cast", "t>T", make_cast, make_cast},
    {"accumulate", "cpu.accumulate", "T>f", make_accumulate<float>, make_accumulate<Bf16>},
    {"swiglu", "cpu.swiglu", "TT>T", make_swiglu<float>, make_swiglu<Bf16>},
    {"swiglu_backward", "cpu.swiglu_backward", "TTT>TT", make_swiglu_backward<float>, make_swiglu_backward<Bf16>},
    {"rmsnorm", "cpu.rmsnorm", "TT>Tf", make_rmsnorm<float>, make_rmsnorm<Bf16>},
    {"rmsnorm_backward", "cpu.rmsnorm_backward", "TTTf>Tf", make_rmsnorm_backward<float>, make_rmsnorm_backward<Bf16>, 1},
    {"add_rmsnorm", "cpu.add_rmsnorm", "TTT>TTf", make_add_rmsnorm<float>, make_add_rmsnorm<Bf16>, -1, true},
    {"rmsnorm_backward_add", "cpu.rmsnorm_backward", "TTTTf>Tf", make_rmsnorm_backward<float>, make_rmsnorm_backward<Bf16>, 1,
     true},
    {"rope", "cpu.rope", "Ti>T", make_rope<float>, make_rope<Bf16>, -1, true},
    {"gather", "cpu.gather", "Ti>T", make_gather<float>, make_gather<Bf16>},
    {"scatter", "cpu.scatter", "Ti>f", make_scatter<float>, make_scatter<Bf16>, 0},
    {"attention", kAttentionRow, "TTTi>Tf", make_attention<float>, make_attention<Bf16>},
    {"attention", kAttentionAmx, "TTTi>Tf", nullptr, make_attention<Bf16>},
    {"attention", "cpu.attention", "TTTi>Tf", make_attention<float>, make_attention<Bf16>},
    {"attention_backward", kAttentionBackwardAmx, "TTTTiiiiTf>TTT", nullptr, make_attention_backward<Bf16>},
    {"attention_backward", kAttentionBackwardAmx, "TTTTiiiiTfi>TTT", nullptr, make_attention_backward<Bf16>},
    {"attention_backward", "cpu.attention_backward", "TTTTiiiiTf>TTT", make_attention_backward<float>,
     make_attention_backward<Bf16>},
    {"attention_backward", "cpu.attention_backward", "TTTTiiiiTfi>TTT", make_attention_backward<float>,
     make_attention_backward<Bf16>},
    {"einsum", "cpu.sum_rows", "T>f", make_sum_rows<float>, make_sum_rows<Bf16>, 0},
    {"bias", "cpu.bias", "TT>T", make_bias<float>, make_bias<Bf16>, -1, true},
    {"bias_gelu", "cpu.bias_gelu", "TT>T", make_bias_gelu<float>, make_bias_gelu<Bf16>},
    {"bias_gelu_backward", "cpu.bias_gelu_backward", "TTT>Tf", make_bias_gelu_backward<float>, make_bias_gelu_backward<Bf16>, 1},
    {"dropout", "cpu.dropout", "Ti>T", make_dropout<float>, make_dropout<Bf16>, -1, true},
    {"bias_dropout_add", "cpu.bias_dropout_add", "TTT>T", make_bias_dropout_add<float>, make_bias_dropout_add<Bf16>, -1, true},
    {"bias_dropout_add", "cpu.bias_dropout_add", "TTTi>T", make_bias_dropout_add<float>, make_bias_dropout_add<Bf16>, -1, true},
    {"layernorm", "cpu.layernorm", "TTT>Tff", make_layernorm<float>, make_layernorm<Bf16>},
    {"layernorm_backward", "cpu.layernorm_backward", "TTTTff>Tff", make_layernorm_backward<float>, make_layernorm_backward<Bf16>,
     1},
    {"layernorm_backward_add", "cpu.layernorm_backward", "TTTTTff>Tff", make_layernorm_backward<float>,
     make_layernorm_backward<Bf16>, 1, true},
    {"max", "cpu.max", "f>f", make_max, nullptr},
    {"mask_padding", "cpu.mask_padding", "T>T", make_mask_padding<float>, make_mask_padding<Bf16>, -1, true},
    {"cross_entropy", "cpu.cross_entropy", "ffi>ff", make_cross_entropy<float>, nullptr},
    {"cross_entropy_backward", "cpu.cross_entropy_backward", "ffffi>T", make_cross_entropy<float>, make_cross_entropy<Bf16>, -1,
     true},
    {"adamw", "cpu.adamw", "TfTTd>TTT", make_adam<float>, make_adam<Bf16>},
    {"adam", "cpu.adam", "TfTTd>TTT", make_adam<float>, make_adam<Bf16>},
    {"sgd", "cpu.sgd", "TfTd>TT", make_sgd<float>, make_sgd<Bf16>},
    {"sgd", "cpu.sgd", "Tfd>T", make_sgd<float>, make_sgd<Bf16>},
    {"muon_momentum", "cpu.muon_momentum", "fTd>fT", make_muon_momentum<float>, make_muon_momentum<Bf16>},
    {"muon", "cpu.muon", "Tfd>T", make_muon<float>, make_muon<Bf16>},
    {"sum_squares", "cpu.sum_squares", "f>d", make_sum_squares, nullptr, 0},
    // The residual stream in float32 beside bfloat16.
    {"gather", "cpu.gather", "Ti>f", nullptr, make_gather<float, Bf16>},
    {"rmsnorm", "cpu.rmsnorm", "fT>Tf", nullptr, make_rmsnorm<float, Bf16>},
    {"rmsnorm_backward", "cpu.rmsnorm_backward", "ffTf>ff", nullptr, make_rmsnorm_backward<float, Bf16>, 1},
    {"add_rmsnorm", "cpu.add_rmsnorm", "ffT>fTf", nullptr, make_add_rmsnorm<float, Bf16>, -1, true},
    {"rmsnorm_backward_add", "cpu.rmsnorm_backward", "fffTf>ff", nullptr, make_rmsnorm_backward<float, Bf16>, 1, true},
    {"layernorm", "cpu.layernorm", "fTT>Tff", nullptr, make_layernorm<float, Bf16>},
    {"layernorm_backward", "cpu.layernorm_backward", "ffTTff>fff", nullptr, make_layernorm_backward<float, Bf16>, 1},
    {"layernorm_backward_add", "cpu.layernorm_backward", "fffTTff>fff", nullptr, make_layernorm_backward<float, Bf16>, 1, true},
    {"bias_dropout_add", "cpu.bias_dropout_add", "fTf>f", nullptr, make_bias_dropout_add<float, Bf16>, -1, true},
    {"bias_dropout_add", "cpu.bias_dropout_add", "fTfi>f", nullptr, make_bias_dropout_add<float, Bf16>, -1, true},
    // Weights of norms in float32 beside bfloat16; with such a stream, too, a norm's backward is that of float32.
    {"rmsnorm", "cpu.rmsnorm", "Tf>Tf", nullptr, make_rmsnorm<Bf16, Bf16, float>},
    {"rmsnorm", "cpu.rmsnorm", "ff>Tf", nullptr, make_rmsnorm<float, Bf16, float>},
    {"rmsnorm_backward", "cpu.rmsnorm_backward", "TTff>Tf", nullptr, make_rmsnorm_backward<Bf16, float>, 1},
    {"add_rmsnorm", "cpu.add_rmsnorm", "TTf>TTf", nullptr, make_add_rmsnorm<Bf16, Bf16, float>, -1, true},
    {"add_rmsnorm", "cpu.add_rmsnorm", "fff>fTf", nullptr, make_add_rmsnorm<float, Bf16, float>, -1, true},
    {"rmsnorm_backward_add", "cpu.rmsnorm_backward", "TTTff>Tf", nullptr, make_rmsnorm_backward<Bf16, float>, 1, true},
    {"layernorm", "cpu.layernorm", "Tff>Tff", nullptr, make_layernorm<Bf16, Bf16, float>},
    {"layernorm", "cpu.layernorm", "fff>Tff", nullptr, make_layernorm<float, Bf16, float>},
    {"layernorm_backward", "cpu.layernorm_backward", "TTffff>Tff", nullptr, make_layernorm_backward<Bf16, float>, 1},
    {"layernorm_backward_add", "cpu.layernorm_backward", "TTTffff>Tff", nullptr, make_layernorm_backward<Bf16, float>, 1, true},
};

bool is_amx(std::string_view kernel) { return kernel.ends_with("_amx"); }

// Has the op the element types that `types` spells, with `storage` for T?
bool has_types(std::string_view types, Dtype storage, const ir::Routine& r, const ir::Op& op) {
    const auto is = [&](char letter, Dtype t) {
        switch (letter) {
            case 'T': return t == storage;
            case 't': return t == (storage == Dtype::F32 ? Dtype::BF16 : Dtype::F32);
            case 'f': return t == Dtype::F32;
            case 'd': return t == Dtype::F64;
            default: return t == Dtype::I32;
        }
    };
    const size_t middle = types.find('>');
    const auto match = [&](std::string_view letters, const std::vector<ir::TensorId>& tensors, bool repeats) {
        if (tensors.size() < letters.size() || (tensors.size() > letters.size() && !repeats)) return false;
        for (size_t i = 0; i < tensors.size(); ++i) {
            if (!is(letters[std::min(i, letters.size() - 1)], r.tensors[tensors[i]].dtype)) return false;
        }
        return true;
    };
    return match(types.substr(0, middle), op.in, true) && match(types.substr(middle + 1), op.out, false);
}

// What some ops ask beyond their types, and their workspace.
void complete(ops::KernelEntry& entry, int threads) {
    using ir::Op;
    using ir::Routine;
    using mesh::Mesh;
    const std::string& op = entry.op;
    const auto also = [&](const auto& condition) {
        entry.serves = [types = entry.serves, condition](const Mesh& m, const Routine& r, const Op& o) {
            return types(m, r, o) && condition(r, o);
        };
    };
    if (entry.kernel == "cpu.sum_rows") also([](const Routine& r, const Op& o) { return is_sum_of_rows(r, o); });
    if (op.starts_with("bias_gelu")) also([](const Routine&, const Op& o) { return o.text("fn") == "gelu"; });
    if (op == "dropout") {
        also([](const Routine& r, const Op& o) { return r.tensors[o.in[0]].dims.size() == r.tensors[o.in[1]].dims.size() + 1; });
    }
    if (entry.kernel.starts_with("cpu.matmul")) {
        entry.serves = [types = entry.serves](const Mesh& m, const Routine& r, const Op& o) {
            ops::MatmulShape shape;
            return types(m, r, o) && ops::is_matmul(m, r, o, &shape);
        };
        if (entry.kernel != "cpu.matmul_onednn") {
            const auto kernel = entry.kernel == kMatmulAmx ? kAmx : entry.kernel == kMatmulDot ? kDot : cpu::MatmulKernel::packed;
            entry.workspace_bytes = [threads, kernel](const Mesh& m, const Routine& r, const Op& o) {
                ops::MatmulShape shape;
                ops::is_matmul(m, r, o, &shape);
                const auto result =
                    r.tensors[o.out[0]].dtype == Dtype::BF16 ? cpu::Matmul::Result::bf16 : cpu::Matmul::Result::f32;
                return cpu::Matmul(matmul_shape(shape), threads, kernel, result).workspace_bytes();
            };
        }
    }
    if (op == "attention" || op == "attention_backward") {
        const bool row = entry.kernel == kAttentionRow;
        if (row) {
            entry.serves = [types = entry.serves](const Mesh& m, const Routine& r, const Op& o) {
                return types(m, r, o) && attention_shape(m, r, o).seq == 1 && !ops::has_dropout(o);
            };
        }
        const auto kernel = is_amx(entry.kernel) ? cpu::AttentionKernel::amx : cpu::AttentionKernel::floats;
        entry.workspace_bytes = [threads, row, kernel](const Mesh& m, const Routine& r, const Op& o) {
            const cpu::AttentionShape shape = attention_shape(m, r, o);
            if (row) return cpu::attention_row_workspace_bytes(shape, threads);
            return o.kind == "attention" ? cpu::attention_workspace_bytes(shape, threads, kernel)
                                         : cpu::attention_backward_workspace_bytes(shape, threads, kernel);
        };
    }
    if (op.starts_with("rmsnorm_backward")) {
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::rms_norm_backward_workspace_bytes(rows_of(m, r, r.tensors[o.in[1]]).n, threads);
        };
    }
    if (op.starts_with("layernorm_backward")) {
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::layer_norm_backward_workspace_bytes(rows_of(m, r, r.tensors[o.in[1]]).n, threads);
        };
    }
    if (op == "bias_gelu_backward") {
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::row_sums_workspace_bytes(ir::local_elements(m, r, r.tensors[o.in[2]]), threads);
        };
    }
    if (op == "qkv_rope") {
        entry.serves = [types = entry.serves, threads](const Mesh& m, const Routine& r, const Op& o) {
            if (!types(m, r, o)) return false;
            const cpu::QkvRope shape = qkv_rope(m, r, o, threads);
            // It multiplies floats: where there is faster for bfloat16 its parts are.
            return shape.pays() && (shape.result == cpu::Matmul::Result::f32 || !cpu::has_fast_bf16());
        };
        entry.workspace_bytes = [threads](const Mesh& m, const Routine& r, const Op& o) {
            return qkv_rope(m, r, o, threads).workspace_bytes();
        };
    }
    if (op == "sum_squares") {
        entry.workspace_bytes = [](const Mesh& m, const Routine& r, const Op& o) {
            return cpu::sum_of_squares_workspace_bytes(ir::local_elements(m, r, r.tensors[o.in[0]]));
        };
    }
}

}  // namespace

ops::KernelCatalog cpu_catalog(int threads) {
    ops::KernelCatalog catalog;
    catalog.name = "cpu";
    std::vector<ops::KernelEntry> second;  // taken only where a table says that they are faster
    for (const Entry& e : kEntries) {
        for (const Dtype storage : {Dtype::F32, Dtype::BF16}) {
            if (!(storage == Dtype::F32 ? e.f32 : e.bf16)) continue;
            const bool is_dot = std::string_view(e.kernel) == kMatmulDot;
            if (std::string_view(e.kernel) == "cpu.matmul_onednn" && !cpu::onednn_is_built()) continue;
            if (is_dot && !cpu::has_bf16_dot()) continue;
            if (is_amx(e.kernel) && !cpu::has_amx()) continue;
            const std::string_view types = e.types;
            const char result = types[types.find('>') + 1];  // of result 0
            const Dtype dtype = result == 'T' ? storage : result == 'd' ? Dtype::F64 : Dtype::F32;
            ops::KernelEntry entry{e.op, dtype, e.kernel, e.accumulates, e.in_place, {}, {}};
            entry.serves = [types, storage](const mesh::Mesh&, const ir::Routine& r, const ir::Op& o) {
                return has_types(types, storage, r, o);
            };
            complete(entry, threads);
            (is_dot && !cpu::prefers_bf16_dot() ? second : catalog.entries).push_back(std::move(entry));
        }
    }
    for (ops::KernelEntry& e : second) catalog.entries.push_back(std::move(e));
    for (ops::KernelEntry& e : reference_catalog().entries) catalog.entries.push_back(std::move(e));
    catalog.threads = threads;
    return catalog;
}

std::unique_ptr<Kernel> make_cpu_kernel(const KernelContext& c) {
    for (const Entry& e : kEntries) {
        if (c.op.kernel != e.kernel || c.op.kind != e.op) continue;
        if (e.f32 && has_types(e.types, Dtype::F32, c.routine, c.op)) return e.f32(c);
        if (e.bf16 && has_types(e.types, Dtype::BF16, c.routine, c.op)) return e.bf16(c);
    }
    return nullptr;
}

}  // namespace lockstep::kernels
