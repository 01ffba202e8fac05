// The JSON header of a safetensors file: every tensor's type, shape and place. It is read in one pass and no tree of values is
// built, as a header may name a million tensors. Each tensor is checked by itself; whether all of them fill the file is the
// reader's question.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

struct SafetensorsHeader {
    std::vector<TensorEntry> tensors;  // in the header's order
    Metadata metadata;
};

// `path` names the file in messages. UserError checkpoint.bad_header, .unknown_dtype, .bad_shape. A tensor's name may be there
// twice.
SafetensorsHeader parse_safetensors_header(const std::string& path, std::string_view text);

[[noreturn]] void refuse_header(const std::string& path, const std::string& what);  // UserError checkpoint.bad_header

// Elements of a shape; nothing if an extent is negative or the bytes do not fit an int64.
std::optional<int64_t> elements_of(const std::vector<int64_t>& shape, int64_t element_bytes);

}  // namespace lockstep::checkpoint
