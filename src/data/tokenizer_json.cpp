#include "data/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "data/byte_alphabet.h"
#include "data/json_fields.h"
#include "data/tokenizer_steps.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;  // keeps the order of writing; a look-up is linear

constexpr int64_t kLargestId = int64_t{1} << 22;  // a damaged id must not allocate the machine's memory

// The special token that ends a document, by the names that model families give it. The first one found.
constexpr std::array<std::string_view, 6> kSeparators = {
    kSeparatorText, "<|endoftext|>", "</s>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "<eos>", "<|eos|>"};

using IdsByText = std::unordered_map<std::string, int32_t>;  // as written, byte-level tokens in the byte alphabet

class Reader {
public:
    Reader(const std::string& origin, const DocumentTokens& documents) : fields_(origin), documents_(documents) {}

    TokenizerParts read(std::string_view json) {
        const Json root = parsed(json);
        const Json& model = fields_.at(root, "model");
        read_options(model);
        read_steps(fields_, root, parts_);
        read_vocabulary(model);
        read_added(root);
        place_vocabulary();
        read_document_tokens();
        read_unknown(model);
        read_merges(model);
        return std::move(parts_);
    }

private:
    Json parsed(std::string_view json) const {
        json.remove_prefix(byte_order_mark_bytes(json));
        const size_t first = json.find_first_not_of(" \t\r\n");
        if (first == std::string_view::npos) fields_.malformed("it is empty");
        if (is_lfs_pointer(json))
            throw UserError("data.tokenizer_malformed", fields_.origin(), lfs_pointer_text(fields_.origin()));
        if (json[first] != '{') {
            fields_.malformed(
                "it is not a JSON object. A SentencePiece model (tokenizer.model) becomes a tokenizer.json by transformers: "
                "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(OUT)");
        }
        try {
            return parse_json<Json>(json);
        } catch (const JsonError& error) {
            fields_.malformed(error.byte() > json.size()
                                  ? fmt::format("its JSON ends in the middle, after {} bytes", json.size())
                                  : fmt::format("it is not valid JSON at byte {} of {}", error.byte(), json.size()));
        }
    }

    void read_options(const Json& model) {
        const std::string type = fields_.text_or(model, "type", "BPE");
        if (type != "BPE") fields_.unsupported(fmt::format("a model of type '{}'", type));
        if (const Json* dropout = fields_.find(model, "dropout"); dropout != nullptr && *dropout != 0)
            fields_.unsupported("the model option 'dropout'");
        for (const char* option : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (!fields_.text_or(model, option, "").empty()) fields_.unsupported(fmt::format("the model option '{}'", option));
        parts_.whole_pieces_first = fields_.flag_or(model, "ignore_merges", false);
        parts_.byte_fallback = fields_.flag_or(model, "byte_fallback", false);
        parts_.fuse_unknown = fields_.flag_or(model, "fuse_unk", false);
    }

    int32_t token_id(const Json& value, const std::string& token) const {
        if (!value.is_number_integer() || value.get<int64_t>() < 0 || value.get<int64_t>() > kLargestId)
            fields_.malformed(fmt::format("the id of the token '{}' is not a whole number from 0 to {}", token, kLargestId));
        return value.get<int32_t>();
    }

    void read_vocabulary(const Json& model) {
        const Json& vocab = fields_.at(model, "vocab");
        if (!vocab.is_object()) fields_.malformed("'vocab' is not an object of tokens and their ids");
        vocabulary_.reserve(vocab.size());
        for (const auto& [text, value] : vocab.items()) vocabulary_.emplace(text, token_id(value, text));
    }

    // Added tokens may also be in the vocabulary, there without the byte alphabet: then the vocabulary's id counts. Others are
    // numbered after it, as `tokenizers` does, whatever their "id" says. Where that would give an id twice, "id" counts.
    void read_added(const Json& root) {
        if (fields_.find(root, "added_tokens") == nullptr) return;
        std::unordered_set<int32_t> taken;
        for (const auto& [text, id] : vocabulary_) taken.insert(id);
        auto behind = static_cast<int32_t>(vocabulary_.size());
        IdsByText numbered;
        for (const Json& added : fields_.array(root, "added_tokens")) {
            AddedToken token;
            token.text = fields_.text(added, "content");
            if (token.text.empty()) fields_.malformed("an added token is empty");
            const auto known = vocabulary_.find(token.text);
            token.in_vocabulary = known != vocabulary_.end();
            token.id = token.in_vocabulary ? known->second : token_id(fields_.at(added, "id"), token.text);
            if (!token.in_vocabulary) {
                const auto [before, is_new] = numbered.emplace(token.text, behind);
                if (is_new) ++behind;
                if (!taken.contains(before->second)) token.id = before->second;
            }
            token.special = fields_.flag_or(added, "special", false);
            token.normalized = fields_.flag_or(added, "normalized", !token.special);
            token.single_word = fields_.flag_or(added, "single_word", false);
            token.lstrip = fields_.flag_or(added, "lstrip", false);
            token.rstrip = fields_.flag_or(added, "rstrip", false);
            place(token.id, token.text);
            added_ids_.insert(token.id);
            // What a byte becomes is no special token, whatever the file says: no text spells it, but text holds the byte.
            const bool is_byte = parts_.byte_fallback && token.in_vocabulary && fallback_byte(token.text) >= 0;
            if (token.special && !is_byte) parts_.special.push_back(token.id);
            parts_.added.push_back(std::move(token));
        }
        std::sort(parts_.special.begin(), parts_.special.end());
        parts_.special.erase(std::unique(parts_.special.begin(), parts_.special.end()), parts_.special.end());
    }

    void place(int32_t id, std::string bytes) {
        const auto at = static_cast<size_t>(id);
        if (at >= parts_.tokens.size()) parts_.tokens.resize(at + 1);
        if (!parts_.tokens[at].empty() && parts_.tokens[at] != bytes) fields_.malformed(fmt::format("two tokens have id {}", id));
        parts_.tokens[at] = std::move(bytes);
    }

    // A token that is not written in the byte alphabet can never be made of bytes;
    // it decodes to its text, as with Hugging Face.
    void place_vocabulary() {
        for (const auto& [text, id] : vocabulary_) {
            if (added_ids_.contains(id)) {
                if (parts_.tokens[static_cast<size_t>(id)] != text) fields_.malformed(fmt::format("two tokens have id {}", id));
                refuse_added_byte(text, id);
                continue;
            }
            const std::optional<std::string> bytes = parts_.byte_level ? from_alphabet(text) : std::nullopt;
            place(id, bytes ? *bytes : text);
        }
    }

    // An added token "é" is written as the token of byte 0xE9 is, and would be both.
    void refuse_added_byte(const std::string& text, int32_t id) const {
        const std::optional<std::string> bytes = parts_.byte_level ? from_alphabet(text) : std::nullopt;
        if (!bytes || bytes->size() != 1) return;
        const bool is_same_text = *bytes == text && !std::binary_search(parts_.special.begin(), parts_.special.end(), id);
        if (!is_same_text)
            fields_.unsupported(fmt::format("an added token '{}' that is also the vocabulary's token of byte 0x{:02X} (id {})",
                                            text, static_cast<uint8_t>((*bytes)[0]), id));
    }

    void read_document_tokens() {
        parts_.separator = separator();
        make_special(parts_.separator);
        if (!documents_.begin) return;
        parts_.begin = id_of_name(*documents_.begin);
        if (parts_.begin < 0 && documents_.begin->must_exist) no_such_token("--begin-token", *documents_.begin);
        if (parts_.begin >= 0) make_special(parts_.begin);
    }

    int32_t separator() {
        for (const TokenName& name : documents_.end) {
            const int32_t id = id_of_name(name);
            if (id < 0 && name.must_exist) no_such_token("--end-token", name);
            if (id < 0) continue;
            parts_.separator_said_by = name.said_by;
            return id;
        }
        const std::vector<int32_t> known = known_separators(parts_);
        if (!known.empty()) return known.front();
        throw UserError(
            kNoSeparator, "--end-token",
            fmt::format("{} has none of the special added tokens that end a document ('{}'), and no "
                        "tokenizer_config.json next to it names one as eos_token. Say with --end-token which token ends "
                        "a document.",
                        fields_.origin(), fmt::join(kSeparators, "', '")));
    }

    [[noreturn]] void no_such_token(const char* flag, const TokenName& name) const {
        throw UserError("data.no_such_token", flag,
                        fmt::format("{} {}: {} has no such token. Its special tokens are: {}.", flag, name.text, fields_.origin(),
                                    special_tokens()));
    }

    std::string special_tokens() const {
        constexpr size_t kMostNamed = 12;
        std::string names;
        for (size_t i = 0; i < parts_.special.size() && i < kMostNamed; ++i)
            names += (i > 0 ? ", " : "") + parts_.tokens[static_cast<size_t>(parts_.special[i])];
        return names.empty() ? "none" : parts_.special.size() > kMostNamed ? names + ", ..." : names;
    }

    // -1: there is no such token.
    int32_t id_of_name(const TokenName& name) const {
        if (name.text.empty()) {
            const bool is_token = name.id >= 0 && static_cast<size_t>(name.id) < parts_.tokens.size() &&
                                  !parts_.tokens[static_cast<size_t>(name.id)].empty();
            const bool is_added = std::any_of(parts_.added.begin(), parts_.added.end(),
                                              [&](const AddedToken& token) { return token.id == name.id; });
            return is_token && (is_added || !name.added) ? name.id : -1;
        }
        for (const AddedToken& token : parts_.added)
            if (token.text == name.text) return token.id;
        const auto known = vocabulary_.find(name.text);
        return known == vocabulary_.end() ? -1 : known->second;
    }

    // No text is encoded as it.
    void make_special(int32_t id) {
        const auto at = std::lower_bound(parts_.special.begin(), parts_.special.end(), id);
        if (at == parts_.special.end() || *at != id) parts_.special.insert(at, id);
        for (AddedToken& token : parts_.added) token.special = token.special || token.id == id;
    }

    void read_unknown(const Json& model) {
        const std::string text = fields_.text_or(model, "unk_token", "");
        if (text.empty()) return;
        const auto found = vocabulary_.find(text);
        if (found == vocabulary_.end()) fields_.malformed(fmt::format("the unk_token '{}' is not in the vocabulary", text));
        if (found->second != parts_.separator) parts_.unknown = found->second;  // unknown text ends no document
    }

    int32_t id_of(const std::string& text) const {
        const auto found = vocabulary_.find(text);
        if (found == vocabulary_.end())
            fields_.malformed(fmt::format("a merge names '{}', which is not in the vocabulary", text));
        return found->second;
    }

    void read_merges(const Json& model) {
        const Json& merges = fields_.array(model, "merges");
        parts_.merges.reserve(merges.size());
        for (const Json& entry : merges) {
            std::string left, right;
            if (entry.is_string()) {  // "a b": the form before tokenizers 0.20
                const std::string& text = entry.get_ref<const std::string&>();
                if (text.starts_with("#version")) continue;  // the first line of a merges.txt, which `tokenizers` leaves out
                const size_t space = text.find(' ');
                if (space == std::string::npos) fields_.malformed(fmt::format("the merge '{}' is not a pair", text));
                left = text.substr(0, space);
                right = text.substr(space + 1);
            } else {
                if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string())
                    fields_.malformed(fmt::format("merge number {} is not a pair of tokens", parts_.merges.size()));
                left = entry[0].get<std::string>();
                right = entry[1].get<std::string>();
            }
            parts_.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
        }
    }

    JsonFields fields_;
    const DocumentTokens& documents_;
    TokenizerParts parts_;
    IdsByText vocabulary_;
    std::unordered_set<int32_t> added_ids_;
};

}  // namespace

TokenizerParts parse_tokenizer_json(std::string_view json, const std::string& origin, const DocumentTokens& documents) {
    return Reader(origin, documents).read(json);
}

std::vector<int32_t> known_separators(const TokenizerParts& parts) {
    std::vector<int32_t> found;
    for (const std::string_view name : kSeparators) {
        for (const int32_t id : parts.special)
            if (parts.tokens[static_cast<size_t>(id)] == name) found.push_back(id);
    }
    return found;
}

std::string tokenizer_to_json(const TokenizerParts& parts) {
    ensure(parts.byte_level && parts.normalizer.empty() && parts.pre_tokenizer.size() == 1, "tokenizer_to_json: not made here");
    OrderedJson added = OrderedJson::array(), vocabulary = OrderedJson::object(), merges = OrderedJson::array();
    auto& entries = vocabulary.get_ref<OrderedJson::object_t&>();
    for (int32_t id = 0; id < static_cast<int32_t>(parts.tokens.size()); ++id) {
        const std::string& token = parts.tokens[id];
        if (token.empty()) continue;
        // Special tokens are here too: Hugging Face numbers those that do not anew. Appended without the linear look-up.
        const bool is_special = std::binary_search(parts.special.begin(), parts.special.end(), id);
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
    for (const Merge& merge : parts.merges)
        merges.push_back(to_alphabet(parts.tokens[merge.left]) + " " + to_alphabet(parts.tokens[merge.right]));
    const OrderedJson byte_level = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    const std::string& pattern = std::get<SplitStep>(parts.pre_tokenizer.front()).pattern.expression();
    const OrderedJson split = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
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
                     {"ignore_merges", parts.whole_pieces_first},
                     {"vocab", vocabulary},
                     {"merges", merges}};
    return json_text(root, 2) + "\n";
}

}  // namespace lockstep::data
