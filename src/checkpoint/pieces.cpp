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

[[noreturn]] void cannot_read(const std::string& path, int error) {
    throw UserError("checkpoint.cannot_read", path, fmt::format("cannot read {}: {}.", path, std::strerror(error)));
}

}  // namespace

PieceSums write_pieces(const std::string& path, int64_t bytes, FillBytes fill) {
    PieceSums sums{bytes, kPieceBytes, {}};
    OutputFile out(path);
    std::vector<char> piece(static_cast<size_t>(kPieceBytes));
    int64_t started = 0;
    for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
        const int64_t count = std::min(kPieceBytes, bytes - begin);
        fill(begin, count, piece.data());
        const std::string_view view(piece.data(), static_cast<size_t>(count));
        sums.xxh3.push_back(checksum(view));
        out.write_at(begin, view);
        if (begin + count - started >= kWriteAheadBytes) {
            out.start_writing(started, begin + count - started);
            started = begin + count;
        }
    }
    out.close();
    return sums;
}

PieceReader::PieceReader(std::string path, std::optional<PieceSums> sums) : path_(std::move(path)), sums_(std::move(sums)) {
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) cannot_read(path_, errno);
    struct stat status = {};
    const int error = ::fstat(file_, &status) == 0 ? 0 : errno;
    file_bytes_ = status.st_size;
    if (error == 0 && (!sums_ || sums_->bytes == file_bytes_)) return;
    ::close(std::exchange(file_, -1));
    if (error != 0) cannot_read(path_, error);
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
        if (got < 0) cannot_read(path_, errno);
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
                cursor.bytes.resize(static_cast<size_t>(sums_->piece_bytes));
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

}  // namespace lockstep::checkpoint
