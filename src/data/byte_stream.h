// The bytes of a file, unpacked on the way where it is compressed with gzip or zstd, in pieces: memory does not grow with the
// file. Several members or frames one behind another are one stream, as for `zcat` and `zstdcat`.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "data/file_io.h"

namespace lockstep::data {

enum class Packing { none, gzip, zstd };

class ByteStream {
public:
    // UserError data.file_unreadable.
    static std::unique_ptr<ByteStream> open(const std::filesystem::path& file, Packing packing);
    virtual ~ByteStream() = default;

    // The next bytes; 0 only at the end. UserError data.file_unreadable, data.compressed_damaged (also where the file ends
    // inside a member).
    virtual size_t read(std::span<char> out) = 0;
    // How much of the file itself has been read.
    int64_t file_bytes_done() const { return done_; }

protected:
    explicit ByteStream(const std::filesystem::path& path) : file_(path) {}
    size_t read_file(std::span<char> out) {
        const size_t got = file_.read(out);
        done_ += static_cast<int64_t>(got);
        return got;
    }
    const std::filesystem::path& path() const { return file_.path(); }

private:
    RegularFile file_;
    int64_t done_ = 0;
};

// The longest document, whatever its file: a line of JSON Lines, a file of text, a value of Parquet.
inline constexpr int64_t kLongestDocumentBytes = int64_t{1} << 30;
// UserError data.document_too_long. `what`: "it unpacks to", "line 3 is".
[[noreturn]] void refuse_long_document(const std::filesystem::path& file, const std::string& what, int64_t longest_bytes);

// All of a stream as one text: in memory if it is short, else in a temporary file that has no name and is mapped.
class Spool {
public:
    // UserError data.spool_unwritable, data.document_too_long, and those of the stream, which is one of `file`.
    Spool(ByteStream& stream, const std::filesystem::path& file, int64_t longest_bytes = kLongestDocumentBytes);
    std::string_view text() const { return mapped_.text().empty() ? std::string_view(memory_) : mapped_.text(); }

private:
    std::string memory_;
    MappedFile mapped_;
};

// Lines of a stream, without their ends ("\n" or "\r\n"), and without a byte order mark before the first.
class LineReader {
public:
    LineReader(ByteStream& stream, const std::filesystem::path& path, int64_t longest_bytes = kLongestDocumentBytes)
        : stream_(stream), path_(path), longest_bytes_(longest_bytes) {}
    // The view lives until the next call. UserError data.document_too_long.
    bool next(std::string_view& line);
    int64_t line_number() const { return line_number_; }  // of the line that next() gave, from 1

private:
    ByteStream& stream_;
    std::filesystem::path path_;
    int64_t longest_bytes_;
    std::string buffer_;
    size_t begin_ = 0, searched_ = 0;
    int64_t line_number_ = 0;
    bool at_end_ = false;
};

}  // namespace lockstep::data
