// A file as pieces of a fixed size, each with its XXH3-64 checksum: written front to back, read in any order, and no byte is
// handed out that was not checked. Checksums are next to the file (in a manifest), so the file itself keeps its plain format.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "comm/process_group.h"

namespace lockstep::checkpoint {

struct PieceSums {
    int64_t bytes = 0;  // of the file
    int64_t piece_bytes = 0;
    std::vector<uint64_t> xxh3;  // by piece; the last may be shorter
    bool operator==(const PieceSums&) const = default;
};
using FileSums = std::map<std::string, PieceSums>;  // by name of file

// The writers of a file: only this process, or a process group in a folder that all its processes see, each process its own
// bytes. The processes make the same calls, and all get the first error of any. A thread other than the group's main thread
// uses another channel.
struct Writers {
    comm::ProcessGroup* group = nullptr;
    int channel = 0;

    bool are_several() const { return group && !group->is_alone(); }
    // The process that does what is done once.
    bool is_first() const { return !group || group->is_first(); }
    void together(FunctionRef<void()> f) const { group ? group->together(f, channel) : f(); }
};

// Writes a file of `bytes` bytes and puts it on the disk. fill(begin, count, to) supplies its bytes, in order and, where this
// process is the only writer, piece by piece; of several each is asked for those stretches of a piece that own(begin, count, f)
// calls f with. UserError file.cannot_write.
using FillBytes = FunctionRef<void(int64_t begin, int64_t count, char* to)>;
using OfStretch = FunctionRef<void(int64_t begin, int64_t count)>;
using OwnBytes = FunctionRef<void(int64_t begin, int64_t count, OfStretch f)>;
PieceSums write_pieces(const std::string& path, int64_t bytes, FillBytes fill, const Writers& writers, OwnBytes own);

class PieceReader {
public:
    // Without sums nothing is checked. UserError checkpoint.cannot_read, also for what is no regular file (a named pipe would
    // be waited for, a device has no end); checkpoint.damaged where the file has another size.
    PieceReader(std::string path, std::optional<PieceSums> sums);
    PieceReader(PieceReader&& other) noexcept;
    PieceReader& operator=(PieceReader&&) = delete;
    ~PieceReader();

    // The piece that was read last, so that small reads in order read and check each piece once. One for each thread; a reader
    // lives as long as the cursors that it was given.
    struct Cursor {
        const PieceReader* reader = nullptr;
        int64_t piece = -1;
        std::vector<char> bytes;
    };

    const std::string& path() const { return path_; }
    int64_t file_bytes() const { return file_bytes_; }
    // UserError checkpoint.damaged, checkpoint.truncated. From several threads.
    void read(int64_t begin, int64_t count, void* to, Cursor& cursor) const;
    void read_unchecked(int64_t begin, int64_t count, char* to) const;

private:
    void check(int64_t piece, const char* bytes, int64_t count) const;

    std::string path_;
    std::optional<PieceSums> sums_;
    int file_ = -1;
    int64_t file_bytes_ = 0;
};

// All bytes of a file of at most `most_bytes`, unchecked. UserError as above.
std::string read_whole(const std::string& path, int64_t most_bytes);

// Is it a file's name without any folder? What a file of a folder names is opened only if it is next to it.
bool is_plain_file_name(const std::string& name);
// A name from outside as a message shows it: a long one is cut.
std::string shortened(const std::string& name);

}  // namespace lockstep::checkpoint
