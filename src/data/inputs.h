// Finds the files under the paths a user names, and what each of them is.
// Folders are read recursively, sorted by name. Links are followed, but a file or folder reached a second time is taken once, so
// a cycle ends. Hidden entries (".git") inside folders are left out. A file that the user names himself is read or refused; what
// cannot be read inside a folder is left out and counted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/file_format.h"

namespace lockstep::data {

struct Input {
    std::filesystem::path path;
    std::string name;  // relative to the folder that holds the input, with '/': "include/stdio.h"; decides the held-out split
    int64_t bytes = 0;
    Format format = Format::text;  // megatron_index: `path` is the .idx
    Packing packing = Packing::none;
    std::filesystem::path bin;  // of megatron_index: the file that it describes

    bool holds_ids() const { return format != Format::text && format != Format::json_lines && format != Format::parquet; }
};

// Files of one kind that were left out of folders.
struct LeftOut {
    std::string what, remedy;  // as FileFormat has them, for the first
    std::string first;
    int64_t files = 0;
};

struct Inputs {
    std::vector<Input> files;  // in the order of the inputs, inside one by name
    std::vector<LeftOut> left_out;
    int64_t skipped_binary = 0;  // all files of left_out
    int64_t skipped_empty = 0;
    int64_t skipped_hidden = 0;
    int64_t skipped_repeated = 0;
    int64_t skipped_other = 0;  // broken links, sockets, devices
};

// takes: a .bin without a header, inside a folder, is taken as ids. Named by the user it always is.
enum class RawIds { leave_out, take };

// Errors: data.no_input (no path named), data.input_missing, data.input_unreadable (named, and not read: why, and what to do),
// data.no_text, data.file_unreadable.
Inputs find_inputs(const std::vector<std::filesystem::path>& inputs, RawIds raw_ids = RawIds::leave_out);

}  // namespace lockstep::data
