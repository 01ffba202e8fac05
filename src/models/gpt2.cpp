// GPT-2 (Radford et al. 2019) and GPT-3's shapes (arXiv 2005.14165): pre-norm blocks of multi-head attention and GELU,
// LayerNorm, learned positions, biases everywhere, tied embeddings, dropout after the embedding, on attention's probabilities
// and before each residual sum. Initial values as in GPT-2: std 0.02, residual projections divided by sqrt(2 n_layers).
//
// Names and values are those of Hugging Face's GPT2LMHeadModel. Its linear layers (Conv1D) hold [in, out], and so do these,
// with heads written as [kv_heads, group = 1, head_dim]: every tensor is equal element for element but for the fused c_attn,
// which is three parameters here, each the columns of one third of it, so that tensor parallelism cuts all three by heads:
//     attn.c_attn.weight [dim, 3 dim] = attn.c_attn.{q,k,v}.weight side by side, each [dim, dim] (in, out)
//     attn.c_attn.bias   [3 dim]      = attn.c_attn.{q,k,v}.bias one after the other
#include <fmt/format.h>

#include <cmath>

#include "models/blocks.h"
#include "models/layers.h"
#include "ops/dropout.h"

namespace lockstep::models {
namespace {

using ir::Access;
using ir::DimId;
using ir::PortKind;
using ir::PortRole;
using ir::TensorId;
using ops::Builder;

constexpr double kStd = 0.02;

struct GptShape : CommonShape {
    int64_t ffn, positions;
    double embd_dropout, attn_dropout, resid_dropout;
    std::string gelu;
};

// One of the three probabilities, or the one for all.
double probability(const ir::Attrs& a, const char* key) { return number(a, number(a, key) == -1 ? "dropout" : key); }

GptShape read(const ir::Attrs& a, int64_t seq) {
    GptShape s{read_common(a), 0, 0, 0, 0, 0, ""};
    s.positions = integer(a, "n_positions");
    s.ffn = integer(a, "ffn_dim") > 0 ? integer(a, "ffn_dim") : 4 * s.dim;
    s.embd_dropout = probability(a, "embd_pdrop"), s.attn_dropout = probability(a, "attn_pdrop"),
    s.resid_dropout = probability(a, "resid_pdrop");
    s.gelu = integer(a, "gelu_erf") != 0 ? "gelu_erf" : "gelu";
    if (seq > s.positions) {
        refuse(
            "model.positions", "n_positions",
            fmt::format("model.n_positions = {}: a sequence has {} tokens (training.seq_len), and each needs a learned position",
                        s.positions, seq));
    }
    return s;
}

std::vector<ir::Dim> dims_of_gpt(const GptShape& s, int64_t seq) {
    std::vector<ir::Dim> dims;
    const auto add = [&](ir::DimRole role, int64_t size) { dims.push_back({std::string(name_of(role)), size, size, role}); };
    using enum ir::DimRole;
    add(Batch, 1), add(Seq, seq), add(KvSeq, seq), add(Hidden, s.dim);
    add(KvHeads, s.heads), add(Group, 1), add(HeadDim, s.head_dim), add(Ffn, s.ffn);
    add(Positions, s.positions);
    add(Vocab, s.vocab);
    return dims;
}

class Gpt {
public:
    Gpt(const GptShape& shape, int64_t seq)
        : s_(shape), blocks_(dims_of_gpt(shape, seq)), deep_(normal(kStd / std::sqrt(2.0 * static_cast<double>(shape.layers)))) {}

    Model build() {
        embed();
        layer();
        head();
        return blocks_.take();
    }

private:
    TensorId norm(Builder& b, const std::string& name, TensorId x, const std::string& key, const std::string& module) {
        const TensorId w = blocks_.param(b, key + "_w", {"hidden"}, module + ".weight", ones());
        const TensorId bias = blocks_.param(b, key + "_b", {"hidden"}, module + ".bias", zeros());
        const std::vector<DimId> rows = b.dims({"batch", "seq"});
        return b.op("layernorm", {x, w, bias}, {{name, b.dims(x)}, {name + ".mean", rows}, {name + ".rstd", rows}},
                    {{"eps", s_.norm_eps}, {"over", std::string("hidden")}})[0];
    }

    void embed() {
        ir::Routine r = blocks_.start("embed", 1);
        Builder b(r);
        const std::vector<DimId> hidden = b.dims({"batch", "seq", "hidden"});
        const TensorId wte = blocks_.param(b, "wte", {"vocab", "hidden"}, "transformer.wte.weight", normal(kStd));
        const TensorId wpe = blocks_.param(b, "wpe", {"positions", "hidden"}, "transformer.wpe.weight", normal(kStd));
        const TensorId token = b.op("gather", {wte, input(b, PortRole::Ids)}, {{"token", hidden}})[0];
        const TensorId position = b.op("gather", {wpe, input(b, PortRole::Positions)}, {{"position", hidden}})[0];
        TensorId y = b.add("sum", {token, position});
        if (s_.embd_dropout > 0) {
            const ir::Attrs place = ops::dropout_attrs(s_.embd_dropout, "embed");
            y = b.op("dropout", {y, input(b, PortRole::Noise)}, {{"dropped", hidden}}, place)[0];
        }
        blocks_.finish(b, y, PortRole::Y);
    }

    // Queries, keys or values.
    TensorId head_rows(Builder& b, const std::string& name, TensorId x, const std::vector<std::string_view>& heads) {
        std::vector<std::string_view> matrix = {"hidden"};
        matrix.insert(matrix.end(), heads.begin(), heads.end());
        const std::string module = "transformer.h.{}.attn.c_attn." + name;
        const TensorId w = blocks_.param(b, "w" + name, matrix, module + ".weight", normal(kStd));
        return project(b, name, x, heads, w, blocks_.param(b, "b" + name, heads, module + ".bias", zeros()));
    }

    TensorId attention(Builder& b, TensorId x) {
        const TensorId pos = input(b, PortRole::Positions), doc = input(b, PortRole::Documents);
        const TensorId q = head_rows(b, "q", x, {"kv_heads", "group", "head_dim"});
        const TensorId k = head_rows(b, "k", x, {"kv_heads", "head_dim"}), v = head_rows(b, "v", x, {"kv_heads", "head_dim"});
        return attend(b, {q, k, v, pos, doc, s_.head_dim, 0, s_.attn_dropout});
    }

    // The end of a half: residual + dropout(x w + bias).
    TensorId into_residual(Builder& b, const std::string& name, TensorId x, TensorId w, TensorId bias, TensorId residual,
                           const std::string& place) {
        const std::vector<DimId> hidden = b.dims(residual);
        std::vector<TensorId> in = {b.einsum(place, hidden, {x, w}), bias, residual};
        ir::Attrs attrs;
        if (s_.resid_dropout > 0) {
            const int known = b.routine().port(PortRole::Noise);
            in.push_back(known >= 0 ? b.routine().port_tensors(known)[0] : input(b, PortRole::Noise));
            attrs = ops::dropout_attrs(s_.resid_dropout, place);
        }
        return b.op("bias_dropout_add", in, {{name, hidden}}, attrs)[0];
    }

    void layer() {
        ir::Routine r = blocks_.start("layer", s_.layers);
        Builder b(r);
        const auto param = [&](const char* key, const std::vector<std::string_view>& dims, const char* name,
                               const Blocks::Init& init) {
            return blocks_.param(b, key, dims, std::string("transformer.h.{}.") + name, init);
        };
        const std::vector<DimId> ffn = b.dims({"batch", "seq", "ffn"});
        const TensorId x = b.port(PortRole::X, PortKind::Value, Access::Read, b.dims({"batch", "seq", "hidden"}));
        const TensorId o = attention(b, norm(b, "n1", x, "ln_1", "transformer.h.{}.ln_1"));
        const TensorId wo = param("wo", {"kv_heads", "group", "head_dim", "hidden"}, "attn.c_proj.weight", deep_),
                       bo = param("bo", {"hidden"}, "attn.c_proj.bias", zeros());
        const TensorId x1 = into_residual(b, "x1", o, wo, bo, x, "ao");
        const TensorId n2 = norm(b, "n2", x1, "ln_2", "transformer.h.{}.ln_2");
        const TensorId up = b.einsum("up", ffn, {n2, param("w1", {"hidden", "ffn"}, "mlp.c_fc.weight", normal(kStd))});
        const TensorId b1 = param("b1", {"ffn"}, "mlp.c_fc.bias", zeros());
        const TensorId act = b.op("bias_gelu", {up, b1}, {{"act", ffn}}, {{"fn", s_.gelu}})[0];
        const TensorId w2 = param("w2", {"ffn", "hidden"}, "mlp.c_proj.weight", deep_),
                       b2 = param("b2", {"hidden"}, "mlp.c_proj.bias", zeros());
        blocks_.finish(b, into_residual(b, "y", act, w2, b2, x1, "mlp"), PortRole::Y);
    }

    void head() {
        ir::Routine r = blocks_.start("head", 1);
        Builder b(r);
        const TensorId x = b.port(PortRole::X, PortKind::Value, Access::Read, b.dims({"batch", "seq", "hidden"}));
        const TensorId n = norm(b, "n", x, "ln_f", "transformer.ln_f");
        const TensorId w = blocks_.param(b, s_.tied ? "wte" : "output", {"vocab", "hidden"}, "lm_head.weight", normal(kStd));
        blocks_.finish(b, b.einsum("logits", b.dims({"batch", "seq", "vocab"}), {n, w}), PortRole::Logits);
    }

    GptShape s_;
    Blocks blocks_;
    Blocks::Init deep_;
};

Flavor flavor(const char* name, int64_t dim, int64_t layers, int64_t heads) {
    return {name, {{"dim", dim}, {"n_layers", layers}, {"n_heads", heads}}};
}

}  // namespace

ModelSpec gpt2() {
    ModelSpec spec;
    spec.name = "gpt2";
    spec.keys = common_keys({768, 12, 12, 0, 50257, 1e-5, true});
    const ModelKey own[] = {
        {"ffn_dim", int64_t{0}, "width of the feed-forward layer; 0: 4 dim", from_to(0, kLargest)},
        {"n_positions", int64_t{1024}, "learned positions: the longest sequence", from_to(1, kLargest)},
        {"gelu_erf", int64_t{0}, "1: GELU by the error function; 0: by tanh, as GPT-2 has it", from_to(0, 1)},
        {"dropout", 0.0, "probability of dropout at all three places; GPT-2 had 0.1", from_below(0, 1)},
        {"embd_pdrop", -1.0, "dropout after the embedding; -1: model.dropout", from_below(0, 1).or_value(-1)},
        {"attn_pdrop", -1.0, "dropout on attention's probabilities; -1: model.dropout", from_below(0, 1).or_value(-1)},
        {"resid_pdrop", -1.0, "dropout before each residual sum; -1: model.dropout", from_below(0, 1).or_value(-1)},
    };
    spec.keys.insert(spec.keys.end(), std::begin(own), std::end(own));
    spec.flavors = {flavor("debugmodel", 256, 6, 16), flavor("124M", 768, 12, 12), flavor("355M", 1024, 24, 16),
                    flavor("774M", 1280, 36, 20), flavor("1558M", 1600, 48, 25)};
    spec.flavors[0].values["vocab_size"] = int64_t{2048};
    spec.dims = [](const ir::Attrs& shape, int64_t seq) { return dims_of_gpt(read(shape, seq), seq); };
    spec.build = [](const ir::Attrs& shape, int64_t seq) { return Gpt(read(shape, seq), seq).build(); };
    return spec;
}

}  // namespace lockstep::models
