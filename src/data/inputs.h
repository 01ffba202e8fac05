// Finds the files under the paths a user names, and what each of them is.
// Folders are read recursively, sorted by name. Links are followed, but a file or folder reached a second time is taken once,
// so a cycle ends. Hidden entries (".git") inside folders are left out. A file that the user names himself is read or refused;
// what cannot be read inside a folder is left out and counted. Whether text is JSON is settled by its content (json_shape.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/file_format.h"
#include "data/json_value.h"

namespace lockstep::data {

struct Input {
    std::filesystem::path path;
    std::string name;  // relative to the folder that holds the input, with '/': "include/stdio.h"; decides the held-out split
    int64_t bytes = 0;
    Format format = Format::text;  // megatron_index: `path` is the .idx
    Packing packing = Packing::none;
    std::filesystem::path bin;  // of megatron_index: the file that it describes
    // It is JSON by its content, which neither its name nor two objects on the first lines of an "a.json" say.
    bool is_json_by_content = false;

    bool holds_ids() const {
        return format == Format::npy || format == Format::llm_c || format == Format::megatron_index || format == Format::raw_ids;
    }
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
    std::vector<LeftOut> taken_as_text;  // that look like JSON
    int64_t skipped_binary = 0;          // all files of left_out
    int64_t skipped_empty = 0;
    int64_t skipped_hidden = 0;
    int64_t skipped_repeated = 0;
    int64_t skipped_other = 0;  // broken links, sockets, devices
};

// take: a file of ids without a header, inside a folder, is taken as ids. Named by the user a .bin always is.
enum class RawIds { leave_out, take };
// What text is: JSON if its content is JSON that has the field, or if its name promises it; text; or JSON in any case.
enum class TextFormat { by_content, text, json };

struct FindOptions {
    RawIds raw_ids = RawIds::leave_out;
    int id_bytes = 0;  // the width of ids without a header; 0: not said
    TextFormat text_format = TextFormat::by_content;
    FieldPath field{"text"};       // of JSON
    bool skips_bad_lines = false;  // text with objects of JSON among its first lines is then JSON Lines
};

// Errors: data.no_input (no path named), data.input_missing, data.input_unreadable (named, and not read: why, and what to do),
// data.no_text, data.file_unreadable.
Inputs find_inputs(const std::vector<std::filesystem::path>& inputs, const FindOptions& options = {});

}  // namespace lockstep::data
