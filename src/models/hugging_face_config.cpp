#include "models/hugging_face_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/json.h"

namespace lockstep::models {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

const ModelSpec& spec_of(const std::string& name) {
    const auto& all = all_models();
    const auto it = std::find_if(all.begin(), all.end(), [&](const ModelSpec& m) { return m.name == name; });
    ensure(it != all.end(), "hugging_face: no model is called " + name);
    return *it;
}

// One config.json, read key by key into the shape of one model.
class Config {
public:
    Config(const Json& json, const std::string& origin, const std::string& model)
        : json_(json), origin_(origin), spec_(spec_of(model)) {
        for (const ModelKey& k : spec_.keys) shape_[k.name] = k.default_value;
    }

    [[noreturn]] void unsupported(const std::string& key, const std::string& why) const {
        throw UserError(
            "convert.unsupported", key,
            fmt::format("{}: {} = {}: {}", origin_, key, json_.contains(key) ? json_text(json_.at(key)) : "(absent)", why));
    }

    bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
    template <class T>
    T get(const char* key) const {
        try {
            if constexpr (std::is_same_v<T, int64_t>) return whole_number(json_.at(key));
            else return json_.at(key).get<T>();
        } catch (const std::exception&) {
            throw UserError("convert.config", key, fmt::format("{}: {} is missing or of another type", origin_, key));
        }
    }
    template <class T>
    T get(const char* key, T otherwise) const {
        return has(key) ? get<T>(key) : otherwise;
    }
    std::string text(const char* key, const char* otherwise) const { return get<std::string>(key, otherwise); }

    // A key that must have this value, or be absent.
    template <class T>
    void require(const char* key, const T& value) const {
        if (has(key) && json_.at(key) != Json(value))
            unsupported(key, fmt::format("only {} is known here", json_text(Json(value))));
    }

    void set(const char* key, ir::Attr value) {
        if (shape_.contains(key)) shape_[key] = std::move(value);
        else if (value != ir::Attr{int64_t{0}}) unsupported("model_type", fmt::format("the models here have no {}", key));
    }
    bool contains(const char* key) const { return json_.contains(key); }
    // Absent is not null: a class of transformers has a default for the one, and few integers may be the other.
    int64_t integer(const char* key, int64_t absent) const { return contains(key) ? get<int64_t>(key) : absent; }
    int64_t integer_or_null(const char* key, int64_t absent, int64_t null) const {
        return contains(key) && !has(key) ? null : integer(key, absent);
    }

    const Json& json() const { return json_; }
    const std::string& origin() const { return origin_; }
    HuggingFaceModel finish(int64_t context) { return {spec_.name, std::move(shape_), context}; }

private:
    const Json& json_;
    const std::string& origin_;
    const ModelSpec& spec_;
    ir::Attrs shape_;
};

// What transformers' config classes have where a config says nothing (transformers 5.24, configuration_*.py). A width of a head
// of 0: that of the query heads' share of hidden_size.
struct FamilyDefaults {
    std::string_view type;
    int64_t vocab, hidden, ffn, layers, heads, kv_heads, head_dim, context;  // kv_heads 0: as many as heads
};
constexpr FamilyDefaults kFamilyDefaults[] = {
    {"llama", 32000, 4096, 11008, 32, 32, 0, 0, 2048},
    {"qwen2", 151936, 4096, 22016, 32, 32, 32, 0, 32768},
    {"qwen3", 151936, 4096, 22016, 32, 32, 32, 128, 32768},
    {"mistral", 32000, 4096, 14336, 32, 32, 8, 0, 131072},
};

// Old configs have rope_theta and rope_scaling, new ones rope_parameters; rope_scaling counts where both have something. A
// config whose layers have types may say it for each type.
std::pair<const char*, Json> rope_of(const Config& c) {
    const auto says = [&](const char* key) { return c.has(key) && !(c.json().at(key).is_object() && c.json().at(key).empty()); };
    const char* key = says("rope_scaling") ? "rope_scaling" : "rope_parameters";
    Json rope = c.has(key) ? c.json().at(key) : Json::object();
    if (rope.is_object() && rope.contains("full_attention") && !rope.contains("rope_type"))
        rope = Json(rope.at("full_attention"));
    if (!rope.is_object()) throw UserError("convert.config", key, fmt::format("{}: {} is no object", c.origin(), key));
    return {key, std::move(rope)};
}

void read_rope(Config& c, int64_t context) {
    const auto [key, rope] = rope_of(c);
    const auto number = [&, key = key, &rope = rope](const char* name, std::optional<double> otherwise) {
        if ((!rope.contains(name) || rope.at(name).is_null()) && otherwise) return *otherwise;
        if (!rope.contains(name) || !rope.at(name).is_number())
            throw UserError("convert.config", key, fmt::format("{}: {}.{} is missing or no number", c.origin(), key, name));
        return rope.at(name).get<double>();
    };
    std::string type = "default";
    for (const char* name : {"type", "rope_type"}) {
        if (rope.contains(name) && rope.at(name).is_string()) type = rope.at(name).get<std::string>();
    }
    if (type != "default" && type != "llama3") c.unsupported(key, "of rope types only default and llama3 are known here");
    if (number("partial_rotary_factor", c.get<double>("partial_rotary_factor", 1.0)) != 1.0)
        c.unsupported("partial_rotary_factor", "only whole heads are rotated here");
    c.set("rope_theta", number("rope_theta", c.get<double>("rope_theta", 10000.0)));
    const bool scaled = type == "llama3";
    c.set("rope_scaling_factor", scaled ? number("factor", std::nullopt) : 1.0);
    if (!scaled) return;
    c.set("rope_low_freq_factor", number("low_freq_factor", std::nullopt));
    c.set("rope_high_freq_factor", number("high_freq_factor", std::nullopt));
    const char* positions = "original_max_position_embeddings";  // one next to the object counts before one in it
    const double original = c.has(positions) ? c.get<double>(positions) : number(positions, static_cast<double>(context));
    c.set("rope_original_positions", static_cast<int64_t>(std::clamp(original, -1.0, 0x1p60)));  // allowed() knows the range
}

// Qwen's windows begin at a layer; a config may ask for them and have none.
void refuse_sliding_layers(const Config& c, int64_t layers) {
    if (!c.get<bool>("use_sliding_window", false) || (c.contains("sliding_window") && !c.has("sliding_window"))) return;
    if (c.get<int64_t>("max_window_layers", 28) < layers)
        c.unsupported("use_sliding_window", "only false is known here: layers are all alike, with full attention");
}

HuggingFaceModel read_llama(const Json& json, const std::string& origin, const FamilyDefaults& family) {
    Config c(json, origin, "llama3");
    const bool is_mistral = family.type == "mistral";
    c.require("hidden_act", "silu");
    c.require("mlp_bias", false);
    c.require("attention_bias", false);
    const int64_t window = is_mistral ? c.integer_or_null("sliding_window", 4096, 0) : 0;
    // transformers' Mistral gives every layer the window, whatever types layers have.
    const char* type = window > 0 ? "sliding_attention" : "full_attention";
    for (const Json& layer : c.get<Json>("layer_types", Json::array())) {
        if (layer == type) continue;
        if (window > 0)
            c.unsupported("layer_types",
                          fmt::format("transformers gives all layers of a mistral the sliding_window of {}: remove "
                                      "layer_types, or set sliding_window to null for full attention",
                                      window));
        c.unsupported("layer_types", "layers are all alike here, with full attention");
    }
    const int64_t layers = c.integer("num_hidden_layers", family.layers), heads = c.integer("num_attention_heads", family.heads),
                  context = c.get<int64_t>("max_position_embeddings", family.context);
    if (family.type.starts_with("qwen")) refuse_sliding_layers(c, layers);
    c.set("dim", c.integer("hidden_size", family.hidden));
    c.set("n_layers", layers);
    c.set("n_heads", heads);
    c.set("n_kv_heads", c.integer_or_null("num_key_value_heads", family.kv_heads > 0 ? family.kv_heads : heads, heads));
    c.set("head_dim", family.head_dim > 0 ? c.integer("head_dim", family.head_dim) : c.integer_or_null("head_dim", 0, 0));
    c.set("ffn_dim", c.integer("intermediate_size", family.ffn));
    c.set("vocab_size", c.integer("vocab_size", family.vocab));
    c.set("norm_eps", c.get<double>("rms_norm_eps", 1e-6));
    c.set("tie_embeddings", int64_t{c.get<bool>("tie_word_embeddings", false)});
    c.set("qk_norm", int64_t{family.type == "qwen3"});
    c.set("qkv_bias", int64_t{family.type == "qwen2"});
    c.set("sliding_window", window);
    read_rope(c, context);
    return c.finish(context);
}

HuggingFaceModel read_gpt2(const Json& json, const std::string& origin) {
    Config c(json, origin, "gpt2");
    c.require("scale_attn_weights", true);
    c.require("scale_attn_by_inverse_layer_idx", false);
    c.require("add_cross_attention", false);
    const std::string gelu = c.text("activation_function", "gelu_new");
    if (gelu != "gelu_new" && gelu != "gelu" && gelu != "gelu_pytorch_tanh")
        c.unsupported("activation_function", "only gelu_new, gelu_pytorch_tanh and gelu are known here");
    // Newer names of the same keys count as well (attribute_map of its class).
    const auto either = [&](const char* old, const char* newer, int64_t otherwise) {
        return c.contains(old) || !c.contains(newer) ? c.integer(old, otherwise) : c.integer(newer, otherwise);
    };
    const int64_t positions = either("n_positions", "max_position_embeddings", 1024);
    c.set("dim", either("n_embd", "hidden_size", 768));
    c.set("n_layers", either("n_layer", "num_hidden_layers", 12));
    c.set("n_heads", either("n_head", "num_attention_heads", 12));
    c.set("ffn_dim", c.integer_or_null("n_inner", 0, 0));
    c.set("vocab_size", c.integer("vocab_size", 50257));
    c.set("n_positions", positions);
    c.set("norm_eps", c.get<double>("layer_norm_epsilon", 1e-5));
    c.set("gelu_erf", int64_t{gelu == "gelu"});
    c.set("tie_embeddings", int64_t{c.get<bool>("tie_word_embeddings", true)});
    for (const char* p : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) c.set(p, c.get<double>(p, 0.1));
    return c.finish(positions);
}

int64_t integer(const ir::Attrs& a, const char* key) { return a.contains(key) ? std::get<int64_t>(a.at(key)) : 0; }
double number(const ir::Attrs& a, const char* key) { return std::get<double>(a.at(key)); }

struct Architecture {
    const char *type, *name;
};

Architecture llama_architecture(const ir::Attrs& a) {
    const bool norm = integer(a, "qk_norm") != 0, bias = integer(a, "qkv_bias") != 0, window = integer(a, "sliding_window") > 0;
    if (norm + bias + window > 1)
        throw UserError(
            "convert.no_architecture", "model.qk_norm",
            "model.qk_norm, model.qkv_bias and model.sliding_window are each another architecture of transformers (qwen3, "
            "qwen2, mistral), and none has two of them: such a model cannot be exported");
    if (norm) return {"qwen3", "Qwen3ForCausalLM"};
    if (bias) return {"qwen2", "Qwen2ForCausalLM"};
    return window ? Architecture{"mistral", "MistralForCausalLM"} : Architecture{"llama", "LlamaForCausalLM"};
}

Model build(const HuggingFaceModel& m) { return spec_of(m.name).build(m.shape, 1); }

// The widths that a shape leaves to be worked out, as the model's own tensors have them.
int64_t built_size(const HuggingFaceModel& m, const char* dim) {
    const Model built = build(m);
    for (const ir::Routine& r : built.routines) {
        if (const ir::DimId d = r.dim(dim); d >= 0) return r.dims[static_cast<size_t>(d)].size;
    }
    throw InternalError(fmt::format("hugging_face: no block has the dim {}", dim));
}

OrderedJson write_llama(const HuggingFaceModel& m) {
    const ir::Attrs& a = m.shape;
    const Architecture architecture = llama_architecture(a);
    OrderedJson rope = nullptr;
    if (number(a, "rope_scaling_factor") != 1) {
        rope = {{"rope_type", "llama3"},
                {"factor", number(a, "rope_scaling_factor")},
                {"low_freq_factor", number(a, "rope_low_freq_factor")},
                {"high_freq_factor", number(a, "rope_high_freq_factor")},
                {"original_max_position_embeddings", integer(a, "rope_original_positions")}};
    }
    const int64_t heads = integer(a, "n_heads"), kv_heads = integer(a, "n_kv_heads");
    OrderedJson out = {{"architectures", OrderedJson::array({architecture.name})},
                       {"model_type", architecture.type},
                       {"hidden_act", "silu"},
                       {"hidden_size", integer(a, "dim")},
                       {"intermediate_size", built_size(m, "ffn")},
                       {"num_hidden_layers", integer(a, "n_layers")},
                       {"num_attention_heads", heads},
                       {"num_key_value_heads", kv_heads > 0 ? kv_heads : heads},
                       {"head_dim", built_size(m, "head_dim")},
                       {"vocab_size", integer(a, "vocab_size")},
                       {"rms_norm_eps", number(a, "norm_eps")},
                       {"rope_theta", number(a, "rope_theta")},
                       {"rope_scaling", rope},
                       {"max_position_embeddings", m.context},
                       {"tie_word_embeddings", integer(a, "tie_embeddings") != 0},
                       {"attention_bias", false}};
    if (integer(a, "sliding_window") > 0) out["sliding_window"] = integer(a, "sliding_window");
    else if (std::string_view(architecture.type) != "llama") out["use_sliding_window"] = false;
    return out;
}

OrderedJson write_gpt2(const HuggingFaceModel& m) {
    const ir::Attrs& a = m.shape;
    const int64_t dim = integer(a, "dim"), heads = integer(a, "n_heads");
    if (built_size(m, "head_dim") * heads != dim)
        throw UserError(
            "convert.no_architecture", "model.head_dim",
            fmt::format("model.head_dim x model.n_heads is not model.dim = {}: transformers' gpt2 knows no such heads", dim));
    const auto dropout = [&](const char* key) { return number(a, key) == -1 ? number(a, "dropout") : number(a, key); };
    return {{"architectures", OrderedJson::array({"GPT2LMHeadModel"})},
            {"model_type", "gpt2"},
            {"activation_function", integer(a, "gelu_erf") != 0 ? "gelu" : "gelu_new"},
            {"n_embd", dim},
            {"n_inner", built_size(m, "ffn")},
            {"n_layer", integer(a, "n_layers")},
            {"n_head", heads},
            {"n_positions", integer(a, "n_positions")},
            {"vocab_size", integer(a, "vocab_size")},
            {"layer_norm_epsilon", number(a, "norm_eps")},
            {"embd_pdrop", dropout("embd_pdrop")},
            {"attn_pdrop", dropout("attn_pdrop")},
            {"resid_pdrop", dropout("resid_pdrop")},
            {"tie_word_embeddings", integer(a, "tie_embeddings") != 0}};
}

// The shape without what has no effect on what the model computes, and with the widths that it leaves to be worked out.
ir::Attrs as_built(const HuggingFaceModel& m) {
    ir::Attrs a = m.shape;
    for (const char* key : {"dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "ffn_dim_multiplier", "multiple_of"})
        a.erase(key);
    a["head_dim"] = built_size(m, "head_dim"), a["ffn_dim"] = built_size(m, "ffn");
    if (a.contains("n_kv_heads") && integer(a, "n_kv_heads") == 0) a["n_kv_heads"] = integer(a, "n_heads");
    if (a.contains("rope_scaling_factor") && number(a, "rope_scaling_factor") == 1) {
        for (const char* key : {"rope_low_freq_factor", "rope_high_freq_factor", "rope_original_positions"}) a.erase(key);
    }
    return a;
}

std::string text_of(const ir::Attr& value) {
    if (const auto* i = std::get_if<int64_t>(&value)) return std::to_string(*i);
    return fmt::format("{}", std::get<double>(value));
}

// Heads are one dim there: [kv_heads, group, head_dim, hidden] is stored as [heads x head_dim, hidden].
std::vector<int64_t> stored_shape(const ir::Parameter& p) {
    std::vector<int64_t> shape;
    bool in_heads = false;
    for (const ir::Dim& d : p.dims) {
        const bool of_heads = ir::is_of_heads(d.role);
        if (of_heads && in_heads) shape.back() *= d.valid;
        else shape.push_back(d.valid);
        in_heads = of_heads;
    }
    return shape;
}

}  // namespace

namespace {

// A config that was damaged may ask for 10^12 layers: what a recipe may not have, it may not have either.
HuggingFaceModel allowed(HuggingFaceModel model, const std::string& origin) {
    for (const ModelKey& k : spec_of(model.name).keys) {
        const auto found = model.shape.find(k.name);
        if (found == model.shape.end()) continue;
        const auto* integer = std::get_if<int64_t>(&found->second);
        const auto* number = std::get_if<double>(&found->second);
        if (!integer && !number) continue;
        const std::string objection = k.allowed.objection(integer ? static_cast<double>(*integer) : *number);
        if (!objection.empty())
            throw UserError("convert.config", "model." + k.name,
                            fmt::format("{}: makes model.{} = {}: {}", origin, k.name, text_of(found->second), objection));
    }
    return model;
}

}  // namespace

HuggingFaceModel from_hugging_face(const Json& config, const std::string& origin) {
    if (!config.is_object() || !config.contains("model_type") || !config.at("model_type").is_string())
        throw UserError("convert.config", "model_type",
                        fmt::format("{}: has no model_type: not a config of transformers", origin));
    const std::string type = config.at("model_type").get<std::string>();
    if (config.contains("quantization_config") && !config.at("quantization_config").is_null())
        throw UserError(
            "convert.unsupported", "quantization_config",
            fmt::format("{}: has a quantization_config: only plain weights are read; take the unquantized model", origin));
    const bool gpt2 = std::any_of(all_models().begin(), all_models().end(), [](const ModelSpec& m) { return m.name == "gpt2"; });
    if (type == "gpt2" && gpt2) return allowed(read_gpt2(config, origin), origin);
    for (const FamilyDefaults& family : kFamilyDefaults) {
        if (type == family.type) return allowed(read_llama(config, origin, family), origin);
    }
    throw UserError("convert.unsupported", "model_type",
                    fmt::format("{}: model_type = \"{}\": known here are llama, qwen2, qwen3, mistral{}", origin, type,
                                gpt2 ? " and gpt2" : ""));
}

OrderedJson to_hugging_face(const HuggingFaceModel& model) {
    return model.name == "gpt2" ? write_gpt2(model) : write_llama(model);
}

Json to_hugging_face(const HuggingFaceModel& model, Json source) {
    OrderedJson own = to_hugging_face(model);
    Json out = source;
    for (const char* gone : {"quantization_config", "transformers_weights", "auto_map"})
        out.erase(gone);  // of files that are gone
    for (const char* key : {"architectures", "vocab_size", "tie_word_embeddings", "embd_pdrop", "attn_pdrop", "resid_pdrop"}) {
        if (own.contains(key)) out[key] = own.at(key);
    }
    const char* context = "max_position_embeddings";
    try {
        if (own.contains(context) && from_hugging_face(source, "").context < model.context) out[context] = model.context;
        if (!difference(from_hugging_face(out, ""), model)) return out;
    } catch (const UserError&) {  // not a config of this model: its own says all
    }
    for (const auto& [key, value] : source.items()) {
        if (key.ends_with("_token_id")) own[key] = value;
    }
    return Json(own);
}

std::optional<Difference> difference(const HuggingFaceModel& a, const HuggingFaceModel& b) {
    if (a.name != b.name) return Difference{"model.name", a.name, b.name};
    const ir::Attrs ours = as_built(a), theirs = as_built(b);
    for (const ModelKey& k : spec_of(a.name).keys) {
        const auto x = ours.find(k.name), y = theirs.find(k.name);
        const std::string one = x == ours.end() ? "" : text_of(x->second), other = y == theirs.end() ? "" : text_of(y->second);
        if (one != other && !one.empty() && !other.empty()) return Difference{"model." + k.name, one, other};
    }
    return std::nullopt;
}

std::vector<StoredTensor> stored_tensors(const HuggingFaceModel& model) {
    std::vector<StoredTensor> out;
    std::unordered_map<std::string, size_t> places;  // by name
    const Model built = build(model);
    for (const ir::Block& block : built.blocks) {
        for (int64_t i : block.all()) {
            for (const ir::Parameter& p : built.params) {
                if (p.block != block.name) continue;
                StoredTensor::Part part{p.name, {}};
                if (const size_t at = part.name.find("{}"); at != std::string::npos) part.name.replace(at, 2, std::to_string(i));
                for (const ir::Dim& d : p.dims) part.shape.push_back(d.valid);
                std::string stored = part.name;
                for (const char* third : {".c_attn.q.", ".c_attn.k.", ".c_attn.v."}) {
                    if (const size_t at = stored.find(third); at != std::string::npos) stored.erase(at + 7, 2);
                }
                const auto [place, is_new] = places.emplace(stored, out.size());
                if (is_new) {
                    out.push_back({stored, stored_shape(p), {part}});
                } else {
                    StoredTensor& known = out[place->second];
                    known.parts.push_back(part);
                    known.shape.back() += stored_shape(p).back();
                }
            }
        }
    }
    return out;
}

bool is_no_parameter(const std::string& name, bool tied) {
    const auto ends = [&](const char* tail) { return name.ends_with(tail); };
    return ends(".rotary_emb.inv_freq") || ends(".attn.masked_bias") || ends(".attn.bias") || (tied && name == "lm_head.weight");
}

}  // namespace lockstep::models
