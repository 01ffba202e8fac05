// The model of a Megatron-LM run. Lockstep has two of Megatron-LM's GPTs: the one of its defaults (GPT-2's layer) and the one
// that Llama's arguments make. A mixture of both is neither, and is refused.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/round.h"
#include "interop/megatron_job.h"

namespace lockstep::interop {
namespace {

// What tells the two apart. `said` is how the arguments or Megatron-LM's defaults put it.
struct Feature {
    std::string said;
    bool is_llama;
    const char *llama, *gpt;  // how each puts it
};

class Model {
public:
    explicit Model(MegatronJob& job) : j_(job) {}

    void read() {
        layers_ = j_.required({"num-layers"});
        dim_ = j_.required({"hidden-size"});
        heads_ = j_.required({"num-attention-heads"});
        read_features();
        if (j_.args.find({"position-embedding-type"})) check_position_type();
        for (const auto& [name, key, value] : {std::tuple{"num-layers", "model.n_layers", layers_},
                                               {"hidden-size", "model.dim", dim_},
                                               {"num-attention-heads", "model.n_heads", heads_}})
            j_.map(*j_.args.find({name}), key, value);
        j_.map_integer({"kv-channels"}, "model.head_dim");
        j_.map_number({"norm-epsilon", "layernorm-epsilon"}, "model.norm_eps", 1e-5);
        read_width();
        read_vocabulary();
        read_ties();
        is_llama_ ? read_llama() : read_gpt();
    }

private:
    void read_features() {
        const Argument* norm = j_.take({"normalization"});
        const std::string norm_name = norm ? lower(j_.args.text(*norm)) : "layernorm";
        const Argument* swiglu = j_.take({"swiglu"});
        if (swiglu) j_.args.require_no_value(*swiglu);
        const Argument* rope = j_.take({"use-rotary-position-embeddings", "use-llama2-rotary-position-embeddings"});
        if (rope) j_.args.require_no_value(*rope);
        const Argument* positions = j_.take({"position-embedding-type"});
        const std::string type = positions ? j_.args.text(*positions) : "";
        const bool rotary = rope || type == "rope" || type == "rotary";
        if (const Argument* none = rotary ? j_.take({"no-position-embedding"}) : nullptr)
            j_.no_effect(*none, "positions are only rotary");
        const Argument* no_bias = j_.take({"disable-bias-linear"});
        if (no_bias) j_.args.require_no_value(*no_bias);
        const std::vector<Feature> features = {
            {norm ? norm->text() : "--normalization LayerNorm by default", norm_name == "rmsnorm", "--normalization RMSNorm",
             "--normalization LayerNorm"},
            {swiglu ? "--swiglu" : "no --swiglu", swiglu != nullptr, "--swiglu", "no --swiglu"},
            {rotary ? "rotary positions" : "learned positions by default", rotary, "--position-embedding-type rope",
             "--position-embedding-type learned_absolute"},
            {no_bias ? "--disable-bias-linear" : "no --disable-bias-linear", no_bias != nullptr, "--disable-bias-linear",
             "no --disable-bias-linear"},
        };
        size_t llama = 0;
        for (const Feature& f : features) llama += f.is_llama;
        is_llama_ = llama > 2;
        std::vector<std::string> said, other;
        for (const Feature& f : features) {
            said.push_back(f.said);
            if (f.is_llama != is_llama_) other.push_back(fmt::format("{} (here {})", is_llama_ ? f.llama : f.gpt, f.said));
        }
        if (!other.empty())
            j_.refusals.add(
                fmt::format("{}", fmt::join(said, ", ")), j_.args.origin(),
                fmt::format("is neither Llama's layer (model.name = \"llama3\") nor GPT-2's (\"gpt2\"), which are all that "
                            "Lockstep has. It would be {} with {}",
                            is_llama_ ? "Llama's" : "GPT-2's", fmt::join(other, " and ")));
        const std::string name = is_llama_ ? "llama3" : "gpt2";
        j_.reading.map(fmt::format("{}", fmt::join(said, ", ")), j_.args.origin(), "model.name", name);
    }

    static std::string lower(std::string text) {
        for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        return text;
    }

    void check_position_type() {
        const Argument& a = *j_.args.find({"position-embedding-type"});
        const std::string type = j_.args.text(a);
        if (type != "rope" && type != "learned_absolute" && type != "rotary")
            j_.refuse(a, "only rope and learned_absolute are known here");
    }

    void read_width() {
        if (const Argument* a = j_.take({"ffn-hidden-size"})) return j_.map(*a, "model.ffn_dim", j_.args.integer(*a));
        // Megatron-LM's rule: 4 hidden, or with SwiGLU two thirds of that, rounded down to a multiple of 64.
        constexpr int64_t kMost = int64_t{1} << 40;
        const int64_t whole = 4 * std::min(dim_, kMost);
        const int64_t width = is_llama_ ? whole * 2 / 3 / 64 * 64 : whole;
        j_.reading.assume(fmt::format("--ffn-hidden-size {}", width), "model.ffn_dim", width);
    }

    void read_vocabulary() {
        const int64_t multiple = j_.integer({"make-vocab-size-divisible-by"}, 128);
        const int64_t tensor = j_.integer({"tensor-model-parallel-size", "model-parallel-size"}, 1);
        if (const Argument* a = j_.take({"padded-vocab-size", "pad-vocab-size-to"})) {
            j_.take({"vocab-size"});
            return j_.map(*a, "model.vocab_size", j_.args.integer(*a));
        }
        const Argument* size = j_.take({"vocab-size"});
        const Argument* tokenizer = j_.take({"tokenizer-type"});
        const std::string type = tokenizer ? j_.args.text(*tokenizer) : "";
        constexpr int64_t kMost = int64_t{1} << 40, kGpt2 = 50257;
        const int64_t to = std::clamp<int64_t>(multiple, 1, kMost / 1024) * std::clamp<int64_t>(tensor, 1, 1024);
        const auto padded = [&](int64_t n) { return round_up(std::clamp<int64_t>(n, 0, kMost), to); };
        if (size) {
            const int64_t n = std::min(j_.args.integer(*size), kMost) + (type == "NullTokenizer" ? 1 : 0);
            return j_.reading.map(fmt::format("{} (padded to a multiple of {} x {})", size->text(), multiple, tensor),
                                  size->where, "model.vocab_size", padded(n));
        }
        const bool gpt2 = type == "GPT2BPETokenizer" || (type.empty() && j_.args.has("merge-file"));
        if (gpt2)
            return j_.reading.assume(
                fmt::format("vocabulary of GPT-2, {} (padded to a multiple of {} x {})", kGpt2, multiple, tensor),
                "model.vocab_size", padded(kGpt2));
        j_.reading.questions.push_back(
            {{"model.vocab_size"},
             fmt::format(
                 "{}: the size of the vocabulary is in the tokenizer{}: give it as --model.vocab_size N. Megatron-LM pads "
                 "it to a multiple of {}",
                 tokenizer ? tokenizer->where : j_.args.origin(), tokenizer ? " (" + tokenizer->text() + ")" : "", to)});
    }

    void read_ties() {
        const Argument* untie = j_.take({"untie-embeddings-and-output-weights"});
        if (untie) j_.args.require_no_value(*untie);
        if (untie) j_.map(*untie, "model.tie_embeddings", int64_t{0});
        else j_.reading.assume("no --untie-embeddings-and-output-weights", "model.tie_embeddings", int64_t{1});
    }

    void read_groups() {
        const Argument* grouped = j_.take({"group-query-attention"});
        if (grouped) j_.args.require_no_value(*grouped);
        const Argument* groups = j_.take({"num-query-groups", "num-key-value-heads"});
        if (groups && !grouped && groups->name == "num-query-groups")
            return j_.no_effect(*groups, "acts only with --group-query-attention, in Megatron-LM as well");
        if (groups) j_.map(*groups, "model.n_kv_heads", j_.args.integer(*groups));
        else if (grouped) j_.reading.assume("--num-query-groups 1", "model.n_kv_heads", int64_t{1});
        else j_.reading.assume("no --group-query-attention", "model.n_kv_heads", heads_);
        if (grouped && groups) j_.no_effect(*grouped, "follows from --num-query-groups");
    }

    void read_llama() {
        read_groups();
        if (const Argument* a = j_.take({"max-position-embeddings"})) j_.no_effect(*a, "positions are rotary, of any length");
        read_rope();
        if (j_.take_flag("add-qkv-bias")) j_.map(*j_.args.find({"add-qkv-bias"}), "model.qkv_bias", int64_t{1});
        if (j_.take_flag("qk-layernorm")) j_.map(*j_.args.find({"qk-layernorm"}), "model.qk_norm", int64_t{1});
        read_window();
        for (const char* name : {"attention-dropout", "hidden-dropout"}) {
            const double p = j_.number({name}).value_or(0.1);
            if (p == 0) j_.no_effect(*j_.args.find({name}), "the model has no dropout");
            else
                j_.refusals.add(j_.args.has(name) ? j_.args.find({name})->text() : fmt::format("--{} 0.1 by default", name),
                                j_.args.has(name) ? j_.args.find({name})->where : j_.args.origin(),
                                fmt::format("Llama's layer has no dropout here: say --{} 0.0", name));
        }
    }

    void read_rope() {
        j_.map_number({"rotary-base", "rotary-position-embeddings-theta"}, "model.rope_theta", 10000.0);
        const Argument* scaled = j_.take({"use-rope-scaling"});
        const Argument* factor = j_.take({"rope-scaling-factor"});
        if (!scaled) {
            if (factor) j_.no_effect(*factor, "acts only with --use-rope-scaling");
            return j_.reading.assume("no --use-rope-scaling", "model.rope_scaling_factor", 1.0);
        }
        j_.args.require_no_value(*scaled);
        if (factor) j_.map(*factor, "model.rope_scaling_factor", j_.args.number(*factor));
        else j_.map(*scaled, "model.rope_scaling_factor", 8.0);
    }

    // "4096,0" or (4096,0): positions before and after a query.
    void read_window() {
        const Argument* a = j_.take({"window-size"});
        if (!a) return;
        int64_t before = 0;
        const std::string text = j_.args.text(*a);
        const size_t digit = text.find_first_of("0123456789");
        if (digit == std::string::npos || text.substr(0, digit).find('-') != std::string::npos || digit + 9 < text.find(','))
            return j_.refuse(*a, "must be two numbers, of the positions before and after a query");
        before = std::stoll(text.substr(digit, 9));
        j_.map(*a, "model.sliding_window", before + 1);
    }

    void read_gpt() {
        read_groups_of_gpt();
        j_.required({"max-position-embeddings"});
        j_.map_integer({"max-position-embeddings"}, "model.n_positions");
        const auto read = [&](const char* name, std::vector<const char*> keys) {
            for (const char* key : keys) j_.map_number({name}, key, 0.1);
        };
        read("attention-dropout", {"model.attn_pdrop"});
        read("hidden-dropout", {"model.resid_pdrop", "model.embd_pdrop"});
        const Argument* unfused = j_.take({"no-bias-gelu-fusion"});
        if (unfused) j_.args.require_no_value(*unfused);
        const bool tanh = !unfused || j_.take_flag("openai-gelu");
        if (unfused) j_.map(*unfused, "model.gelu_erf", int64_t{!tanh});
        else j_.reading.assume("no --no-bias-gelu-fusion, whose GELU is by tanh", "model.gelu_erf", int64_t{0});
    }

    // GPT-2's layer has as many key-value heads as query heads.
    void read_groups_of_gpt() {
        const Argument* grouped = j_.take({"group-query-attention"});
        const Argument* groups = j_.take({"num-query-groups", "num-key-value-heads"});
        const bool acts = groups && (grouped || groups->name == "num-key-value-heads");
        if ((grouped && !groups) || (acts && j_.args.integer(*groups) != heads_))
            return j_.refuse(groups ? *groups : *grouped,
                             "GPT-2's layer has one key-value head for each query head here; Llama's has "
                             "fewer");
        if (groups) j_.no_effect(*groups, "one key-value head for each query head");
        if (grouped) j_.no_effect(*grouped, "one key-value head for each query head");
    }

    MegatronJob& j_;
    int64_t layers_ = 0, dim_ = 0, heads_ = 0;
    bool is_llama_ = false;
};

}  // namespace

void read_megatron_model(MegatronJob& job) { Model(job).read(); }

}  // namespace lockstep::interop
