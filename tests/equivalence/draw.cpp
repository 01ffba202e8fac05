#include "tests/equivalence/draw.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/round.h"
#include "check/check.h"
#include "meaning/meaning.h"
#include "tests/base/from_environment.h"
#include "tests/base/plain.h"

namespace lockstep::testing {
namespace {

// Are products in float8?
bool converts(const compile::Recipe& recipe) { return compile::config_of(recipe).float8().has_value(); }

class Drawer {
public:
    Drawer(uint64_t seed, Dtype dtype, bool mixed) : random_(seed), seed_(seed), dtype_(dtype), mixed_(mixed) {
        set("debug.seed", static_cast<int64_t>(seed % 1000));
    }

    compile::Recipe run() {
        degrees();
        model();
        batch();
        context();
        pipeline();
        partition();
        quantization();
        optimizer();
        set("training.dtype", dtype_ == Dtype::F64 ? "float64" : "float32");
        if (mixed_) precision();
        execution();
        other_optimizer();
        set("parallelism.enable_async_tensor_parallel", chance(0.5));
        set("training.pack_products", chance(0.8));
        converter();
        narrow_moments();
        return recipe_;
    }

    // Everything but the model, the data and the global batch.
    compile::Recipe again(const compile::Recipe& recipe) {
        recipe_ = recipe;
        degrees();
        set_microbatch(one_of({1, 1, 2}));
        heads_ = std::get<int64_t>(recipe.model_shape().at("n_heads"));
        context();
        pipeline();
        for (const char* state : {"weights", "secondary_weights", "gradients", "optimizer"})
            set(fmt::format("partition.{}", state).c_str(), "");
        partition();
        execution();
        set("parallelism.enable_async_tensor_parallel", chance(0.5));
        const bool packs = chance(0.8);  // packed, quantized elements are of other blocks
        const bool keeps_packs = recipe_.text("partition.quantized_weights") == "int8" || converts(recipe_);
        if (!keeps_packs) set("training.pack_products", packs);
        if (recipe_.integer("quantize.scale_context_blocks") > 1) set("parallelism.context_parallel_load_balancer", "none");
        return recipe_;
    }

private:
    void execution() {
        set("training.fuse_loss", chance(0.6));
        set("training.loss_chunk_tokens", one_of({1, 3, 4, 8, 512}));
        recompute();
        set("parallelism.prefetch", one_of({0, 1, 1, 2}));
        set("runtime.threads_per_rank", 1);
        set("runtime.comm_thread", chance(0.4) ? "on" : "off");
        set("runtime.debug_fill", chance(0.3));
        set("validation.enable", (splitmix64(seed_) & 1) == 1);  // apart from the draws of everything else
    }
    // Draws that leave those of everything else as they are.
    uint64_t apart() { return apart_ = splitmix64(apart_ + 1); }
    int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }
    int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
    bool chance(double p) { return static_cast<double>(random_() >> 11) * 0x1p-53 < p; }
    template <class T>
    T one_of(std::initializer_list<T> list) {
        return *(list.begin() + below(static_cast<int64_t>(list.size())));
    }
    template <class T>
    T one_of(const std::vector<T>& list) {
        return list[static_cast<size_t>(below(static_cast<int64_t>(list.size())))];
    }

    void set(const char* key, int64_t v) { recipe_.set(key, std::to_string(v)); }
    void set(const char* key, int v) { set(key, int64_t{v}); }
    void set(const char* key, bool v) { recipe_.set(key, v ? "true" : "false"); }
    void set(const char* key, double v) { recipe_.set(key, compile::text_of(v)); }
    void set(const char* key, const std::string& v) { recipe_.set(key, v); }
    void set(const char* key, const char* v) { recipe_.set(key, v); }

    // The iteration of Newton and Schulz blows up what is rounding in float32 a hundred times: Muon is drawn in float64 only. It
    // is not drawn where few targets count, either: the gradient of queries that see one key is nothing but rounding, and Muon
    // divides by its norm. Short documents of a small batch have many such queries.
    void other_optimizer() {
        const std::string name = one_of<std::string>({"AdamW", "AdamW", "Adam", "SGD", "Muon", "Muon"});
        set("optimizer.name", name == "Muon" && (mixed_ || dtype_ != Dtype::F64) ? "AdamW" : name);
        if (recipe_.text("optimizer.name") == "Muon") count_more_targets();
        set("optimizer.momentum", one_of({0.0, 0.8, 0.95}));
        set("optimizer.nesterov", chance(0.5));
        set("optimizer.muon_adjust_lr_fn", one_of<std::string>({"match_rms_adamw", "original"}));
    }

    void count_more_targets() {
        if (recipe_.number("debug.synthetic_masked") > 0.5) set("debug.synthetic_masked", 0.0);
        if (recipe_.integer("training.global_batch_size") * recipe_.integer("training.seq_len") < 16)
            set("training.document_mask", false);
    }

    // Layouts differ by roundings of sums. Where a moment is rounded to bfloat16, such a difference decides only if it is as large
    // as the distance to the point where the rounding changes: in float64 about once in 10^12 elements, in float32 in 10^4, and
    // then by a part in 256. So they are drawn in float64 only. A gradient that is nothing but rounding decides more often: 0.9
    // of a moment lies between two values exactly where its last digits are odd multiples of 5.
    void narrow_moments() {
        const std::string name = recipe_.text("optimizer.name");
        if (dtype_ != Dtype::F64 || mixed_ || (name != "AdamW" && name != "Adam") || apart() % 2 != 0) return;
        set("optimizer.implementation", "fused_opt_states_bf16");
        count_more_targets();
    }

    void recompute() {
        const std::string mode = one_of<std::string>({"none", "none", "full", "selective", "selective", "memory_budget"});
        set("activation_checkpoint.mode", mode);
        set("activation_checkpoint.selective_ac_option", one_of<std::string>({"op", "op", "1", "2"}));
        set("activation_checkpoint.memory_budget", static_cast<double>(below(11)) / 10);
    }

    void degrees() {
        do {
            tp_ = one_of<int64_t>({1, 2, 2, 2, 3, 4, 4, 6});
            shard_ = one_of<int64_t>({1, 2, 2, 3, 4});
            replicate_ = one_of<int64_t>({1, 1, 1, 2, 2, 3});
            pp_ = one_of<int64_t>({1, 2, 2, 3, 4});
        } while (tp_ * shard_ * replicate_ * pp_ > 12);
        draw_context_ranks();
        set("parallelism.pipeline_parallel_degree", pp_);
        set("parallelism.tensor_parallel_degree", tp_);
        set("parallelism.data_parallel_shard_degree", shard_);
        set("parallelism.data_parallel_replicate_degree", replicate_);
        sequence_parallel_ = chance(0.6);
        set("parallelism.sequence_parallel", sequence_parallel_);
        set("parallelism.context_parallel_degree", cp_);
    }

    // Ranks that share sequences, and room for them among the others.
    void draw_context_ranks() {
        constexpr std::array kDegrees = {1, 1, 1, 2, 2, 3, 4, 4, 4};
        cp_ = kDegrees.at(apart() % kDegrees.size());
        std::array others = {&replicate_, &shard_, &pp_, &tp_};
        std::rotate(others.begin(), others.begin() + static_cast<long>(apart() % 4), others.end());
        for (int64_t* degree : others) {
            if (tp_ * shard_ * replicate_ * pp_ * cp_ > std::max<int64_t>(12, 4 * cp_)) *degree = 1;
        }
    }

    // How context ranks meet, and in which order they have a sequence.
    void context() {
        const bool head_tail = apart() % 2 == 0;
        set("parallelism.context_parallel_load_balancer", head_tail ? "headtail" : "none");
        const std::vector<std::string> methods = {"allgather", "alltoall", "alltoall", "ulysses", "ulysses", "ulysses"};
        std::string method = methods[apart() % methods.size()];
        if (method == "ulysses" && heads_ % (tp_ * cp_) != 0) method = "allgather";
        set("parallelism.context_parallel_rotate_method", method);
        const bool some = cp_ == 4 && heads_ % (tp_ * 2) == 0 && method != "ulysses" && apart() % 4 != 0;
        set("parallelism.context_parallel_head_degree", some ? 2 : 0);
    }

    // Under a pipeline this is the size of a microbatch, and local_batch_size says nothing where the global one is given.
    void set_microbatch(int64_t sequences) {
        set("training.local_batch_size", sequences);
        set("parallelism.pipeline_parallel_microbatch_size", sequences);
    }

    void pipeline() {
        set("parallelism.pipeline_parallel_schedule",
            one_of<std::string>(
                {"GPipe", "1F1B", "1F1B", "Interleaved1F1B", "LoopedBFS", "ZB-H1", "InterleavedZeroBubble", "ZBVZeroBubble"}));
        set("parallelism.fsdp_reshard_after_forward", one_of<std::string>({"default", "default", "always", "never"}));
        set("partition.reduce_gradients", one_of<std::string>({"default", "default", "step", "microbatch"}));
        const bool uneven = chance(0.3);
        set("parallelism.pipeline_parallel_first_stage_less_layers", uneven ? below(2) : -1);
        set("parallelism.pipeline_parallel_last_stage_less_layers", uneven ? below(2) : -1);
    }

    void model() {
        gpt2_ = chance(0.4);
        set("model.name", gpt2_ ? "gpt2" : "llama3");
        std::vector<int64_t> heads;  // of tensor-parallel ranks; most often also of context ranks
        for (int64_t h : {1, 2, 3, 4, 6, 8}) {
            if (h % tp_ == 0) heads.insert(heads.end(), h % (tp_ * cp_) == 0 ? 3 : 1, h);
        }
        const int64_t n = heads_ = one_of(heads);
        set("model.n_heads", n);
        set("model.head_dim", one_of({2, 4, 6}));
        set("model.dim", between(8, 24));
        set("model.n_layers", pp_ > 1 ? between(pp_ - 1, 2 * pp_) : one_of<int64_t>({1, 2, 2, 3}));
        set("model.ffn_dim", tp_ * one_of<int64_t>({1, 3, 5}));
        set("model.vocab_size", one_of({12, 13, 17, 24, 30}));
        set("model.tie_embeddings", chance(0.5) ? 1 : 0);
        if (gpt2_) gpt();
        else llama(n);
    }

    void gpt() {
        set("model.n_positions", between(12, 15));
        set("model.gelu_erf", chance(0.2) ? 1 : 0);
        set("model.dropout", one_of({0.0, 0.1, 0.3, 0.5}));
        for (const char* place : {"model.embd_pdrop", "model.attn_pdrop", "model.resid_pdrop"}) {
            if (chance(0.2)) set(place, one_of({0.0, 0.2}));
        }
    }

    void llama(int64_t heads) {
        std::vector<int64_t> kv_heads;
        for (int64_t k = 1; k <= heads; ++k) {
            if (heads % k == 0) kv_heads.push_back(k);
        }
        set("model.n_kv_heads", chance(0.3) ? 1 : one_of(kv_heads));
        set("model.qk_norm", chance(0.4) ? 1 : 0);
        key_bias_ = chance(0.4);
        set("model.qkv_bias", key_bias_ ? 1 : 0);
        set("model.sliding_window", chance(0.4) ? between(1, 6) : 0);
        set("model.rope_theta", 100.0);
        set("model.rope_scaling_factor", chance(0.5) ? 8.0 : 1.0);
        set("model.rope_original_positions", one_of({8, 16, 64}));
    }

    void batch() {
        int64_t seq = between(4, 12);
        if (sequence_parallel_) seq = std::max(tp_, seq / tp_ * tp_);
        if (cp_ > 1) {  // two pieces a rank, of whole shares of tensor-parallel ranks
            const int64_t whole = std::lcm(2 * cp_, sequence_parallel_ ? cp_ * tp_ : 1);
            seq = std::max(whole, seq / whole * whole);
        }
        if (gpt2_ && seq > 12) set("model.n_positions", seq);
        const int64_t local = one_of({1, 1, 2}), whole = local * shard_ * replicate_,
                      microbatches = pp_ > 1 ? one_of<int64_t>({1, 2, 3, pp_ - 1, pp_, 2 * pp_}) : one_of<int64_t>({1, 1, 2, 3});
        const int64_t missing = whole > 1 && chance(0.4) ? between(1, whole - 1) : 0;
        set("training.seq_len", seq);
        set_microbatch(local);
        set("training.global_batch_size", whole * microbatches - missing);
        set("debug.synthetic_masked", one_of({0.0, 0.0, 0.3, 0.9}));  // 0.9: ranks and microbatches without any target
        set("training.document_mask", chance(0.4));
    }

    // Products in float8 are of matrices whose sides are multiples of 16. Which tokens share a scale is the same in all layouts:
    // in head-tail order those of a context rank are no piece of the sequence, and one block in two pieces is.
    void converter() {
        const bool always = from_environment("LOCKSTEP_FLOAT8", 0) != 0;
        if (dtype_ != Dtype::F64 || mixed_ || (apart() % 4 != 0 && !always)) return;
        const bool is_plain = recipe_.text("parallelism.context_parallel_load_balancer") == "none";
        const int64_t pieces = std::lcm(cp_ * tp_, is_plain || cp_ == 1 ? 1 : 2 * cp_);
        bool small = apart() % 2 == 0;
        int64_t block = in_blocks(pieces, small, always);
        if (block == 0) {
            constexpr std::array kRecipes = {"tensorwise", "rowwise", "rowwise_with_gw_hp"};
            set("model.converters", "quantize.linear.float8");
            const std::string recipe = kRecipes.at(apart() % kRecipes.size());
            set("quantize.linear.float8.recipe_name", recipe);
            const bool gathers = recipe == "tensorwise" && apart() % 2 == 0;
            set("quantize.linear.float8.enable_fsdp_float8_all_gather", gathers ? "true" : "false");
            block = 16;
        }
        set("model.dim", block * (small ? 1 : 2));
        set("model.head_dim", attention_in_blocks_ ? block : std::min<int64_t>(block, 32));
        set("model.ffn_dim", block * tp_);
        const int64_t sequences = recipe_.integer("training.local_batch_size");
        set("quantize.scale_sequences", apart() % 2 == 0 ? 1 : sequences);
        std::vector<int64_t> blocks = {1};
        if (is_plain) blocks.push_back(cp_);
        if (recipe_.integer("training.seq_len") % pieces == 0) blocks.push_back(pieces);
        set("quantize.scale_context_blocks", blocks[apart() % blocks.size()]);
    }

    // Blocks of tokens are whole on a rank, so that sequences get longer. Of how many a scale is, or 0: it would take too long.
    int64_t in_blocks(int64_t pieces, bool& small, bool patient) {
        const uint64_t recipe = apart() % 6;
        const int64_t block = recipe < 2 ? 32 : 128;
        if (patient && block == 128) small = true;
        const int64_t whole = patient ? block * pieces : std::lcm(recipe_.integer("training.seq_len"), block * pieces);
        const bool is_long = whole * recipe_.integer("training.global_batch_size") > (patient ? 512 : block == 32 ? 768 : 256);
        if (recipe > 2 || is_long || (block == 128 && !small)) return 0;
        set("training.seq_len", whole);
        if (gpt2_) set("model.n_positions", whole);
        if (block == 128) {
            set("model.converters", "quantize.linear.float8");
            set("quantize.linear.float8.recipe_name", "blockwise");
            attention_in_blocks_ = patient && heads_ <= 2 && apart() % 2 == 0;
            set("quantize.linear.float8.filter_fqns", attention_in_blocks_ ? "feed_forward" : "attention");
        } else {
            set("model.converters", "quantize.linear.mx");
            set("quantize.linear.mx.recipe_name", recipe == 0 ? "mxfp8_cublas" : "mxfp8_cublas_rceil");
        }
        return block;
    }

    // Blocks of int8 are those of the parameters on one rank where no other tensor-parallel rank has a part of them. What is
    // rounded to a narrow type may differ by a rounding, which quantization makes larger.
    void quantization() {
        const std::set<std::string> splits = {"zero3", "default", "mics", "three_level"};
        if (tp_ > 1 || mixed_ || dtype_ != Dtype::F64 || !splits.contains(recipe_.text("partition.preset"))) return;
        if (recipe_.text("partition.weights").empty() && chance(0.6)) set("partition.quantized_weights", "int8");
    }

    // Over which a second copy of weights can be split that are split over n; n: there is none.
    static std::vector<int64_t> divisors(int64_t n) {
        std::vector<int64_t> out;
        for (int64_t d = 2; d < n; ++d) {
            if (n % d == 0) out.push_back(d);
        }
        if (out.empty()) out.push_back(n);
        return out;
    }

    // Data ranks over which a state can be split that is split over at least `from`.
    std::vector<int64_t> legal_splits(int64_t from) const {
        std::vector<int64_t> legal;
        for (int64_t n = from; n <= cp_ * shard_ * replicate_; n += from) {
            int64_t left = n;  // of the ranks inside the axis
            bool fits = true;
            for (const int64_t axis : {cp_, shard_, replicate_}) {
                if (left <= axis) {
                    fits = fits && axis % left == 0;
                    left = 1;
                } else {
                    fits = fits && left % axis == 0;
                    left /= axis;
                }
            }
            if (fits && left == 1) legal.push_back(n);
        }
        return legal;
    }

    // A preset, or three splits of one's own in ascending order.
    void partition() {
        const int64_t package = one_of(legal_splits(1)), node = one_of(legal_splits(package));
        set("cluster.ranks_per_package", package * tp_), set("cluster.ranks_per_node", node * tp_);
        set("partition.preset",
            one_of({"none", "zero1", "zero1", "zero2", "zero2", "zero3", "default", "mics", "three_level", "three_level"}));
        if (chance(0.3)) {
            set("partition.preset", "zero3");
            set("partition.secondary_weights", one_of(divisors(cp_ * shard_)));
            return;
        }
        if (chance(0.6)) return;
        int64_t split = 1;
        for (const char* key : {"partition.weights", "partition.gradients", "partition.optimizer"}) {
            split = one_of(legal_splits(split));
            set(key, split == cp_ * shard_ && chance(0.3) ? "shard"
                     : split == node && chance(0.3)       ? "node"
                                                          : std::to_string(split));
        }
    }

    void optimizer() {
        set("optimizer.lr", 5e-3);
        // In float32 a gradient below eps is mostly rounding; a larger eps keeps it from being blown up to a whole step.
        // The gradient of GPT-2's key biases is nothing else: a softmax does not see what is added to a whole row.
        const double small = one_of({1e-8, 1e-5});
        set("optimizer.eps", dtype_ != Dtype::F64 || mixed_ ? 1e-3 : gpt2_ || key_bias_ ? 1e-5 : small);
        set("lr_scheduler.warmup_steps", 0);
        set("training.steps", 5);
        set("training.max_norm", one_of({0.0, 0.3, 0.5, 0.5, 1.0}));
        if (dtype_ == Dtype::F64) set("training.loss_scale", one_of({0.0, 0.0, 0.0, 24.0}));
    }

    // Storage one type below: what is true of bfloat16 under float32 shows more sharply with float32 under float64.
    void precision() {
        const std::string narrow = dtype_ == Dtype::F64 ? "float32" : one_of({"bfloat16", "bfloat16", "float16"});
        const bool half = narrow == "float16";
        set("training.mixed_precision_param", narrow);
        set("training.fp32_residual_connection", chance(0.5));
        if (half) {  // windows that end, and room for the gradients of every layout
            set("training.initial_loss_scale", 1024.0);
            set("training.loss_scale_window", one_of({1, 2, 2000}));
        }
        if (dtype_ != Dtype::F64 && chance(0.3)) set("training.mixed_precision_reduce", narrow);
        if (dtype_ != Dtype::F64 && !half && chance(0.2)) set("training.dtype", "bfloat16");
        else if (chance(0.5)) set("training.mixed_precision_norm", dtype_ == Dtype::F64 ? "float64" : "float32");
        const char* const wide = dtype_ == Dtype::F64 ? "float64" : "float32";
        const std::array<std::string, 3> logits = {"", narrow, wide};
        set("training.logits", logits.at(splitmix64(~seed_ + 1) % 3));
        constexpr std::array kWeights = {"auto", "kept", "cast"};
        set("training.mixed_precision_weights", kWeights.at(splitmix64(~seed_) % 3));  // apart from the draws of everything else
    }

    std::mt19937_64 random_;
    uint64_t seed_, apart_ = splitmix64(seed_ + 1);
    Dtype dtype_;
    bool mixed_;
    compile::Recipe recipe_ = plain();
    int64_t tp_ = 1, shard_ = 1, replicate_ = 1, pp_ = 1, cp_ = 1, heads_ = 1;
    bool sequence_parallel_ = false, gpt2_ = false, key_bias_ = false, attention_in_blocks_ = false;
};

}  // namespace

Backend backend_of(Dtype dtype) { return dtype == Dtype::F64 ? Backend::Reference : Backend::Cpu; }

std::optional<Draw> draw(uint64_t seed, Dtype dtype, bool mixed, const std::function<bool(const compile::Recipe&)>& wanted) {
    Draw d{seed, Drawer(seed, dtype, mixed).run(), {}};
    try {
        if (wanted && !wanted(d.recipe)) return std::nullopt;
        d.compiled = compile_recipe(d.recipe, backend_of(dtype));
    } catch (const UserError&) {
        return std::nullopt;
    } catch (const InternalError& e) {
        throw InternalError(fmt::format("seed {}: {}\n{}", seed, e.what(), d.recipe.toml()));
    }
    if (d.compiled.layout.ranks == 1) return std::nullopt;
    return d;
}

bool rings_beside_others(const compile::Recipe& r) {
    const bool rings = r.integer("parallelism.context_parallel_degree") > 1 &&
                       r.text("parallelism.context_parallel_rotate_method") == "alltoall";
    const bool is_async = r.flag("parallelism.enable_async_tensor_parallel") && r.flag("parallelism.sequence_parallel") &&
                          r.integer("parallelism.tensor_parallel_degree") > 1;
    return rings && (is_async || r.integer("parallelism.pipeline_parallel_degree") > 1);
}

Draw other_layout(const compile::Recipe& recipe, uint64_t seed, Dtype dtype) {
    for (uint64_t next = seed;; next += 1'000'003) {
        Draw d{next, Drawer(next, dtype, false).again(recipe), {}};
        const bool quantizes = d.recipe.text("partition.quantized_weights") == "int8";
        if (quantizes && d.recipe.integer("parallelism.tensor_parallel_degree") > 1) continue;
        try {
            d.compiled = compile_recipe(d.recipe, backend_of(dtype));
            return d;
        } catch (const UserError&) {  // this model cannot be split so
        }
    }
}

compile::Recipe one_rank(const compile::Recipe& recipe) {
    compile::Recipe one = recipe;
    one.set("training.local_batch_size", std::to_string(recipe.integer("training.global_batch_size")));
    if (converts(recipe)) {  // whole groups of sequences that share a scale
        one.set("training.local_batch_size", std::to_string(round_up(recipe.integer("training.global_batch_size"),
                                                                     recipe.integer("quantize.scale_sequences"))));
    }
    for (const char* axis :
         {"data_parallel_replicate", "data_parallel_shard", "tensor_parallel", "pipeline_parallel", "context_parallel"}) {
        one.set(fmt::format("parallelism.{}_degree", axis), "1");
    }
    one.set("parallelism.prefetch", "0");
    one.set("parallelism.enable_async_tensor_parallel", "false");
    one.set("parallelism.fsdp_reshard_after_forward", "default");
    one.set("partition.reduce_gradients", "default");
    one.set("partition.preset", "none");
    one.set("cluster.ranks_per_package", "0");
    one.set("cluster.ranks_per_node", "0");
    for (const char* state : {"weights", "secondary_weights", "gradients", "optimizer"})
        one.set(fmt::format("partition.{}", state), "none");
    one.set("partition.quantized_gradients", "none");
    // Blocks of quantized elements begin elsewhere where padding stands between the weights of gate and up.
    if (recipe.text("partition.quantized_weights") == "int8") one.set("partition.weights", "shard");
    else if (!converts(recipe)) one.set("training.pack_products", "false");  // packed weights share a scale
    one.set("training.fuse_loss", "false");
    if (!converts(recipe)) one.set("training.loss_scale", "0");  // a scale of gradients in float8 is rounded to float32
    one.set("training.mixed_precision_weights", "cast");
    one.set("activation_checkpoint.mode", "none");
    one.set("runtime.comm_thread", "off");
    one.set("runtime.debug_fill", "false");
    return one;
}

std::string refusal(const compile::Compiled& compiled) {
    const auto refused = check::prove(compiled.of_ranks());
    return refused ? refused->reason + ": " + refused->message : "";
}

std::string refusal(const compile::Recipe& recipe, const compile::Compiled& compiled) {
    if (std::string wrong = refusal(compiled); !wrong.empty()) return wrong;
    const std::string wrong = meaning::wrong_meaning(compiled.of_ranks(), compile::config_of(recipe));
    return wrong.empty() ? "" : "meaning: " + wrong;
}

double tolerance(const compile::Recipe& recipe, const Outcome& one, Dtype dtype) {
    const int steps = static_cast<int>(one.losses.size());
    if (!recipe.text("training.mixed_precision_param").empty()) {  // as far from one rank as that is from exact arithmetic
        compile::Recipe exact = one_rank(recipe);
        exact.set("training.dtype", "float64");
        exact.set("training.mixed_precision_param", "");
        exact.set("training.mixed_precision_norm", "");
        exact.set("training.logits", "");
        exact.set("training.mixed_precision_reduce", "float32");  // one rank reduces nothing
        compile::Recipe other = one_rank(recipe);
        other.set("training.local_batch_size", "1");  // other partial sums are rounded
        const double rounding = std::max(difference(run(exact, Backend::Reference, steps), one),
                                         difference(run(other, backend_of(dtype), steps), one));
        return 8 * std::max(rounding, 0x1p-23);
    }
    if (dtype == Dtype::F64) return 1e-10;
    const auto differs_with = [&](const char* key, const char* value) {
        compile::Recipe other = one_rank(recipe);
        other.set(key, value);
        return difference(one, run(other, Backend::Cpu, steps));
    };
    const double rounding =
        std::max({differs_with("runtime.threads_per_rank", "2"), differs_with("training.local_batch_size", "1"),
                  differs_with("training.fuse_loss", "true"), differs_with("training.pack_products", "true"),
                  difference(one, run(one_rank(recipe), Backend::Reference, steps))});
    return 4 * std::max(rounding, 0x1p-23);
}

}  // namespace lockstep::testing
