#include "data/token_file.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/checksum.h"
#include "base/error.h"

namespace lockstep::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::string_view kMagic = "LSTOKENS";
constexpr size_t kBufferBytes = size_t{1} << 20;

// Of a header whose counts are small enough for its file: no product overflows.
uint64_t padded_token_bytes(const TokenFileHeader& header) { return (header.tokens * header.token_bytes + 7) / 8 * 8; }
uint64_t file_bytes(const TokenFileHeader& header) {
    return sizeof(header) + padded_token_bytes(header) + header.documents * sizeof(uint64_t);
}
uint64_t header_checksum(const TokenFileHeader& header) {
    return XXH3_64bits(&header, offsetof(TokenFileHeader, header_checksum));
}

[[noreturn]] void refuse(std::string_view id, const std::filesystem::path& file, const std::string& what) {
    throw UserError(id, file.string(), fmt::format("{} {}. Run `data prepare` again to write it anew.", file.string(), what));
}

[[noreturn]] void damaged(const std::filesystem::path& file, const std::string& what) {
    refuse("data.file_damaged", file, fmt::format("is damaged: {}", what));
}

}  // namespace

TokenFileHeader parse_token_header(std::string_view file, const std::filesystem::path& path) {
    TokenFileHeader header;
    if (!file.starts_with(kMagic.substr(0, file.size()))) {
        throw UserError("data.not_token_file", path.string(),
                        fmt::format("{} is not a token file of Lockstep: it does not begin with LSTOKENS. Text and token ids of "
                                    "other programs become token files with `lockstep data prepare {} --out DIR`; "
                                    "docs/token_files.md describes the format.",
                                    path.string(), path.string()));
    }
    if (file.size() < sizeof(header)) {
        refuse("data.file_truncated", path,
               fmt::format("holds {} bytes, fewer than the header of a token file ({})", file.size(), sizeof(header)));
    }
    std::memcpy(&header, file.data(), sizeof(header));
    if (header.version != kTokenFileVersion) {
        refuse("data.token_file_version", path,
               fmt::format("has format version {}, this program reads version {}", header.version, kTokenFileVersion));
    }
    if (header.header_checksum != 0 && header.header_checksum != header_checksum(header))
        damaged(path, "the checksum of its header does not match");
    if (header.tokens == 0 || header.documents == 0) refuse("data.no_tokens", path, "holds no tokens");
    if (header.token_bytes != 2 && header.token_bytes != 4)
        damaged(path, fmt::format("its tokens are said to have {} bytes; 2 and 4 are possible", header.token_bytes));
    if (header.vocab_size == 0 || header.vocab_size > INT32_MAX || header.separator >= header.vocab_size)
        damaged(path, fmt::format("its vocabulary is {} and its separator {}", header.vocab_size, header.separator));
    const uint64_t room = file.size() - sizeof(header);
    const bool fits = header.tokens <= room / header.token_bytes && header.documents <= room / sizeof(uint64_t);
    if (!fits || file.size() != file_bytes(header)) {
        refuse("data.file_truncated", path,
               fmt::format("holds {} bytes, its header promises {}: it was cut off or added to", file.size(),
                           fits ? fmt::to_string(file_bytes(header))
                                : fmt::format("{} tokens of {} bytes and {} documents", header.tokens, header.token_bytes,
                                              header.documents)));
    }
    return header;
}

TokenFile::TokenFile(MappedFile file, std::filesystem::path path)
    : file_(std::move(file)), path_(std::move(path)), header_(parse_token_header(file_.text(), path_)) {
    token_data_ = file_.text().data() + sizeof(header_);
    starts_ = reinterpret_cast<const uint64_t*>(token_data_ + padded_token_bytes(header_));
}

TokenFile TokenFile::open(const std::filesystem::path& file, Verify verify) {
    TokenFile opened(MappedFile::open(file), file);
    if (verify == Verify::full || (verify == Verify::fast && opened.bytes() < kFastVerifyBytes)) opened.verify();
    return opened;
}

void TokenFile::verify() const {
    const std::string_view body = file_.text().substr(sizeof(TokenFileHeader));
    const uint64_t checksum = header_.checksum == 0 ? 0 : XXH3_64bits(body.data(), body.size());
    if (checksum != header_.checksum) {
        damaged(path_,
                fmt::format("its checksum is {}, the header says {}", hex_checksum(checksum), hex_checksum(header_.checksum)));
    }
    for (int64_t d = 0; d < documents(); ++d) document_end(d);
}

void TokenFile::read(int64_t first, std::span<int32_t> out) const {
    ensure(first >= 0 && first + static_cast<int64_t>(out.size()) <= tokens(), "TokenFile::read: tokens outside the file");
    uint32_t largest = 0;
    const auto copy = [&](const auto* tokens) {
        for (size_t i = 0; i < out.size(); ++i) {
            const uint32_t token = tokens[first + i];
            largest = std::max(largest, token);
            out[i] = static_cast<int32_t>(token);
        }
    };
    if (header_.token_bytes == 2) {
        copy(reinterpret_cast<const uint16_t*>(token_data_));
    } else {
        copy(reinterpret_cast<const uint32_t*>(token_data_));
    }
    // Also where the file was too large for its checksum at open: such a token would read outside the embedding.
    if (largest >= header_.vocab_size) damaged(path_, fmt::format("token {} is outside the vocabulary", largest));
}

int64_t TokenFile::document_begin(int64_t document) const {
    ensure(document >= 0 && document < documents(), "TokenFile::document_begin: no such document");
    const uint64_t begin = starts_[document];
    const bool is_right = document == 0 ? begin == 0 : begin > starts_[document - 1];
    if (!is_right || begin >= header_.tokens)
        damaged(path_, fmt::format("document {} is said to begin at token {}", document, begin));
    return static_cast<int64_t>(begin);
}

int64_t TokenFile::document_end(int64_t document) const {
    const int64_t begin = document_begin(document), end = document + 1 < documents() ? document_begin(document + 1) : tokens();
    if (end <= begin) damaged(path_, fmt::format("document {} is said to end at token {}, where it begins", document, end));
    return end;
}

struct TokenFileWriter::ChecksumState {
    XXH3_state_t* state = XXH3_createState();
    ChecksumState() { XXH3_64bits_reset(state); }
    ~ChecksumState() { XXH3_freeState(state); }
};

TokenFileWriter::TokenFileWriter(const std::filesystem::path& file, int vocab_size, int32_t separator)
    : out_(file), checksum_(std::make_unique<ChecksumState>()) {
    std::memcpy(header_.magic, kMagic.data(), sizeof(header_.magic));
    header_.version = kTokenFileVersion;
    header_.token_bytes = vocab_size <= 65536 ? 2 : 4;
    header_.vocab_size = vocab_size;
    header_.separator = separator;
    out_.append(std::string(sizeof(header_), '\0'));  // the real one is written by finish()
}

TokenFileWriter::~TokenFileWriter() = default;

void TokenFileWriter::put(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= kBufferBytes) flush();
}

void TokenFileWriter::flush() {
    XXH3_64bits_update(checksum_->state, buffer_.data(), buffer_.size());
    out_.append(buffer_);
    buffer_.clear();
}

void TokenFileWriter::append(std::span<const int32_t> tokens) {
    for (const int32_t token : tokens) {
        const auto value = static_cast<uint32_t>(token);
        ensure(value < header_.vocab_size, "TokenFileWriter::append: token outside the vocabulary");
        put({reinterpret_cast<const char*>(&value), header_.token_bytes});  // the low bytes come first
    }
    header_.tokens += tokens.size();
}

void TokenFileWriter::end_document() {
    const auto separator = static_cast<int32_t>(header_.separator);
    append({&separator, 1});
    end_document_as_it_is();
}

void TokenFileWriter::end_document_as_it_is() {
    starts_.push_back(document_begin_);
    document_begin_ = header_.tokens;
}

TokenFileHeader TokenFileWriter::finish() {
    ensure(document_begin_ == header_.tokens, "TokenFileWriter::finish: the last document is not ended");
    header_.documents = starts_.size();
    put(std::string(padded_token_bytes(header_) - header_.tokens * header_.token_bytes, '\0'));
    put({reinterpret_cast<const char*>(starts_.data()), starts_.size() * sizeof(uint64_t)});
    flush();
    starts_ = {};
    header_.checksum = XXH3_64bits_digest(checksum_->state);
    header_.header_checksum = header_checksum(header_);
    out_.write_at(0, {reinterpret_cast<const char*>(&header_), sizeof(header_)});
    out_.finish();
    return header_;
}

void TokenFileWriter::publish() { out_.publish(); }

}  // namespace lockstep::data
