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

MappedFile MappedFile::open(const std::filesystem::path& file) {
    // Non-blocking, so that a named pipe is refused below instead of waited for.
    const int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail_reading(file, std::strerror(errno));
    struct stat status {};
    MappedFile mapped;
    std::string reason;
    if (::fstat(descriptor, &status) != 0) {
        reason = std::strerror(errno);
    } else if (!S_ISREG(status.st_mode)) {
        reason = "it is not a regular file";
    } else if (status.st_size > 0) {
        void* data = ::mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, descriptor, 0);
        if (data == MAP_FAILED) {
            reason = std::strerror(errno);
        } else {
            mapped.data_ = static_cast<const char*>(data);
            mapped.bytes_ = status.st_size;
        }
    }
    ::close(descriptor);
    if (!reason.empty()) fail_reading(file, reason);
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
