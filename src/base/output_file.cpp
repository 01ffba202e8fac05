#include "base/output_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const fs::path& path, std::string_view call, int error) {
    throw UserError("file.cannot_write", path.string(),
                    fmt::format("cannot write {}: {} failed: {}. Choose a folder that exists, is writable and has room.",
                                path.string(), call, std::strerror(error)));
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : fs::path("."); }

std::string this_process() {
    char host[256] = "?";
    gethostname(host, sizeof host - 1);
    return fmt::format("process {} on {}", getpid(), host);
}

}  // namespace

fs::path partial(const fs::path& path) { return path.string() + std::string(kPartial); }

OutputFile::OutputFile(fs::path path, Open how) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC | (how == Open::New ? O_CREAT | O_TRUNC : 0), 0644);
    if (descriptor_ < 0) cannot_write(path_, "open", errno);
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), end_bytes_(other.end_bytes_) {}

OutputFile::~OutputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::append(std::string_view bytes) {
    write_at(end_bytes_, bytes);
    end_bytes_ += static_cast<int64_t>(bytes.size());
}

void OutputFile::write_at(int64_t offset_bytes, std::string_view bytes) const {
    while (!bytes.empty()) {
        const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset_bytes);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) cannot_write(path_, "write", errno);
        bytes.remove_prefix(static_cast<size_t>(written));
        offset_bytes += written;
    }
}

void OutputFile::start_writing(int64_t offset_bytes, int64_t bytes) const {
    ::sync_file_range(descriptor_, offset_bytes, bytes, SYNC_FILE_RANGE_WRITE);  // advice: close() is what counts
}

void OutputFile::close() {
    ensure(descriptor_ >= 0, "an OutputFile is closed once");
    if (::fsync(descriptor_) != 0) cannot_write(path_, "fsync", errno);
    if (::close(std::exchange(descriptor_, -1)) != 0) cannot_write(path_, "close", errno);
}

namespace {

// Its name goes to a new file, so a folder or a device of that name would be lost.
fs::path replaceable(fs::path file) {
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (fs::exists(status) && !fs::is_regular_file(status))
        throw UserError("file.cannot_write", file.string(),
                        fmt::format("cannot write {}: it is {}. Name a file.", file.string(),
                                    fs::is_directory(status) ? "a folder" : "a device or a pipe"));
    return file;
}

}  // namespace

AtomicFile::AtomicFile(fs::path file) : file_(replaceable(std::move(file))), out_(partial(file_)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : file_(std::move(other.file_)), out_(std::move(other.out_)), published_(std::exchange(other.published_, true)) {}

AtomicFile::~AtomicFile() {
    if (!published_) ::unlink(partial(file_).c_str());
}

void AtomicFile::publish() {
    ensure(!published_, "an AtomicFile is published once");
    lockstep::publish(file_);
    published_ = true;
}

void write_whole_file(const std::filesystem::path& file, std::string_view bytes) {
    AtomicFile out(file);
    out.append(bytes);
    out.finish();
    out.publish();
}

void make_folder(const fs::path& folder) {
    std::error_code error;
    fs::create_directories(folder, error);
    if (error) cannot_write(folder, "mkdir", error.value());
}

void sync_folder(const fs::path& folder) {
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) cannot_write(folder, "open", errno);
    const int error = ::fsync(descriptor) == 0 ? 0 : errno;
    ::close(descriptor);
    if (error != 0 && error != EINVAL) cannot_write(folder, "fsync", error);
}

void publish(const fs::path& path) {
    const fs::path from = partial(path);
    std::error_code ignored;
    const bool replaces = fs::is_directory(path, ignored);  // rename() itself replaces files, but no folder that is not empty
    if (replaces && ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) != 0) {
        if (errno != EINVAL && errno != ENOSYS) cannot_write(path, "rename", errno);
        fs::remove_all(path, ignored);  // the file system cannot exchange names
        if (::rename(from.c_str(), path.c_str()) != 0) cannot_write(path, "rename", errno);
    } else if (!replaces && ::rename(from.c_str(), path.c_str()) != 0) {
        cannot_write(path, "rename", errno);
    }
    sync_folder(folder_of(path));
    if (replaces) fs::remove_all(from, ignored);
}

void remove_partial(const fs::path& folder) {
    std::error_code ignored;
    std::vector<fs::path> left;
    for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) {
        if (e.path().filename().string().ends_with(kPartial)) left.push_back(e.path());
    }
    for (const fs::path& path : left) fs::remove_all(path, ignored);
}

FolderLock::FolderLock(const fs::path& folder) {
    make_folder(folder);
    const fs::path file = folder / kFile;
    descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor_ < 0) cannot_write(file, "open", errno);
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
        const std::string owner = this_process();
        if (::ftruncate(descriptor_, 0) == 0 && ::pwrite(descriptor_, owner.data(), owner.size(), 0) > 0) return;
        const int why = errno;
        ::close(descriptor_);
        cannot_write(file, "write", why);
    }
    char owner[512] = "";
    const ssize_t got = ::pread(descriptor_, owner, sizeof owner - 1, 0);
    ::close(descriptor_);
    throw UserError("folder.in_use", folder.string(),
                    fmt::format("{} is in use by {}: wait for it to end, or choose another folder", folder.string(),
                                got > 0 ? owner : "another process"));
}

FolderLock::~FolderLock() { ::close(descriptor_); }

}  // namespace lockstep
