#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace lockstep::fuzz {

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

}  // namespace lockstep::fuzz
