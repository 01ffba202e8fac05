// The tokens of many documents in one memory-mapped file.
// docs/token_files.md describes the layout. Here: a header of 64 bytes (TokenFileHeader); the tokens as u16 or u32, padded with
// zeros to 8 bytes; the index of each document's first token, u64. A document ends with the separator, but for rows of a table.
// A TokenFile is immutable: any number of threads may read one. Nothing is read outside the file, whatever it holds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/output_file.h"
#include "data/file_io.h"

namespace lockstep::data {

struct TokenFileHeader {
    char magic[8];         // "LSTOKENS"
    uint32_t version;      // kTokenFileVersion
    uint32_t token_bytes;  // 2 or 4
    uint64_t tokens;       // separators included
    uint64_t documents;
    uint32_t vocab_size;
    uint32_t separator;
    uint64_t checksum;         // XXH3-64 of all that follows the header; 0: none
    uint64_t reserved;         // zero
    uint64_t header_checksum;  // XXH3-64 of the fields above; 0: none
};
static_assert(sizeof(TokenFileHeader) == 64);

inline constexpr uint32_t kTokenFileVersion = 1;

// header: header and length, which takes microseconds. fast: of files below 256 MiB also the checksum and the index of
// documents, which reads every byte. full: these always.
enum class Verify { header, fast, full };

inline constexpr int64_t kFastVerifyBytes = int64_t{256} << 20;

// The header of a token file whose bytes are all there. `path` is for the message. Errors: those of TokenFile::open but
// data.file_unreadable; of data.file_damaged, those of the header.
TokenFileHeader parse_token_header(std::string_view file, const std::filesystem::path& path);

class TokenFile {
public:
    // Errors: data.file_unreadable, data.not_token_file, data.token_file_version, data.file_truncated, data.file_damaged,
    // data.no_tokens.
    static TokenFile open(const std::filesystem::path& file, Verify verify = Verify::fast);

    int64_t bytes() const { return static_cast<int64_t>(file_.text().size()); }
    int64_t tokens() const { return static_cast<int64_t>(header_.tokens); }
    int64_t documents() const { return static_cast<int64_t>(header_.documents); }
    int vocab_size() const { return static_cast<int>(header_.vocab_size); }
    int32_t separator() const { return static_cast<int32_t>(header_.separator); }
    const TokenFileHeader& header() const { return header_; }
    const std::filesystem::path& path() const { return path_; }

    // Copies tokens [first, first + out.size()), which must exist. UserError data.file_damaged where one is outside the
    // vocabulary.
    void read(int64_t first, std::span<int32_t> out) const;
    // The document's first token, and one past its last. UserError data.file_damaged where the index does not ascend.
    int64_t document_begin(int64_t document) const;
    int64_t document_end(int64_t document) const;
    // The checksum and the index. UserError data.file_damaged.
    void verify() const;

private:
    TokenFile(MappedFile file, std::filesystem::path path);

    MappedFile file_;
    std::filesystem::path path_;
    TokenFileHeader header_{};
    const char* token_data_ = nullptr;
    const uint64_t* starts_ = nullptr;
};

// Writes a token file under a temporary name. finish() completes it, publish() gives it its name; without publish() nothing
// remains. All throw UserError file.cannot_write.
class TokenFileWriter {
public:
    TokenFileWriter(const std::filesystem::path& file, int vocab_size, int32_t separator);
    ~TokenFileWriter();

    // A document in one or several runs of tokens, then its end, which writes the separator.
    void append(std::span<const int32_t> tokens);
    void end_document();
    void end_document_as_it_is();  // without a separator
    int64_t tokens() const { return static_cast<int64_t>(header_.tokens); }
    TokenFileHeader finish();
    void publish();

private:
    void put(std::string_view bytes);
    void flush();

    struct ChecksumState;
    AtomicFile out_;
    std::unique_ptr<ChecksumState> checksum_;
    TokenFileHeader header_{};
    std::vector<uint64_t> starts_;
    uint64_t document_begin_ = 0;
    std::string buffer_;
};

}  // namespace lockstep::data
