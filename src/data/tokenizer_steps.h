// The stages of a tokenizer.json around its model: normalizer, pre-tokenizer, decoder.
#pragma once

#include "data/json_fields.h"
#include "data/tokenizer.h"

namespace lockstep::data {

// Fills normalizer, pre_tokenizer, byte_level and decoder of `parts` from the file's root. Errors: data.tokenizer_malformed,
// data.tokenizer_unsupported, data.split_pattern.
void read_steps(const JsonFields& fields, const nlohmann::json& root, TokenizerParts& parts);

}  // namespace lockstep::data
