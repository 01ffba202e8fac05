// The Llama family: pre-norm blocks of grouped-query attention with rotary positions and SwiGLU, RMSNorm throughout. Llama 3
// and 3.1 (arXiv 2407.21783), and by keys what its relatives add: biases of queries, keys and values (Qwen2.5, arXiv
// 2412.15115), norms of queries and keys (Qwen3, arXiv 2505.09388), a sliding window (Mistral, arXiv 2310.06825).
// Dimensions of the flavors are those of the published configurations (Llama's: TorchTitan's); parameter names and shapes are
// those of Hugging Face's LlamaForCausalLM and its relatives, heads as [kv_heads, group, head_dim].
#include <fmt/format.h>

#include <cmath>

#include "base/round.h"
#include "models/blocks.h"
#include "models/layers.h"

namespace lockstep::models {
namespace {

using ir::Access;
using ir::DimId;
using ir::PortKind;
using ir::PortRole;
using ir::TensorId;
using ops::Builder;

struct LlamaShape : CommonShape {
    int64_t kv_heads, ffn;
    bool qk_norm, qkv_bias;
    int64_t window;
    ir::Attrs rope;
};

// TorchTitan's rule: two thirds of 4 dim, times the multiplier, rounded up.
int64_t ffn_size(int64_t dim, double multiplier, int64_t multiple_of) {
    const int64_t two_thirds = 2 * 4 * dim / 3;
    const auto scaled = static_cast<int64_t>(multiplier * static_cast<double>(two_thirds));
    return round_up(scaled, multiple_of);
}

LlamaShape read(const ir::Attrs& a) {
    LlamaShape s{read_common(a), 0, 0, false, false, 0, {}};
    s.kv_heads = integer(a, "n_kv_heads") > 0 ? integer(a, "n_kv_heads") : s.heads;
    if (s.heads % s.kv_heads != 0) {
        refuse(
            "model.kv_heads", "n_kv_heads",
            fmt::format("model.n_heads = {} is not a multiple of model.n_kv_heads = {}: choose a divisor", s.heads, s.kv_heads));
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
    s.qk_norm = integer(a, "qk_norm") != 0;
    s.qkv_bias = integer(a, "qkv_bias") != 0;
    s.window = integer(a, "sliding_window");
    if (number(a, "rope_high_freq_factor") <= number(a, "rope_low_freq_factor") && number(a, "rope_scaling_factor") != 1)
        refuse("model.rope", "rope_high_freq_factor",
               fmt::format("model.rope_high_freq_factor = {}: must be above model.rope_low_freq_factor = {}",
                           number(a, "rope_high_freq_factor"), number(a, "rope_low_freq_factor")));
    s.rope = {{"theta", number(a, "rope_theta")},
              {"factor", number(a, "rope_scaling_factor")},
              {"low_freq_factor", number(a, "rope_low_freq_factor")},
              {"high_freq_factor", number(a, "rope_high_freq_factor")},
              {"original_positions", static_cast<double>(integer(a, "rope_original_positions"))}};
    return s;
}

std::vector<ir::Dim> dims_of_llama(const LlamaShape& s, int64_t seq) {
    std::vector<ir::Dim> dims;
    const auto add = [&](ir::DimRole role, int64_t size) { dims.push_back({std::string(name_of(role)), size, size, role}); };
    using enum ir::DimRole;
    add(Batch, 1), add(Seq, seq), add(KvSeq, seq), add(Hidden, s.dim);
    add(KvHeads, s.kv_heads), add(Group, s.heads / s.kv_heads), add(HeadDim, s.head_dim), add(Ffn, s.ffn);
    add(Vocab, s.vocab);
    return dims;
}

class Llama {
public:
    Llama(const LlamaShape& shape, int64_t seq) : s_(shape), blocks_(dims_of_llama(shape, seq)) {}

    Model build() {
        embed();
        layer();
        head();
        return blocks_.take();
    }

private:
    TensorId norm(Builder& b, const std::string& name, TensorId x, TensorId w, const char* over = "hidden") const {
        return rms_norm(b, name, x, w, over, s_.norm_eps);
    }

    void embed() {
        ir::Routine r = blocks_.start("embed", 1);
        Builder b(r);
        const TensorId ids = input(b, PortRole::Ids);
        const double std = s_.tied ? 1 / std::sqrt(static_cast<double>(s_.dim)) : 1.0;
        const TensorId table = blocks_.param(b, "tok_embeddings", {"vocab", "hidden"}, "model.embed_tokens.weight", normal(std));
        const TensorId y = b.op("gather", {table, ids}, {{"y", b.dims({"batch", "seq", "hidden"})}})[0];
        blocks_.finish(b, y, PortRole::Y);
    }

    TensorId param(Builder& b, const std::string& key, const std::vector<std::string_view>& dims, const std::string& name,
                   const Blocks::Init& init) {
        return blocks_.param(b, key, dims, "model.layers.{}." + name, init);
    }

    void layer() {
        ir::Routine r = blocks_.start("layer", s_.layers);
        Builder b(r);
        const std::vector<DimId> hidden = b.dims({"batch", "seq", "hidden"});
        const TensorId x = b.port(PortRole::X, PortKind::Value, Access::Read, hidden);
        const TensorId n1 = norm(b, "n1", x, param(b, "attention_norm", {"hidden"}, "input_layernorm.weight", ones()));
        const TensorId o = attention(b, n1);
        const TensorId wo = param(b, "wo", {"hidden", "kv_heads", "group", "head_dim"}, "self_attn.o_proj.weight", kDeep);
        const TensorId x1 = b.add("x1", {x, b.einsum("ao", hidden, {o, wo})});
        const TensorId n2 = norm(b, "n2", x1, param(b, "ffn_norm", {"hidden"}, "post_attention_layernorm.weight", ones()));
        SwigluWeights w{};
        w.gate = param(b, "w1", {"ffn", "hidden"}, "mlp.gate_proj.weight", kPlain);
        w.up = param(b, "w3", {"ffn", "hidden"}, "mlp.up_proj.weight", kDeep);
        w.down = param(b, "w2", {"hidden", "ffn"}, "mlp.down_proj.weight", kDeep);
        blocks_.finish(b, b.add("y", {x1, swiglu(b, "mlp", n2, w)}), PortRole::Y);
    }

    TensorId attention(Builder& b, TensorId n1) {
        const TensorId pos = input(b, PortRole::Positions), doc = input(b, PortRole::Documents);
        TensorId q = head_rows(b, "q", n1, {"kv_heads", "group", "head_dim"});
        TensorId k = head_rows(b, "k", n1, {"kv_heads", "head_dim"});
        const TensorId v = head_rows(b, "v", n1, {"kv_heads", "head_dim"});
        if (s_.qk_norm) {
            q = norm(b, "qn", q, param(b, "q_norm", {"head_dim"}, "self_attn.q_norm.weight", ones()), "head_dim");
            k = norm(b, "kn", k, param(b, "k_norm", {"head_dim"}, "self_attn.k_norm.weight", ones()), "head_dim");
        }
        q = rope(b, "q_rot", q, pos, s_.rope);
        k = rope(b, "k_rot", k, pos, s_.rope);
        return attend(b, {q, k, v, pos, doc, s_.head_dim, s_.window});
    }

    // Queries, keys or values.
    TensorId head_rows(Builder& b, const std::string& name, TensorId n1, const std::vector<std::string_view>& heads) {
        std::vector<std::string_view> matrix = heads;
        matrix.push_back("hidden");
        const std::string module = "self_attn." + name + "_proj.";
        const TensorId w = param(b, "w" + name, matrix, module + "weight", kPlain);
        if (!s_.qkv_bias) return project(b, name, n1, heads, w);
        return project(b, name, n1, heads, w, param(b, "b" + name, heads, module + "bias", zeros()));
    }

    void head() {
        ir::Routine r = blocks_.start("head", 1);
        Builder b(r);
        const TensorId x = b.port(PortRole::X, PortKind::Value, Access::Read, b.dims({"batch", "seq", "hidden"}));
        const TensorId n = norm(b, "n", x, blocks_.param(b, "norm", {"hidden"}, "model.norm.weight", ones()));
        const double std = 1 / std::sqrt(static_cast<double>(s_.dim));
        const TensorId w =
            blocks_.param(b, s_.tied ? "tok_embeddings" : "output", {"vocab", "hidden"}, "lm_head.weight", normal(std));
        blocks_.finish(b, b.einsum("logits", b.dims({"batch", "seq", "vocab"}), {n, w}), PortRole::Logits);
    }

    const Blocks::Init kPlain = normal(0.02), kDeep = normal(0.02, true);
    LlamaShape s_;
    Blocks blocks_;
};

struct Numbers {
    int64_t dim, n_layers, n_heads, n_kv_heads, head_dim, ffn_dim, vocab_size;
};

// A flavor of another family: its numbers, no stretch of the rotary waves, and what it adds.
ir::Attrs relative(const Numbers& n, double norm_eps, double rope_theta, ir::Attrs more) {
    more.insert({{"dim", n.dim},
                 {"n_layers", n.n_layers},
                 {"n_heads", n.n_heads},
                 {"n_kv_heads", n.n_kv_heads},
                 {"head_dim", n.head_dim},
                 {"ffn_dim", n.ffn_dim},
                 {"vocab_size", n.vocab_size},
                 {"norm_eps", norm_eps},
                 {"rope_theta", rope_theta},
                 {"rope_scaling_factor", 1.0}});
    return more;
}

}  // namespace

ModelSpec llama3() {
    ModelSpec spec;
    spec.name = "llama3";
    spec.keys = common_keys({256, 6, 16, 0, 2048, 1e-5, false});
    const ModelKey own[] = {
        {"n_kv_heads", int64_t{0}, "key and value heads; 0: as many as query heads", from_to(0, kLargest)},
        {"ffn_dim", int64_t{0}, "width of the feed-forward layer; 0: from ffn_dim_multiplier and multiple_of as Llama does",
         from_to(0, kLargest)},
        {"ffn_dim_multiplier", 1.0, "factor on 8/3 dim when ffn_dim is 0", above_to(0, 1000)},
        {"multiple_of", int64_t{256}, "ffn_dim is rounded up to a multiple of this when it is 0", from_to(1, kLargest)},
        {"qk_norm", int64_t{0}, "1: RMSNorm on queries and keys of each head (Qwen3)", from_to(0, 1)},
        {"qkv_bias", int64_t{0}, "1: biases on queries, keys and values (Qwen2.5)", from_to(0, 1)},
        {"sliding_window", int64_t{0}, "a query sees itself and the sliding_window - 1 positions before it (Mistral); 0: all",
         from_to(0, kLargest)},
        {"rope_theta", 500000.0, "base of the rotary frequencies", above_to(0, 1e12)},
        {"rope_scaling_factor", 8.0, "Llama 3.1's stretch of long rotary waves; 1: none", above_to(0, 1e6)},
        {"rope_low_freq_factor", 1.0, "waves with fewer turns than this over the original context are stretched in full",
         above_to(0, 1e6)},
        {"rope_high_freq_factor", 4.0, "waves with more turns than this are left alone", above_to(0, 1e6)},
        {"rope_original_positions", int64_t{8192}, "the context that the frequencies were made for", from_to(1, kLargest)},
    };
    spec.keys.insert(spec.keys.end(), std::begin(own), std::end(own));
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
        {"mistral-7B", relative({4096, 32, 32, 8, 128, 14336, 32000}, 1e-5, 10000.0, {{"sliding_window", int64_t{4096}}})},
        {"qwen2.5-0.5B",
         relative({896, 24, 14, 2, 64, 4864, 151936}, 1e-6, 1e6, {{"qkv_bias", int64_t{1}}, {"tie_embeddings", int64_t{1}}})},
        {"qwen2.5-7B", relative({3584, 28, 28, 4, 128, 18944, 152064}, 1e-6, 1e6, {{"qkv_bias", int64_t{1}}})},
        {"qwen3-0.6B",
         relative({1024, 28, 16, 8, 128, 3072, 151936}, 1e-6, 1e6, {{"qk_norm", int64_t{1}}, {"tie_embeddings", int64_t{1}}})},
    };
    spec.dims = [](const ir::Attrs& shape, int64_t seq) { return dims_of_llama(read(shape), seq); };
    spec.build = [](const ir::Attrs& shape, int64_t seq) { return Llama(read(shape), seq).build(); };
    return spec;
}

// Under torchtitan's name, with its flavors.
ModelSpec qwen3() {
    ModelSpec spec = llama3();
    spec.name = "qwen3";
    spec.alias_of = "llama3";
    const ir::Attrs defaults = relative({1024, 28, 16, 8, 128, 3072, 151936}, 1e-6, 1e6, {{"qk_norm", int64_t{1}}});
    for (ModelKey& k : spec.keys) {
        if (const auto it = defaults.find(k.name); it != defaults.end()) k.default_value = it->second;
    }
    const auto flavor = [](const char* name, const Numbers& n, int64_t tied) {
        return Flavor{name, relative(n, 1e-6, 1e6, {{"qk_norm", int64_t{1}}, {"tie_embeddings", tied}})};
    };
    spec.flavors = {
        flavor("debugmodel", {256, 8, 16, 8, 128, 3072, 2048}, 1), flavor("0.6B", {1024, 28, 16, 8, 128, 3072, 151936}, 1),
        flavor("1.7B", {2048, 28, 16, 8, 128, 6144, 151936}, 1),   flavor("4B", {2560, 36, 32, 8, 128, 9728, 151936}, 1),
        flavor("8B", {4096, 36, 32, 8, 128, 12288, 151936}, 0),    flavor("14B", {5120, 40, 40, 8, 128, 17408, 151936}, 0),
        flavor("32B", {5120, 64, 64, 8, 128, 25600, 151936}, 0)};
    return spec;
}

}  // namespace lockstep::models
