// Files as this folder needs them: read whole by memory mapping, written so that a reader never sees half a file.
// All errors are UserErrors with the file's name and the system's reason.
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

// Writes <file>.partial; finish() makes it durable, publish() renames it to <file>. Without publish() the destructor removes it,
// so nothing half written remains after an error. Every call throws UserError data.write_failed on failure.
class AtomicFile {
public:
    explicit AtomicFile(std::filesystem::path file);
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile();

    void append(std::string_view bytes);
    // Overwrites bytes written before (a header whose counts were not known yet).
    void write_at(int64_t offset_bytes, std::string_view bytes);
    void finish();
    void publish();

private:
    [[noreturn]] void fail(const std::string& what) const;

    std::filesystem::path file_, partial_;
    int descriptor_ = -1;
    int64_t end_bytes_ = 0;
    bool published_ = false;
};

// XXH3-64 as 16 hexadecimal digits, as `xxhsum -H3` prints it.
std::string hex_checksum(uint64_t checksum);
std::string hex_checksum(std::string_view bytes);

}  // namespace lockstep::data
