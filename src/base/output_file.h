// Files and folders that outlive a crash: written under a temporary name ending in ".partial", put on the disk, given their
// name, and the name put on the disk, in this order. So what has its final name is whole, and what is not whole says so.
// Everything that the system refuses is UserError file.cannot_write, with the path as key and the system's reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace lockstep {

constexpr std::string_view kPartial = ".partial";
std::filesystem::path partial(const std::filesystem::path& path);  // the temporary name

// A new file, or an old one emptied, or one that another process has made and that several write. What is written may be lost
// in a crash until close() has returned.
class OutputFile {
public:
    enum class Open { New, Existing };
    explicit OutputFile(std::filesystem::path path, Open how = Open::New);
    OutputFile(OutputFile&& other) noexcept;
    OutputFile& operator=(OutputFile&&) = delete;
    ~OutputFile();

    const std::filesystem::path& path() const { return path_; }
    void append(std::string_view bytes);
    // From several threads at the same time if their parts are disjoint.
    void write_at(int64_t offset_bytes, std::string_view bytes) const;
    // Lets the disk begin with what has been written, without waiting for it.
    void start_writing(int64_t offset_bytes, int64_t bytes) const;
    // Puts all of it on the disk (fsync).
    void close();

private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    int64_t end_bytes_ = 0;
};

// A file that nobody sees half written: <file>.partial until publish(). Without publish() the destructor removes it.
class AtomicFile {
public:
    // A file of that name is replaced; a folder, a device or a pipe is refused.
    explicit AtomicFile(std::filesystem::path file);
    AtomicFile(AtomicFile&& other) noexcept;
    AtomicFile& operator=(AtomicFile&&) = delete;
    ~AtomicFile();

    void append(std::string_view bytes) { out_.append(bytes); }
    void write_at(int64_t offset_bytes, std::string_view bytes) const { out_.write_at(offset_bytes, bytes); }
    void finish() { out_.close(); }  // on the disk, still under the temporary name
    void publish();                  // after finish()

private:
    std::filesystem::path file_;
    OutputFile out_;
    bool published_ = false;
};

// A file of these bytes, seen whole or not at all. Errors: those of AtomicFile.
void write_whole_file(const std::filesystem::path& file, std::string_view bytes);

// Makes a folder, and those above it, where they are not there.
void make_folder(const std::filesystem::path& folder);

// Puts the names in a folder on the disk; file systems that cannot are taken as they are.
void sync_folder(const std::filesystem::path& folder);

// Gives the file or folder partial(path), which must be on the disk, its name, and puts the name on the disk. An older folder
// of that name takes the temporary one in the same instant where the file system can, and is removed.
void publish(const std::filesystem::path& path);

// Removes what an interrupted writer has left in a folder (not below it): every name that ends in ".partial".
void remove_partial(const std::filesystem::path& folder);

// Holds a folder, made if need be, for one process until destroyed, or until the process ends in whatever way. UserError
// folder.in_use names the process that has it.
class FolderLock {
public:
    explicit FolderLock(const std::filesystem::path& folder);
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;
    ~FolderLock();
    static constexpr std::string_view kFile = ".lock";

private:
    int descriptor_ = -1;
};

}  // namespace lockstep
