#include "checkpoint/pieces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/output_file.h"
#include "base/round.h"

namespace lockstep::checkpoint {
namespace {

// Small enough that what was filled and hashed is still in the cache when it is written, large enough for the disk.
constexpr int64_t kPieceBytes = 1 << 20;
// The disk begins with this much at a time while the next pieces are made.
constexpr int64_t kWriteAheadBytes = 32 << 20;

[[noreturn]] void cannot_read(const std::string& path, const std::string& why) {
    throw UserError("checkpoint.cannot_read", path, fmt::format("cannot read {}: {}.", path, why));
}

}  // namespace

namespace {

// f(begin, count, room) for every piece; the disk is asked to begin with what f has written.
void for_each_piece(const OutputFile& out, int64_t bytes, FunctionRef<void(int64_t, int64_t, char*)> f) {
    std::vector<char> piece(static_cast<size_t>(kPieceBytes));
    int64_t started = 0;
    for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
        const int64_t count = std::min(kPieceBytes, bytes - begin);
        f(begin, count, piece.data());
        if (begin + count - started < kWriteAheadBytes) continue;
        out.start_writing(started, begin + count - started);
        started = begin + count;
    }
}

PieceSums write_alone(const std::string& path, int64_t bytes, FillBytes fill) {
    PieceSums sums{bytes, kPieceBytes, {}};
    OutputFile out(path);
    for_each_piece(out, bytes, [&](int64_t begin, int64_t count, char* piece) {
        fill(begin, count, piece);
        const std::string_view view(piece, static_cast<size_t>(count));
        sums.xxh3.push_back(checksum(view));
        out.write_at(begin, view);
    });
    out.close();
    return sums;
}

// A piece may hold bytes of several processes, so its checksum is taken from what has been written:
// each process reads its share.
PieceSums write_together(const std::string& path, int64_t bytes, FillBytes fill, const Writers& writers, OwnBytes own) {
    writers.together([&] {
        if (writers.is_first()) OutputFile(path).close();
    });
    writers.together([&] {
        OutputFile out(path, OutputFile::Open::Existing);
        for_each_piece(out, bytes, [&](int64_t begin, int64_t count, char* piece) {
            own(begin, count, [&](int64_t at, int64_t n) {
                fill(at, n, piece);
                out.write_at(at, {piece, static_cast<size_t>(n)});
            });
        });
        out.close();
    });
    const int64_t pieces = ceil_div(bytes, kPieceBytes), process = writers.group->process(),
                  processes = writers.group->processes();
    std::vector<uint64_t> shares;
    writers.together([&] {
        const PieceReader reader(path, PieceSums{bytes, kPieceBytes, {}});
        std::vector<char> piece(static_cast<size_t>(kPieceBytes));
        for (int64_t k = pieces * process / processes; k < pieces * (process + 1) / processes; ++k) {
            const int64_t count = std::min(kPieceBytes, bytes - k * kPieceBytes);
            reader.read_unchecked(k * kPieceBytes, count, piece.data());
            shares.push_back(checksum({piece.data(), static_cast<size_t>(count)}));
        }
    });
    PieceSums sums{bytes, kPieceBytes, {}};
    const std::string_view view(reinterpret_cast<const char*>(shares.data()), shares.size() * sizeof shares[0]);
    for (const std::string& share : writers.group->exchange(std::string(view), writers.channel)) {
        const size_t at = sums.xxh3.size();
        sums.xxh3.resize(at + share.size() / sizeof(uint64_t));
        std::memcpy(sums.xxh3.data() + at, share.data(), share.size());
    }
    return sums;
}

}  // namespace

PieceSums write_pieces(const std::string& path, int64_t bytes, FillBytes fill, const Writers& writers, OwnBytes own) {
    return writers.are_several() ? write_together(path, bytes, fill, writers, own) : write_alone(path, bytes, fill);
}

PieceReader::PieceReader(std::string path, std::optional<PieceSums> sums) : path_(std::move(path)), sums_(std::move(sums)) {
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // without it the open of a named pipe waits for a writer
    if (file_ < 0) cannot_read(path_, std::strerror(errno));
    struct stat status = {};
    const std::string error = ::fstat(file_, &status) != 0 ? std::strerror(errno)
                              : !S_ISREG(status.st_mode)   ? "it is no regular file"
                                                           : "";
    file_bytes_ = status.st_size;
    if (error.empty() && (!sums_ || sums_->bytes == file_bytes_)) return;
    ::close(std::exchange(file_, -1));
    if (!error.empty()) cannot_read(path_, error);
    throw UserError(
        "checkpoint.damaged", path_,
        fmt::format("{} has {} bytes, but {} were written: it was cut off or changed. Take another copy or an earlier "
                    "checkpoint.",
                    path_, file_bytes_, sums_->bytes));
}

PieceReader::PieceReader(PieceReader&& other) noexcept
    : path_(std::move(other.path_)),
      sums_(std::move(other.sums_)),
      file_(std::exchange(other.file_, -1)),
      file_bytes_(other.file_bytes_) {}

PieceReader::~PieceReader() {
    if (file_ >= 0) ::close(file_);
}

void PieceReader::read_unchecked(int64_t begin, int64_t count, char* to) const {
    for (int64_t done = 0; done < count;) {
        const ssize_t got = ::pread(file_, to + done, static_cast<size_t>(count - done), begin + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) cannot_read(path_, std::strerror(errno));
        if (got == 0) {
            throw UserError("checkpoint.truncated", path_,
                            fmt::format("{} became shorter while it was read: {} of {} bytes from byte {} on. Is another job "
                                        "writing it?",
                                        path_, done, count, begin));
        }
        done += got;
    }
}

void PieceReader::check(int64_t piece, const char* bytes, int64_t count) const {
    const uint64_t found = checksum({bytes, static_cast<size_t>(count)}), wanted = sums_->xxh3[static_cast<size_t>(piece)];
    if (found == wanted) return;
    const int64_t begin = piece * sums_->piece_bytes;
    throw UserError("checkpoint.damaged", path_,
                    fmt::format("{}: the bytes {} to {} have changed since they were written (checksum {}, written {}). Take "
                                "another copy or an earlier checkpoint.",
                                path_, begin, begin + count - 1, hex_checksum(found), hex_checksum(wanted)));
}

void PieceReader::read(int64_t begin, int64_t count, void* to, Cursor& cursor) const {
    char* out = static_cast<char*>(to);
    if (!sums_) return read_unchecked(begin, count, out);
    ensure(begin >= 0 && begin + count <= file_bytes_, "PieceReader::read: past the file's end");
    for (const int64_t end = begin + count; begin < end;) {
        const int64_t piece = begin / sums_->piece_bytes, first = piece * sums_->piece_bytes;
        const int64_t bytes = std::min(sums_->piece_bytes, file_bytes_ - first);
        const int64_t take = std::min(end, first + bytes) - begin;
        if (take == bytes) {  // the whole piece: straight to where it is wanted
            read_unchecked(first, bytes, out);
            check(piece, out, bytes);
        } else {
            if (cursor.reader != this || cursor.piece != piece) {
                cursor.bytes.resize(static_cast<size_t>(bytes));
                cursor.piece = -1;
                read_unchecked(first, bytes, cursor.bytes.data());
                check(piece, cursor.bytes.data(), bytes);
                cursor.reader = this, cursor.piece = piece;
            }
            std::memcpy(out, cursor.bytes.data() + (begin - first), static_cast<size_t>(take));
        }
        begin += take;
        out += take;
    }
}

std::string read_whole(const std::string& path, int64_t most_bytes) {
    const PieceReader reader(path, std::nullopt);
    if (reader.file_bytes() > most_bytes)
        cannot_read(
            path, fmt::format("it has {} bytes, and {} are the most that such a file may have", reader.file_bytes(), most_bytes));
    std::string bytes(static_cast<size_t>(reader.file_bytes()), '\0');
    reader.read_unchecked(0, reader.file_bytes(), bytes.data());
    return bytes;
}

bool is_plain_file_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
}

std::string shortened(const std::string& name) {
    constexpr size_t kLongest = 200;
    return name.size() <= kLongest ? name : fmt::format("{}.. ({} bytes)", name.substr(0, kLongest), name.size());
}

}  // namespace lockstep::checkpoint
