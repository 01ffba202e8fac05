// What the fuzz targets share. A parser of a user's file accepts the bytes or throws UserError. Any other exception, a crash, a
// finding of a sanitizer, a hang or more than 2 GB of memory is a defect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace lockstep::fuzz {

inline std::string_view text_of(const uint8_t* data, size_t size) { return {reinterpret_cast<const char*>(data), size}; }

// The bytes as a file of this process.
class MemoryFile {
public:
    explicit MemoryFile(std::string_view bytes);
    ~MemoryFile();
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    const std::string& path() const { return path_; }

private:
    int file_;
    std::string path_;
};

// A folder of this process in memory, empty at first, removed when the process ends normally.
class MemoryFolder {
public:
    MemoryFolder();
    ~MemoryFolder();
    MemoryFolder(const MemoryFolder&) = delete;
    MemoryFolder& operator=(const MemoryFolder&) = delete;
    void write(const std::string& name, std::string_view bytes) const;
    std::string path() const { return path_.string(); }

private:
    std::filesystem::path path_;
};

template <class F>
int accepts_or_refuses(const F& parse) {
    try {
        parse();
    } catch (const UserError&) {
    }
    return 0;
}

}  // namespace lockstep::fuzz
