#include "data/document_tokens.h"

#include <nlohmann/json.hpp>

#include "base/json.h"
#include "base/text_file.h"

namespace lockstep::data {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;

constexpr const char *kTokenizerConfig = "tokenizer_config.json", *kSpecialTokensMap = "special_tokens_map.json";

// An object, or nothing. `broken` gets the name of a file that is there and is no object of JSON.
Json object_of(const fs::path& file, std::vector<std::string>* broken = nullptr) {
    std::error_code error;
    if (!fs::exists(file, error)) return {};
    Json json;
    if (fs::is_regular_file(file, error)) {
        const TextFile text = read_text_file(file);
        if (text.is_readable()) json = json_or_discarded<Json>(text.text);
    }
    if (json.is_object()) return json;
    if (broken != nullptr) broken->push_back(file.filename().string());
    return {};
}

// Of "eos_token": a text, or an object with it.
std::string token_text(const Json& config, const char* key) {
    if (!config.is_object() || !config.contains(key)) return "";
    const Json& token = config.at(key);
    if (token.is_string()) return token.get<std::string>();
    const bool has_content = token.is_object() && token.contains("content") && token.at("content").is_string();
    return has_content ? token.at("content").get<std::string>() : "";
}

// Of "eos_token_id": a number, or the first of several; -1: none.
int32_t token_id(const Json& config, const char* key) {
    if (!config.is_object() || !config.contains(key)) return -1;
    const Json& value = config.at(key);
    const Json& id = value.is_array() && !value.empty() ? value.front() : value;
    const bool is_id = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX;
    return is_id ? id.get<int32_t>() : -1;
}

}  // namespace

DocumentTokens DocumentTokens::beside(const fs::path& tokenizer_json) {
    const fs::path folder = tokenizer_json.parent_path();
    DocumentTokens out;
    const Json manifest = object_of(folder / "manifest.json");
    if (manifest.is_object() && manifest.contains("format") && manifest.at("format") == "lockstep-tokens") {
        out.end.push_back({"", token_id(manifest, "separator"), "manifest.json", false});
        if (const int32_t begin = token_id(manifest, "begin"); begin >= 0)
            out.begin = TokenName{"", begin, "manifest.json", false};
        return out;
    }
    const Json config = object_of(folder / kTokenizerConfig, &out.broken);
    const std::string configured = token_text(config, "eos_token");
    const std::string mapped = token_text(object_of(folder / kSpecialTokensMap, &out.broken), "eos_token");
    // transformers reads the map over the configuration, unless that lists its added tokens.
    const bool map_counts = !config.contains("added_tokens_decoder");
    if (!mapped.empty() && map_counts) out.end.push_back({mapped, -1, kSpecialTokensMap, false});
    if (!configured.empty()) out.end.push_back({configured, -1, kTokenizerConfig, false});
    if (!mapped.empty() && !map_counts) out.end.push_back({mapped, -1, kSpecialTokensMap, false});
    for (const char* file : {"generation_config.json", "config.json"}) {
        const int32_t id = token_id(object_of(folder / file, &out.broken), "eos_token_id");
        if (id >= 0) out.end.push_back({"", id, file, false, true});
    }
    return out;
}

std::string configured_begin(const fs::path& tokenizer_json) {
    const Json config = object_of(tokenizer_json.parent_path() / "tokenizer_config.json");
    const bool adds = config.is_object() && config.contains("add_bos_token") && config.at("add_bos_token") == true;
    return adds ? token_text(config, "bos_token") : "";
}

}  // namespace lockstep::data
