// Hugging Face's tokenizer.json to the parts of a Tokenizer, and back.
// What this encoder cannot do exactly as Hugging Face's does is refused by name. The post-processor is not read (documents end
// with the separator, and begin as DocumentTokens say), nor are truncation and padding.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "data/tokenizer.h"

namespace lockstep::data {

inline constexpr ErrorId kNoSeparator{"data.tokenizer_no_separator"};

// `origin` names the text in error messages. Errors: data.tokenizer_malformed, data.tokenizer_unsupported,
// data.tokenizer_no_separator, data.no_such_token, data.split_pattern.
TokenizerParts parse_tokenizer_json(std::string_view json, const std::string& origin, const DocumentTokens& documents = {});

// The special tokens that model families end documents with, by their names, in the order in which they are looked for.
std::vector<int32_t> known_separators(const TokenizerParts& parts);

// Of a tokenizer that was made here: byte-level, with one split and no normalizer.
std::string tokenizer_to_json(const TokenizerParts& parts);

}  // namespace lockstep::data
