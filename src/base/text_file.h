// A file read whole. What cannot be read is for the caller to say, in words that fit what the file was for.
#pragma once

#include <filesystem>
#include <string>

namespace lockstep {

struct TextFile {
    std::string text;    // all of its bytes, where `reason` is empty
    std::string reason;  // the system's, why it cannot be read

    bool is_readable() const { return reason.empty(); }
};

// Never throws for what the system refuses. Folders, devices and files of more than 1 GiB are refused. A pipe is read to its end
// if somebody writes to it, and refused if not.
TextFile read_text_file(const std::filesystem::path& path);

}  // namespace lockstep
