#include "data/byte_stream.h"

#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

constexpr size_t kChunkBytes = size_t{256} << 10;
constexpr size_t kSpoolBytes = size_t{64} << 20;

[[noreturn]] void damaged(const std::filesystem::path& file, const char* packing, const std::string& reason) {
    throw UserError("data.compressed_damaged", file.string(),
                    fmt::format("{} cannot be unpacked: {}. Test it with `{} -t {}`, and get it again.", file.string(), reason,
                                packing, file.string()));
}

class PlainStream : public ByteStream {
public:
    explicit PlainStream(const std::filesystem::path& path) : ByteStream(path) {}
    size_t read(std::span<char> out) override { return read_file(out); }
};

class GzipStream : public ByteStream {
public:
    explicit GzipStream(const std::filesystem::path& path) : ByteStream(path), in_(kChunkBytes) {
        constexpr int kGzipOnly = 16;
        ensure(inflateInit2(&z_, MAX_WBITS + kGzipOnly) == Z_OK, "GzipStream: zlib does not start");
    }
    ~GzipStream() override { inflateEnd(&z_); }

    size_t read(std::span<char> out) override {
        z_.next_out = reinterpret_cast<Bytef*>(out.data());
        z_.avail_out = static_cast<uInt>(out.size());
        while (z_.avail_out == out.size()) {
            if (z_.avail_in == 0 && !refill()) {
                if (inside_member_) damaged(path(), "gzip", "it ends in the middle");
                return 0;
            }
            if (!inside_member_ && is_padding()) continue;
            inside_member_ = true;
            const int result = inflate(&z_, Z_NO_FLUSH);
            if (result == Z_STREAM_END) {
                inside_member_ = false;
                inflateReset(&z_);
            } else if (result != Z_OK && result != Z_BUF_ERROR) {
                damaged(path(), "gzip", z_.msg != nullptr ? z_.msg : "it is damaged");
            }
        }
        return out.size() - z_.avail_out;
    }

private:
    bool refill() {
        z_.avail_in = static_cast<uInt>(read_file(in_));
        z_.next_in = reinterpret_cast<Bytef*>(in_.data());
        return z_.avail_in > 0;
    }
    // Zeros behind the last member, as tapes have them.
    bool is_padding() {
        if (!any_member_) return any_member_ = true, false;
        while (z_.avail_in > 0 && *z_.next_in == 0) ++z_.next_in, --z_.avail_in;
        return z_.avail_in == 0;
    }

    z_stream z_{};
    std::vector<char> in_;
    bool inside_member_ = false, any_member_ = false;
};

class ZstdStream : public ByteStream {
public:
    explicit ZstdStream(const std::filesystem::path& path) : ByteStream(path), in_(kChunkBytes) {
        constexpr int kLargestWindow = 31;  // bits, of `zstd --long=31`; the window takes memory as far as it is filled
        ensure(state_ != nullptr, "ZstdStream: zstd does not start");
        ensure(!ZSTD_isError(ZSTD_DCtx_setParameter(state_, ZSTD_d_windowLogMax, kLargestWindow)), "ZstdStream: no large window");
    }
    ~ZstdStream() override { ZSTD_freeDStream(state_); }

    size_t read(std::span<char> out) override {
        ZSTD_outBuffer to{out.data(), out.size(), 0};
        while (to.pos == 0) {
            // What zstd holds back comes first: it may have more to give without more input.
            if (from_.pos == from_.size && !holds_back_) {
                from_ = {in_.data(), read_file(in_), 0};
                if (from_.size == 0) {
                    if (inside_frame_) damaged(path(), "zstd", "it ends in the middle");
                    return 0;
                }
            }
            const size_t left = ZSTD_decompressStream(state_, &to, &from_);
            const ZSTD_ErrorCode error = ZSTD_getErrorCode(left);
            if (error == ZSTD_error_frameParameter_windowTooLarge || error == ZSTD_error_memory_allocation) refuse_window();
            if (ZSTD_isError(left)) damaged(path(), "zstd", ZSTD_getErrorName(left));
            inside_frame_ = left != 0;
            holds_back_ = to.pos == to.size && inside_frame_;
        }
        return to.pos;
    }

private:
    [[noreturn]] void refuse_window() const {
        throw UserError("data.compressed_damaged", path().string(),
                        fmt::format("{0} cannot be unpacked here: it was compressed with a window (zstd --long) that needs more "
                                    "memory than there is. Unpack it first: zstd -d --long=31 {0}",
                                    path().string()));
    }

    ZSTD_DStream* state_ = ZSTD_createDStream();
    std::vector<char> in_;
    ZSTD_inBuffer from_{nullptr, 0, 0};
    bool inside_frame_ = false, holds_back_ = false;
};

std::filesystem::path temporary_folder() {
    std::error_code error;
    const std::filesystem::path folder = std::filesystem::temp_directory_path(error);
    return error ? "/tmp" : folder;
}

[[noreturn]] void fail_spooling(const std::string& reason) {
    throw UserError("data.spool_unwritable", "TMPDIR",
                    fmt::format("a compressed text cannot be unpacked into a temporary file in {}: {}. Make room there, or name "
                                "another folder with TMPDIR.",
                                temporary_folder().string(), reason));
}

// A file without a name, gone when it is closed.
struct TemporaryFile {
    TemporaryFile() {
        std::string name = (temporary_folder() / "lockstep.XXXXXX").string();
        descriptor = ::mkstemp(name.data());
        if (descriptor < 0) fail_spooling(std::strerror(errno));
        ::unlink(name.c_str());
    }
    ~TemporaryFile() { ::close(descriptor); }
    void append(std::string_view text) {
        while (!text.empty()) {
            const ssize_t done = ::write(descriptor, text.data(), text.size());
            if (done < 0 && errno == EINTR) continue;
            if (done < 0) fail_spooling(std::strerror(errno));
            text.remove_prefix(static_cast<size_t>(done));
            bytes += static_cast<size_t>(done);
        }
    }
    int descriptor = -1;
    size_t bytes = 0;
};

}  // namespace

std::unique_ptr<ByteStream> ByteStream::open(const std::filesystem::path& file, Packing packing) {
    if (packing == Packing::gzip) return std::make_unique<GzipStream>(file);
    if (packing == Packing::zstd) return std::make_unique<ZstdStream>(file);
    return std::make_unique<PlainStream>(file);
}

void refuse_long_document(const std::filesystem::path& file, const std::string& what, int64_t longest_bytes) {
    throw UserError("data.document_too_long", "--longest-document",
                    fmt::format("{}: {} longer than {} MiB, the longest document. Split it (`split -C 500m` cuts text at ends of "
                                "lines), or raise --longest-document.",
                                file.string(), what, longest_bytes >> 20));
}

Spool::Spool(ByteStream& stream, const std::filesystem::path& path, int64_t longest_bytes) {
    std::vector<char> chunk(kChunkBytes);
    size_t got = 0;
    const auto require_short = [&](size_t bytes) {
        if (static_cast<int64_t>(bytes) > longest_bytes) refuse_long_document(path, "unpacked it is", longest_bytes);
    };
    while (memory_.size() < kSpoolBytes && (got = stream.read(chunk)) > 0) memory_.append(chunk.data(), got);
    require_short(memory_.size());
    if (memory_.size() < kSpoolBytes) return;
    TemporaryFile file;
    file.append(memory_);
    memory_ = {};
    while ((got = stream.read(chunk)) > 0) {
        file.append({chunk.data(), got});
        require_short(file.bytes);
    }
    mapped_ = MappedFile::map(file.descriptor, file.bytes, "a temporary file");
}

bool LineReader::next(std::string_view& line) {
    while (true) {
        const size_t end = buffer_.find('\n', searched_);
        if (end != std::string::npos || (at_end_ && begin_ < buffer_.size())) {
            const size_t stop = end != std::string::npos ? end : buffer_.size();
            line = std::string_view(buffer_).substr(begin_, stop - begin_);
            begin_ = searched_ = std::min(stop + 1, buffer_.size());
            ++line_number_;
            // Files that `cat` joined have several marks.
            line.remove_prefix(byte_order_mark_bytes(line));
            if (line.ends_with('\r')) line.remove_suffix(1);
            return true;
        }
        if (at_end_) return false;
        buffer_.erase(0, begin_);
        begin_ = 0;
        searched_ = buffer_.size();
        if (static_cast<int64_t>(buffer_.size()) > longest_bytes_)
            refuse_long_document(path_, fmt::format("line {} is", line_number_ + 1), longest_bytes_);
        buffer_.resize(searched_ + kChunkBytes);
        const size_t got = stream_.read({buffer_.data() + searched_, kChunkBytes});
        buffer_.resize(searched_ + got);
        at_end_ = got == 0;
    }
}

}  // namespace lockstep::data
