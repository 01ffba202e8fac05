#include "data/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace lockstep::data {
namespace {

[[noreturn]] void fail_reading(const std::filesystem::path& file, const std::string& reason) {
    throw UserError("data.file_unreadable", file.string(),
                    fmt::format("cannot read {}: {}. Check the path and its permissions.", file.string(), reason));
}

}  // namespace

RegularFile::RegularFile(const std::filesystem::path& path) : path_(path) {
    // Non-blocking, so that a named pipe is refused below instead of waited for.
    descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) fail_reading(path, std::strerror(errno));
    struct stat status {};
    std::string reason;
    if (::fstat(descriptor_, &status) != 0) reason = std::strerror(errno);
    else if (!S_ISREG(status.st_mode)) reason = "it is not a regular file";
    if (!reason.empty()) {
        ::close(descriptor_);
        fail_reading(path, reason);
    }
    bytes_ = status.st_size;
}

RegularFile::~RegularFile() { ::close(descriptor_); }

size_t RegularFile::read(std::span<char> out) {
    size_t done = 0;
    while (done < out.size()) {
        const ssize_t got = ::read(descriptor_, out.data() + done, out.size() - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail_reading(path_, std::strerror(errno));
        if (got == 0) break;
        done += static_cast<size_t>(got);
    }
    return done;
}

MappedFile MappedFile::open(const std::filesystem::path& path) {
    const RegularFile file(path);
    return map(file.descriptor(), static_cast<size_t>(file.bytes()), path);
}

MappedFile MappedFile::map(int descriptor, size_t bytes, const std::filesystem::path& name) {
    MappedFile mapped;
    if (bytes == 0) return mapped;
    void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (data == MAP_FAILED) fail_reading(name, std::strerror(errno));
    mapped.data_ = static_cast<const char*>(data);
    mapped.bytes_ = bytes;
    return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
}

MappedFile::~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<char*>(data_), bytes_);
}

}  // namespace lockstep::data
