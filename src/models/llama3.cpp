// Llama 3 (arXiv 2407.21783): pre-norm blocks of grouped-query attention with rotary positions and SwiGLU, RMSNorm throughout.
// Dimensions of the flavors are TorchTitan's; parameter names are those of Hugging Face's LlamaForCausalLM.
#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "base/round.h"
#include "models/model.h"
#include "ops/builder.h"

namespace lockstep::models {
namespace {

using ir::Access;
using ir::DimId;
using ir::PortKind;
using ir::TensorId;
using ops::Builder;

constexpr int64_t kLargest = 1 << 30;  // of any number in a shape: products of two fit in 64 bits

struct Shape {
    int64_t dim, layers, heads, kv_heads, head_dim, ffn, vocab;
    double norm_eps;
    bool qk_norm, tied;
    ir::Attrs rope;
};

int64_t integer(const ir::Attrs& a, const char* key) { return std::get<int64_t>(a.at(key)); }
double number(const ir::Attrs& a, const char* key) { return std::get<double>(a.at(key)); }

[[noreturn]] void refuse(const std::string& id, const std::string& key, const std::string& message) {
    throw UserError(id, "model." + key, message);
}

// TorchTitan's rule: two thirds of 4 dim, times the multiplier, rounded up.
int64_t ffn_size(int64_t dim, double multiplier, int64_t multiple_of) {
    const auto scaled = static_cast<int64_t>(multiplier * static_cast<double>(2 * 4 * dim / 3));
    return round_up(scaled, multiple_of);
}

Shape read(const ir::Attrs& a) {
    for (const char* key : {"dim", "n_layers", "n_heads", "vocab_size", "multiple_of"}) {
        if (integer(a, key) < 1)
            refuse("model.not_positive", key, fmt::format("model.{} = {}: must be at least 1", key, integer(a, key)));
    }
    for (const auto& [key, value] : a) {
        const auto* n = std::get_if<int64_t>(&value);
        if (n && (*n < 0 || *n > kLargest))
            refuse("model.out_of_range", key, fmt::format("model.{} = {}: must lie between 0 and {}", key, *n, kLargest));
    }
    Shape s{};
    s.dim = integer(a, "dim"), s.layers = integer(a, "n_layers"), s.heads = integer(a, "n_heads"),
    s.vocab = integer(a, "vocab_size");
    s.kv_heads = integer(a, "n_kv_heads") > 0 ? integer(a, "n_kv_heads") : s.heads;
    if (s.heads % s.kv_heads != 0) {
        refuse(
            "model.kv_heads", "n_kv_heads",
            fmt::format("model.n_heads = {} is not a multiple of model.n_kv_heads = {}: choose a divisor", s.heads, s.kv_heads));
    }
    s.head_dim = integer(a, "head_dim");
    if (s.head_dim <= 0) {
        if (s.dim % s.heads != 0) {
            refuse("model.head_dim", "n_heads",
                   fmt::format("model.dim = {} is not a multiple of model.n_heads = {}: set model.head_dim, or choose a divisor",
                               s.dim, s.heads));
        }
        s.head_dim = s.dim / s.heads;
    }
    if (s.head_dim % 2 != 0) {
        refuse(
            "model.odd_head_dim", "head_dim",
            fmt::format("the head dimension {} is odd: rotary positions need pairs; choose an even model.head_dim", s.head_dim));
    }
    s.ffn = integer(a, "ffn_dim") > 0 ? integer(a, "ffn_dim")
                                      : ffn_size(s.dim, number(a, "ffn_dim_multiplier"), integer(a, "multiple_of"));
    if (s.ffn < 1)
        refuse("model.ffn", "ffn_dim_multiplier",
               fmt::format("model.ffn_dim_multiplier = {}: makes a feed-forward width of {}; raise it, or set model.ffn_dim",
                           number(a, "ffn_dim_multiplier"), s.ffn));
    s.norm_eps = number(a, "norm_eps");
    if (!(s.norm_eps >= 0 && s.norm_eps < 1))
        refuse("model.norm_eps", "norm_eps", fmt::format("model.norm_eps = {}: must lie between 0 and 1", s.norm_eps));
    s.qk_norm = integer(a, "qk_norm") != 0;
    s.tied = integer(a, "tie_embeddings") != 0;
    if (number(a, "rope_theta") <= 0 || number(a, "rope_scaling_factor") <= 0) {
        refuse("model.rope", "rope_theta", "model.rope_theta and model.rope_scaling_factor must be positive");
    }
    s.rope = {{"theta", number(a, "rope_theta")},
              {"factor", number(a, "rope_scaling_factor")},
              {"low_freq_factor", number(a, "rope_low_freq_factor")},
              {"high_freq_factor", number(a, "rope_high_freq_factor")},
              {"original_positions", static_cast<double>(integer(a, "rope_original_positions"))}};
    return s;
}

// Builds one block after the other, and the list of parameters as they are first used.
class Llama {
public:
    Llama(const Shape& shape, const Sizes& sizes) : s_(shape), sizes_(sizes) {}

    Model build() {
        embed();
        layer();
        head();
        return std::move(model_);
    }

private:
    ir::Routine start(const std::string& name, int64_t count) {
        model_.blocks.push_back({name, count});
        ir::Routine r;
        r.name = name + ".forward";
        r.block = name;
        const auto add = [&](const char* dim, int64_t size) { r.dims.push_back({dim, size, size}); };
        add("batch", sizes_.batch), add("seq", sizes_.seq), add("kv_seq", sizes_.seq), add("hidden", s_.dim);
        add("kv_heads", s_.kv_heads), add("group", s_.heads / s_.kv_heads), add("head_dim", s_.head_dim), add("ffn", s_.ffn);
        r.dims.push_back({"vocab", round_up(s_.vocab, sizes_.vocab_multiple), s_.vocab});
        return r;
    }

    // A parameter's tensor in the block under construction; the first use declares it.
    TensorId param(Builder& b, const std::string& key, std::initializer_list<std::string_view> dims, const std::string& name,
                   ir::Init init) {
        bool known = false;
        for (const ir::Parameter& p : model_.params) known = known || p.key == key;
        if (!known) {
            ir::Parameter p{key, b.routine().block, name, Dtype::F32, {}, {}, dims.size() > 1, init};
            for (DimId d : b.dims(dims)) p.dims.push_back(b.routine().dims[d]);
            model_.params.push_back(std::move(p));
        }
        return b.port_tensor("params", PortKind::Params, Access::Read, key, b.dims(dims), key);
    }

    static TensorId input(Builder& b, const std::string& name) {
        return b.port_tensor(name, PortKind::Input, Access::Read, name, b.dims({"batch", "seq"}), name, Dtype::I32);
    }

    static void finish(Model& model, ir::Routine r, TensorId result, const std::string& port) {
        r.tensors[result].port = static_cast<int>(r.ports.size());
        r.tensors[result].name = port;
        r.ports.push_back({port, PortKind::Value, Access::Write, "", -1});
        model.routines.push_back(std::move(r));
    }

    TensorId norm(Builder& b, const std::string& name, TensorId x, TensorId w, const char* over) const {
        return b.op("rmsnorm", {x, w}, {{name, b.dims(x)}, {name + ".rstd", Builder::without(b.dims(x), b.routine().dim(over))}},
                    {{"eps", s_.norm_eps}, {"over", std::string(over)}})[0];
    }

    void embed() {
        ir::Routine r = start("embed", 1);
        Builder b(r);
        const TensorId ids = input(b, "ids");
        const double std = s_.tied ? 1 / std::sqrt(static_cast<double>(s_.dim)) : 1.0;
        const TensorId table =
            param(b, "tok_embeddings", {"vocab", "hidden"}, "model.embed_tokens.weight", {ir::InitKind::Normal, std, false});
        const TensorId y = b.op("gather", {table, ids}, {{"y", b.dims({"batch", "seq", "hidden"})}})[0];
        finish(model_, std::move(r), y, "y");
    }

    void layer() {
        ir::Routine r = start("layer", s_.layers);
        Builder b(r);
        const auto P = [&](const char* key, std::initializer_list<std::string_view> dims, const char* name, ir::Init init) {
            return param(b, key, dims, std::string("model.layers.{}.") + name + ".weight", init);
        };
        const ir::Init ones = {ir::InitKind::Ones, 0, false}, plain = {ir::InitKind::Normal, 0.02, false},
                       deep = {ir::InitKind::Normal, 0.02, true};
        const std::vector<DimId> hidden = b.dims({"batch", "seq", "hidden"}), ffn = b.dims({"batch", "seq", "ffn"});
        const std::vector<DimId> q_dims = b.dims({"batch", "seq", "kv_heads", "group", "head_dim"}),
                                 k_dims = b.dims({"batch", "seq", "kv_heads", "head_dim"});

        const TensorId x = b.port("x", PortKind::Value, Access::Read, hidden);
        const TensorId pos = input(b, "pos"), doc = input(b, "doc");
        const TensorId n1 = norm(b, "n1", x, P("attention_norm", {"hidden"}, "input_layernorm", ones), "hidden");
        TensorId q = b.einsum("q", q_dims, {n1, P("wq", {"kv_heads", "group", "head_dim", "hidden"}, "self_attn.q_proj", plain)});
        TensorId k = b.einsum("k", k_dims, {n1, P("wk", {"kv_heads", "head_dim", "hidden"}, "self_attn.k_proj", plain)});
        const TensorId v = b.einsum("v", k_dims, {n1, P("wv", {"kv_heads", "head_dim", "hidden"}, "self_attn.v_proj", plain)});
        if (s_.qk_norm) {
            q = norm(b, "qn", q, P("q_norm", {"head_dim"}, "self_attn.q_norm", ones), "head_dim");
            k = norm(b, "kn", k, P("k_norm", {"head_dim"}, "self_attn.k_norm", ones), "head_dim");
        }
        q = rope(b, "q_rot", q, pos);
        k = rope(b, "k_rot", k, pos);
        const TensorId k_all = as_keys(b, "k_all", k), v_all = as_keys(b, "v_all", v);
        const TensorId pos_all = as_keys(b, "pos_all", pos), doc_all = as_keys(b, "doc_all", doc);
        const TensorId o = b.op("attention", {q, k_all, v_all, pos, pos_all, doc, doc_all},
                                {{"o", q_dims}, {"lse", b.dims({"batch", "seq", "kv_heads", "group"})}},
                                {{"scale", 1 / std::sqrt(static_cast<double>(s_.head_dim))}})[0];
        const TensorId ao =
            b.einsum("ao", hidden, {o, P("wo", {"hidden", "kv_heads", "group", "head_dim"}, "self_attn.o_proj", deep)});
        const TensorId x1 = b.add("x1", {x, ao});
        const TensorId n2 = norm(b, "n2", x1, P("ffn_norm", {"hidden"}, "post_attention_layernorm", ones), "hidden");
        const TensorId gate = b.einsum("gate", ffn, {n2, P("w1", {"ffn", "hidden"}, "mlp.gate_proj", plain)});
        const TensorId up = b.einsum("up", ffn, {n2, P("w3", {"ffn", "hidden"}, "mlp.up_proj", deep)});
        const TensorId act = b.op("swiglu", {gate, up}, {{"act", ffn}})[0];
        const TensorId mlp = b.einsum("mlp", hidden, {act, P("w2", {"hidden", "ffn"}, "mlp.down_proj", deep)});
        const TensorId y = b.add("y", {x1, mlp});
        finish(model_, std::move(r), y, "y");
    }

    TensorId rope(Builder& b, const std::string& name, TensorId x, TensorId pos) const {
        ir::Attrs attrs = s_.rope;
        attrs["sign"] = int64_t{1};
        return b.op("rope", {x, pos}, {{name, b.dims(x)}}, attrs)[0];
    }

    static TensorId as_keys(Builder& b, const std::string& name, TensorId x) {  // seq -> kv_seq
        std::vector<DimId> dims = b.dims(x);
        dims[1] = b.routine().dim("kv_seq");
        return b.op("rename", {x}, {{name, dims, b.tensor(x).dtype}})[0];
    }

    void head() {
        ir::Routine r = start("head", 1);
        Builder b(r);
        const TensorId x = b.port("x", PortKind::Value, Access::Read, b.dims({"batch", "seq", "hidden"}));
        const TensorId n =
            norm(b, "n", x, param(b, "norm", {"hidden"}, "model.norm.weight", {ir::InitKind::Ones, 0, false}), "hidden");
        const double std = 1 / std::sqrt(static_cast<double>(s_.dim));
        const TensorId w = param(b, s_.tied ? "tok_embeddings" : "output", {"vocab", "hidden"}, "lm_head.weight",
                                 {ir::InitKind::Normal, std, false});
        const TensorId logits = b.einsum("logits", b.dims({"batch", "seq", "vocab"}), {n, w});
        finish(model_, std::move(r), logits, "logits");
    }

    Shape s_;
    Sizes sizes_;
    Model model_;
};

}  // namespace

ModelSpec llama3() {
    ModelSpec spec;
    spec.name = "llama3";
    spec.keys = {
        {"dim", int64_t{256}, "width of the residual stream"},
        {"n_layers", int64_t{6}, "number of transformer layers"},
        {"n_heads", int64_t{16}, "query heads"},
        {"n_kv_heads", int64_t{0}, "key and value heads; 0: as many as query heads"},
        {"head_dim", int64_t{0}, "width of a head; 0: dim / n_heads"},
        {"ffn_dim", int64_t{0}, "width of the feed-forward layer; 0: from ffn_dim_multiplier and multiple_of as Llama does"},
        {"ffn_dim_multiplier", 1.0, "factor on 8/3 dim when ffn_dim is 0"},
        {"multiple_of", int64_t{256}, "ffn_dim is rounded up to a multiple of this when it is 0"},
        {"vocab_size", int64_t{2048}, "size of the vocabulary; set by the tokenizer of the data where one is given"},
        {"norm_eps", 1e-5, "epsilon of every RMSNorm"},
        {"qk_norm", int64_t{0}, "1: RMSNorm on queries and keys of each head"},
        {"tie_embeddings", int64_t{0}, "1: the output projection is the embedding table"},
        {"rope_theta", 500000.0, "base of the rotary frequencies"},
        {"rope_scaling_factor", 8.0, "Llama 3.1's stretch of long rotary waves; 1: none"},
        {"rope_low_freq_factor", 1.0, "waves with fewer turns than this over the original context are stretched in full"},
        {"rope_high_freq_factor", 4.0, "waves with more turns than this are left alone"},
        {"rope_original_positions", int64_t{8192}, "the context that the frequencies were made for"},
    };
    spec.flavors = {
        {"debugmodel",
         {{"dim", int64_t{256}}, {"n_layers", int64_t{6}}, {"n_heads", int64_t{16}}, {"vocab_size", int64_t{2048}}}},
        {"8B",
         {{"dim", int64_t{4096}},
          {"n_layers", int64_t{32}},
          {"n_heads", int64_t{32}},
          {"n_kv_heads", int64_t{8}},
          {"ffn_dim_multiplier", 1.3},
          {"multiple_of", int64_t{1024}},
          {"vocab_size", int64_t{128256}}}},
        {"70B",
         {{"dim", int64_t{8192}},
          {"n_layers", int64_t{80}},
          {"n_heads", int64_t{64}},
          {"n_kv_heads", int64_t{8}},
          {"ffn_dim_multiplier", 1.3},
          {"multiple_of", int64_t{4096}},
          {"vocab_size", int64_t{128256}}}},
        {"405B",
         {{"dim", int64_t{16384}},
          {"n_layers", int64_t{126}},
          {"n_heads", int64_t{128}},
          {"n_kv_heads", int64_t{8}},
          {"ffn_dim_multiplier", 1.2},
          {"multiple_of", int64_t{4096}},
          {"vocab_size", int64_t{128256}}}},
    };
    spec.build = [](const ir::Attrs& shape, const Sizes& sizes) { return Llama(read(shape), sizes).build(); };
    return spec;
}

}  // namespace lockstep::models
