// What kind of file is this, by its name and its first bytes? A pure function; an input that is not read gets the words that say
// what to do with it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "data/byte_stream.h"

namespace lockstep::data {

enum class Format {
    text,
    json_lines,
    parquet,
    npy,
    llm_c,
    megatron_index,
    raw_ids,     // a .bin without a header: 16-bit ids, if the user says that it holds ids
    unreadable,  // of a known kind that is not read: `what` and `remedy`
    binary       // of no known kind
};

struct FileFormat {
    Format format = Format::binary;
    std::string what;    // of unreadable: "an xz archive"
    std::string remedy;  // of unreadable: "Unpack it: xz -d FILE"
};

inline constexpr size_t kFormatHeadBytes = 64 << 10;

Packing packing_of(std::string_view head);
// `name` with the suffix of the packing, `head` the file's first bytes, unpacked (kFormatHeadBytes of them, or all).
FileFormat format_of(std::string_view name, Packing packing, std::string_view head);

// Do the first two lines hold an object each?
bool looks_like_json_lines(std::string_view head);

}  // namespace lockstep::data
