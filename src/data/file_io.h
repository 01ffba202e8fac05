// Files read whole by memory mapping. Errors are UserErrors with the file's name and the system's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace lockstep::data {

// A read-only mapping of a regular file. The file must not shrink while it is mapped (the system would end the process).
class MappedFile {
public:
    // UserError data.file_unreadable.
    static MappedFile open(const std::filesystem::path& file);

    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;
    ~MappedFile();

    std::string_view text() const { return {data_, bytes_}; }

private:
    MappedFile() = default;
    const char* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace lockstep::data
