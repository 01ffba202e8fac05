// Regular files, mapped into memory or read in pieces. Errors are UserErrors with the file's name and the system's reason. What
// is not a regular file (a folder, a named pipe, a device) is refused and never waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

// A descriptor of a regular file, open for reading. UserError data.file_unreadable.
class RegularFile {
public:
    explicit RegularFile(const std::filesystem::path& path);
    RegularFile(const RegularFile&) = delete;
    RegularFile& operator=(const RegularFile&) = delete;
    ~RegularFile();

    // The next bytes, as many as `out` takes; fewer only at the end of the file.
    size_t read(std::span<char> out);
    int descriptor() const { return descriptor_; }
    int64_t bytes() const { return bytes_; }
    const std::filesystem::path& path() const { return path_; }

private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    int64_t bytes_ = 0;
};

// A read-only mapping of a regular file. The file must not shrink while it is mapped (the system would end the process).
class MappedFile {
public:
    // UserError data.file_unreadable.
    static MappedFile open(const std::filesystem::path& file);
    // The first `bytes` of a file that is open; the mapping outlives the descriptor. `name` is for the error.
    static MappedFile map(int descriptor, size_t bytes, const std::filesystem::path& name);

    MappedFile() = default;
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    std::string_view text() const { return {data_, bytes_}; }

private:
    const char* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace lockstep::data
