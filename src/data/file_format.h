// What kind of file is this, by its name and its first bytes? A pure function; an input that is not read gets the words that
// say what to do with it. Text may still be JSON: json_shape.h.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "data/byte_stream.h"

namespace lockstep::data {

enum class Format {
    text,
    json_lines,
    json_values,  // JSON objects over several lines, or a list of them
    parquet,
    npy,
    llm_c,
    megatron_index,
    raw_ids,     // without a header: a .bin, or an .npy that lacks its own, if the user says that it holds ids
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
// `name` with the suffix of the packing, `head` the file's first bytes, unpacked (kFormatHeadBytes of them, or all). An .npy
// without a header is raw_ids if `id_bytes`, which the user says, is not 0; then a file that the user names (`is_named`) is too
// if it holds no text and no other format is known.
FileFormat format_of(std::string_view name, Packing packing, std::string_view head, int id_bytes = 0, bool is_named = false);

// What a text is by its name: "a.jsonl.gz" promises JSON Lines, "a.json" JSON, "a.txt" text.
enum class NamePromise { none, text, json, json_lines };
NamePromise promise_of(std::string_view name, Packing packing);

}  // namespace lockstep::data
