// Which tokens end and begin the documents of a tokenizer, as the files next to a tokenizer.json say.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::data {

// By text, or by id where `text` is empty.
struct TokenName {
    std::string text;
    int32_t id = -1;
    std::string said_by;      // "tokenizer_config.json"
    bool must_exist = false;  // a tokenizer without it is an error; else it is passed over
    bool added = false;       // only an added token is meant: the id of a model's configuration may be any other one
};

struct DocumentTokens {
    // The token that ends a document, as several files say it: the first that the tokenizer has counts. None: a known name.
    std::vector<TokenName> end;
    std::optional<TokenName> begin;     // what documents begin with
    std::vector<std::string> broken{};  // names of files that are there and are no objects of JSON

    // Of the folder that `tokenizer_json` lies in: a prepared folder's manifest.json, which says both; else
    // tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json; none of them says what documents
    // begin with here. special_tokens_map.json comes first where tokenizer_config.json has no added_tokens_decoder, as in
    // transformers. Files that cannot be read say nothing and are `broken`.
    static DocumentTokens beside(const std::filesystem::path& tokenizer_json);
};

// The token that the configuration puts before a text ("add_bos_token"); empty: none.
std::string configured_begin(const std::filesystem::path& tokenizer_json);

}  // namespace lockstep::data
