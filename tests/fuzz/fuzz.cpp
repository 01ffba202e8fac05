#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace lockstep::fuzz {

std::vector<Target>& targets() {
    static std::vector<Target> all;
    return all;
}

MemoryFile::MemoryFile(std::string_view bytes)
    : file_(::memfd_create("input", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(file_)) {
    ensure(file_ >= 0 && ::write(file_, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "memfd");
}
MemoryFile::~MemoryFile() { ::close(file_); }

MemoryFolder::MemoryFolder() {
    std::string name = "/dev/shm/lockstep-fuzz-XXXXXX";
    ensure(::mkdtemp(name.data()) != nullptr, "mkdtemp");
    path_ = name;
}
MemoryFolder::~MemoryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}
void MemoryFolder::write(const std::string& name, std::string_view bytes) const {
    std::ofstream(path_ / name, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

std::vector<std::string> MemoryFolder::write_all(std::string_view bytes, std::initializer_list<const char*> names) const {
    constexpr std::string_view kMark = "== ";
    for (const char* name : names) std::filesystem::remove(path_ / name);
    std::vector<std::string> written;
    while (bytes.starts_with(kMark)) {
        const size_t line = std::min(bytes.find('\n'), bytes.size());
        const std::string name(bytes.substr(kMark.size(), line - kMark.size()));
        bytes.remove_prefix(std::min(line + 1, bytes.size()));
        const size_t end = bytes.starts_with(kMark) ? 0 : bytes.find("\n== ");
        if (std::find(names.begin(), names.end(), name) != names.end()) {
            write(name, bytes.substr(0, end));
            written.push_back(name);
        }
        bytes.remove_prefix(end == std::string_view::npos ? bytes.size() : end == 0 ? 0 : end + 1);
    }
    return written;
}

}  // namespace lockstep::fuzz
