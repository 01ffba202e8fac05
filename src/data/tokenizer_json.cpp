// Tokenizer to and from Hugging Face's tokenizer.json. What this encoder cannot do exactly as Hugging Face's does is refused:
// normalizers, other model types, dropout, prefixes, pre-tokenizers other than one Split and ByteLevel.
// Not read: the post-processor (documents end with the separator; nothing is put before them) and truncation or padding.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/output_file.h"
#include "data/byte_alphabet.h"
#include "data/file_io.h"
#include "data/tokenizer.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of writing; a look-up is linear

constexpr int64_t kLargestId = int64_t{1} << 24;  // a damaged id must not allocate the machine's memory

struct Reader {
    const std::string& origin;

    [[noreturn]] void malformed(const std::string& what) const {
        throw UserError("data.tokenizer_malformed", origin,
                        fmt::format("{} is not a usable tokenizer.json: {}. Export it again with Hugging Face tokenizers or "
                                    "train one with `data prepare`.",
                                    origin, what));
    }
    [[noreturn]] void unsupported(const std::string& what) const {
        throw UserError("data.tokenizer_unsupported", origin,
                        fmt::format("{} needs {}, which would not encode as Hugging Face does here. "
                                    "Use a byte-level BPE tokenizer without it.",
                                    origin, what));
    }

    static bool is_set(const Json& object, const char* name) {
        const auto found = object.find(name);
        if (found == object.end() || found->is_null()) return false;
        if (found->is_boolean()) return found->get<bool>();
        if (found->is_string()) return !found->get_ref<const std::string&>().empty();
        if (found->is_number()) return found->get<double>() != 0;
        return true;
    }
    std::string text_or_empty(const Json& object, const char* name) const { return is_set(object, name) ? object.at(name) : ""; }

    int32_t token_id(const Json& value) const {
        if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kLargestId)
            malformed(fmt::format("'{}' is not a token id", value.dump()));
        return value.get<int32_t>();
    }

    void place(TokenizerParts& parts, int32_t id, std::string bytes) const {
        if (id >= static_cast<int32_t>(parts.tokens.size())) parts.tokens.resize(id + 1);
        if (!parts.tokens[id].empty() && parts.tokens[id] != bytes) malformed(fmt::format("two tokens have id {}", id));
        parts.tokens[id] = std::move(bytes);
    }

    void read_pattern(const Json& step, TokenizerParts& parts) const {
        const std::string type = text_or_empty(step, "type");
        if (type == "ByteLevel") {
            if (is_set(step, "add_prefix_space")) unsupported("ByteLevel with add_prefix_space");
            if (step.value("use_regex", true)) parts.split_pattern = kGpt2SplitPattern;
        } else if (type == "Split") {
            const Json& pattern = step.at("pattern");
            if (!pattern.contains("Regex")) unsupported("a Split on a fixed string");
            if (text_or_empty(step, "behavior") != "Isolated" || is_set(step, "invert"))
                unsupported("a Split that is not 'Isolated'");
            parts.split_pattern = pattern.at("Regex").get<std::string>();
        } else {
            unsupported(fmt::format("the pre-tokenizer '{}'", type));
        }
    }

    void read_pre_tokenizer(const Json& root, TokenizerParts& parts) const {
        if (!is_set(root, "pre_tokenizer")) unsupported("text that is not split byte-level (no pre_tokenizer)");
        const Json& outer = root.at("pre_tokenizer");
        if (text_or_empty(outer, "type") != "Sequence") {
            if (text_or_empty(outer, "type") != "ByteLevel") unsupported("a pre-tokenizer without ByteLevel");
            if (!outer.value("use_regex", true)) unsupported("ByteLevel without a split pattern");
            return read_pattern(outer, parts);
        }
        const Json& steps = outer.at("pretokenizers");
        const bool split_then_bytes = steps.size() == 2 && text_or_empty(steps[0], "type") == "Split" &&
                                      text_or_empty(steps[1], "type") == "ByteLevel" && !steps[1].value("use_regex", true);
        if (!split_then_bytes) unsupported("a pre-tokenizer sequence other than one Split and ByteLevel");
        for (const Json& step : steps) read_pattern(step, parts);
    }

    // Added tokens may also stand in the vocabulary, there without the byte alphabet.
    void read_special(const Json& root, TokenizerParts& parts) const {
        if (!root.contains("added_tokens")) return;
        for (const Json& added : root.at("added_tokens")) {
            const std::string text = added.at("content");
            if (!is_set(added, "special")) unsupported(fmt::format("the added token '{}' that is not special", text));
            if (text.empty()) malformed("an added token is empty");
            const int32_t id = token_id(added.at("id"));
            place(parts, id, text);
            parts.special.push_back(id);
        }
        std::sort(parts.special.begin(), parts.special.end());
    }

    void read_separator(TokenizerParts& parts) const {
        for (const std::string_view name : {kSeparatorText, std::string_view("<|endoftext|>")}) {
            for (const int32_t id : parts.special) {
                if (parts.tokens[id] != name) continue;
                parts.separator = id;
                return;
            }
        }
        throw UserError("data.tokenizer_no_separator", origin,
                        fmt::format("{} has neither '{}' nor '<|endoftext|>' among its special added tokens, so documents could "
                                    "not be told apart. Add one of them.",
                                    origin, kSeparatorText));
    }

    using Vocabulary = std::unordered_map<std::string, int32_t>;  // in the byte alphabet

    Vocabulary read_vocabulary(const Json& model, TokenizerParts& parts) const {
        Vocabulary vocabulary;
        for (const auto& [text, value] : model.at("vocab").items()) {
            const int32_t id = token_id(value);
            vocabulary.emplace(text, id);
            if (std::binary_search(parts.special.begin(), parts.special.end(), id)) {
                if (parts.tokens[id] != text) malformed(fmt::format("two tokens have id {}", id));
                continue;
            }
            std::optional<std::string> bytes = from_alphabet(text);
            if (!bytes || bytes->empty())
                malformed(fmt::format("the token '{}' is not written in the byte-level alphabet", text));
            place(parts, id, std::move(*bytes));
        }
        return vocabulary;
    }

    void read_merges(const Json& model, const Vocabulary& vocabulary, TokenizerParts& parts) const {
        const auto id_of = [&](const std::string& text) {
            const auto found = vocabulary.find(text);
            if (found == vocabulary.end()) malformed(fmt::format("a merge names '{}', which is not in the vocabulary", text));
            return found->second;
        };
        for (const Json& entry : model.at("merges")) {
            std::string left, right;
            if (entry.is_string()) {  // "a b": the form before tokenizers 0.20
                const std::string& text = entry.get_ref<const std::string&>();
                const size_t space = text.find(' ');
                if (space == std::string::npos) malformed(fmt::format("the merge '{}' is not a pair", text));
                left = text.substr(0, space);
                right = text.substr(space + 1);
            } else {
                if (!entry.is_array() || entry.size() != 2) malformed(fmt::format("the merge {} is not a pair", entry.dump()));
                left = entry.at(0).get<std::string>();
                right = entry.at(1).get<std::string>();
            }
            parts.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
        }
    }

    TokenizerParts read(const Json& root) const {
        TokenizerParts parts;
        if (is_set(root, "normalizer")) unsupported("a normalizer");
        const Json& model = root.at("model");
        if (model.value("type", "BPE") != "BPE") unsupported(fmt::format("a model of type {}", model.at("type").dump()));
        for (const char* option : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"})
            if (is_set(model, option)) unsupported(fmt::format("the model option '{}'", option));
        parts.whole_pieces_first = is_set(model, "ignore_merges");
        read_pre_tokenizer(root, parts);
        read_special(root, parts);
        read_separator(parts);
        read_merges(model, read_vocabulary(model, parts), parts);
        return parts;
    }
};

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& origin) {
    const Reader reader{origin};
    try {
        return Tokenizer(reader.read(Json::parse(json)));
    } catch (const Json::exception& error) {
        reader.malformed(error.what());
    }
}

Tokenizer Tokenizer::load(const std::filesystem::path& file) { return from_json(MappedFile::open(file).text(), file.string()); }

std::string Tokenizer::to_json() const {
    OrderedJson added = OrderedJson::array(), vocabulary = OrderedJson::object(), merges = OrderedJson::array();
    auto& entries = vocabulary.get_ref<OrderedJson::object_t&>();
    for (int32_t id = 0; id < vocab_size(); ++id) {
        const std::string& token = parts_.tokens[id];
        if (token.empty()) continue;
        // Special tokens stand here too: Hugging Face numbers those that do not anew. Appended without the linear look-up.
        const bool is_special = std::binary_search(parts_.special.begin(), parts_.special.end(), id);
        entries.OrderedJson::object_t::Container::emplace_back(is_special ? token : to_alphabet(token), id);
        if (!is_special) continue;
        added.push_back({{"id", id},
                         {"content", token},
                         {"single_word", false},
                         {"lstrip", false},
                         {"rstrip", false},
                         {"normalized", false},
                         {"special", true}});
    }
    // As one string, which every version of Hugging Face tokenizers reads; the byte alphabet holds no space.
    for (const Merge& merge : parts_.merges)
        merges.push_back(to_alphabet(parts_.tokens[merge.left]) + " " + to_alphabet(parts_.tokens[merge.right]));
    const OrderedJson byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    const OrderedJson split = {
        {"type", "Split"}, {"pattern", {{"Regex", parts_.split_pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
    OrderedJson root = {{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", added},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", OrderedJson::array({split, byte_level})}}},
                        {"post_processor", nullptr},
                        {"decoder", byte_level}};
    root["model"] = {{"type", "BPE"},
                     {"dropout", nullptr},
                     {"unk_token", nullptr},
                     {"continuing_subword_prefix", nullptr},
                     {"end_of_word_suffix", nullptr},
                     {"fuse_unk", false},
                     {"byte_fallback", false},
                     {"ignore_merges", parts_.whole_pieces_first},
                     {"vocab", vocabulary},
                     {"merges", merges}};
    return root.dump(2) + "\n";
}

void Tokenizer::save(const std::filesystem::path& file) const {
    AtomicFile out(file);
    out.append(to_json());
    out.finish();
    out.publish();
}

}  // namespace lockstep::data
