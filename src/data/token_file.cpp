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
constexpr size_t kFastVerifyBytes = size_t{256} << 20;
constexpr size_t kBufferBytes = size_t{1} << 20;

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

TokenFileHeader read_header(std::string_view file, const std::filesystem::path& path) {
    TokenFileHeader header;
    if (file.size() < sizeof(header)) {
        refuse("data.file_truncated", path,
               fmt::format("holds {} bytes, fewer than the header of a token file ({})", file.size(), sizeof(header)));
    }
    std::memcpy(&header, file.data(), sizeof(header));
    if (std::string_view(header.magic, sizeof(header.magic)) != kMagic)
        refuse("data.not_token_file", path, "is not a token file: it does not begin with LSTOKENS");
    if (header.version != kTokenFileVersion) {
        refuse("data.token_file_version", path,
               fmt::format("has format version {}, this program reads version {}", header.version, kTokenFileVersion));
    }
    if (header.header_checksum != header_checksum(header)) damaged(path, "the checksum of its header does not match");
    if (header.tokens == 0 || header.documents == 0) refuse("data.no_tokens", path, "holds no tokens");
    if (file.size() != file_bytes(header)) {
        refuse(
            "data.file_truncated", path,
            fmt::format("holds {} bytes, its header promises {}: it was cut off or added to", file.size(), file_bytes(header)));
    }
    return header;
}

}  // namespace

TokenFile::TokenFile(MappedFile file, std::filesystem::path path)
    : file_(std::move(file)), path_(std::move(path)), header_(read_header(file_.text(), path_)) {
    token_data_ = file_.text().data() + sizeof(header_);
    starts_ = reinterpret_cast<const uint64_t*>(token_data_ + padded_token_bytes(header_));
}

TokenFile TokenFile::open(const std::filesystem::path& file, Verify verify) {
    TokenFile opened(MappedFile::open(file), file);
    const std::string_view body = opened.file_.text().substr(sizeof(TokenFileHeader));
    if (verify == Verify::full || body.size() < kFastVerifyBytes) {
        const uint64_t checksum = XXH3_64bits(body.data(), body.size());
        if (checksum != opened.header_.checksum) {
            damaged(file, fmt::format("its checksum is {}, the header says {}", hex_checksum(checksum),
                                      hex_checksum(opened.header_.checksum)));
        }
    }
    return opened;
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

int64_t TokenFile::document_end(int64_t document) const {
    return document + 1 < documents() ? document_begin(document + 1) : tokens();
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
    starts_.push_back(document_begin_);
    document_begin_ = header_.tokens;
}

TokenFileHeader TokenFileWriter::finish() {
    ensure(document_begin_ == header_.tokens, "TokenFileWriter::finish: the last document is not ended");
    header_.documents = starts_.size();
    put(std::string(padded_token_bytes(header_) - header_.tokens * header_.token_bytes, '\0'));
    put({reinterpret_cast<const char*>(starts_.data()), starts_.size() * sizeof(uint64_t)});
    flush();
    header_.checksum = XXH3_64bits_digest(checksum_->state);
    header_.header_checksum = header_checksum(header_);
    out_.write_at(0, {reinterpret_cast<const char*>(&header_), sizeof(header_)});
    out_.finish();
    return header_;
}

void TokenFileWriter::publish() { out_.publish(); }

}  // namespace lockstep::data
