#include "data/file_io.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

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

AtomicFile::AtomicFile(std::filesystem::path file) : file_(std::move(file)), partial_(file_.string() + ".partial") {
    descriptor_ = ::open(partial_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("cannot create");
}

AtomicFile::~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!published_) ::unlink(partial_.c_str());
}

void AtomicFile::fail(const std::string& what) const {
    throw UserError("data.write_failed", file_.string(),
                    fmt::format("{} {}: {}. Check free space and permissions of {}.", what, partial_.string(),
                                std::strerror(errno), partial_.parent_path().string()));
}

void AtomicFile::append(std::string_view bytes) {
    write_at(end_bytes_, bytes);
    end_bytes_ += static_cast<int64_t>(bytes.size());
}

void AtomicFile::write_at(int64_t offset_bytes, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset_bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail("cannot write");
        bytes.remove_prefix(written);
        offset_bytes += written;
    }
}

void AtomicFile::finish() {
    if (::fsync(descriptor_) != 0) fail("cannot make durable");
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot close");
}

void AtomicFile::publish() {
    ensure(descriptor_ < 0, "AtomicFile::publish: finish() comes first");
    if (::rename(partial_.c_str(), file_.c_str()) != 0) fail("cannot rename");
    published_ = true;
    // The new name is durable once its folder is; some file systems refuse this, and then there is nothing more to do.
    const std::filesystem::path folder = file_.has_parent_path() ? file_.parent_path() : ".";
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) return;
    ::fsync(descriptor);
    ::close(descriptor);
}

std::string hex_checksum(uint64_t checksum) { return fmt::format("{:016x}", checksum); }
std::string hex_checksum(std::string_view bytes) {
    return hex_checksum(static_cast<uint64_t>(XXH3_64bits(bytes.data(), bytes.size())));
}

}  // namespace lockstep::data
