// A file read whole. What cannot be read is for the caller to say, in words that fit what the file was for.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep {

struct TextFile {
    std::string text;    // all of its bytes, where `reason` is empty
    std::string reason;  // the system's, why it cannot be read

    bool is_readable() const { return reason.empty(); }
};

// What Git LFS leaves in place of a file that was not fetched: how it begins, what it is and what to do.
inline constexpr std::string_view kLfsBegin = "version https://git-lfs", kLfsWhat = "a pointer of Git LFS, not the file itself",
                                  kLfsRemedy = "Get the file: git lfs pull";
inline bool is_lfs_pointer(std::string_view text) { return text.starts_with(kLfsBegin); }
// A message that names `file`.
std::string lfs_pointer_text(std::string_view file);

// Pipes: Read is for a file that a person named (`check /dev/stdin`): a pipe is read to its end if somebody writes to it, and
// refused if not. Refused is for a file that a command finds in a folder, where nothing may be waited for.
enum class Pipes { Read, Refused };
// Never throws for what the system refuses. Folders, devices, sockets and files of more than 1 GiB are refused. Of a file that
// grows what was there at first is read.
TextFile read_text_file(const std::filesystem::path& path, Pipes pipes = Pipes::Read);

}  // namespace lockstep
