// What the fuzz targets share. A parser of a user's file accepts the bytes or throws UserError. Any other exception, a crash, a
// finding of a sanitizer, a hang or more than 2 GB of memory is a defect. A target is linked alone under libFuzzer
// (libfuzzer.cpp); the usual tests have all of them and feed them their seeds (seeds_test.cpp).
#pragma once

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace lockstep::fuzz {

struct Target {
    std::string name;  // of its file (NAME_fuzz.cpp) and of its folder in seeds/
    std::function<void(std::string_view bytes)> parse;
};

// Those of this program, in no order.
std::vector<Target>& targets();

// One stands in each NAME_fuzz.cpp.
struct Declare {
    Declare(const char* name, std::function<void(std::string_view bytes)> parse) {
        targets().push_back({name, std::move(parse)});
    }
};

template <class F>
void accepts_or_refuses(const F& parse) {
    try {
        parse();
    } catch (const UserError&) {
    }
}

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
    std::string path() const { return path_.string(); }
    std::string path(const std::string& name) const { return (path_ / name).string(); }
    void write(const std::string& name, std::string_view bytes) const;
    // Several files in one input: each stands under a line "== NAME". Those of `names` that the input has not are removed; other
    // names are passed over. The names that were written, in their order.
    std::vector<std::string> write_all(std::string_view bytes, std::initializer_list<const char*> names) const;

private:
    std::filesystem::path path_;
};

}  // namespace lockstep::fuzz
