// Token files: round trip in both widths, every kind of damage, nothing half written.
#include "data/token_file.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <csignal>
#include <cstring>

#include "base/checksum.h"
#include "data/file_io.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::flip_byte;
using testing::read_file;
using testing::TempFolder;
namespace fs = testing::fs;

using Documents = std::vector<std::vector<int32_t>>;

TokenFileHeader write(const fs::path& file, int vocab, const Documents& documents) {
    TokenFileWriter writer(file, vocab, vocab - 1);
    for (const std::vector<int32_t>& document : documents) {
        writer.append(document);
        writer.end_document();
    }
    const TokenFileHeader header = writer.finish();
    writer.publish();
    return header;
}

Documents some_documents(int vocab, int count) {
    std::mt19937_64 random(5);
    Documents documents(count);
    for (auto& document : documents)
        for (size_t i = random() % 40; i > 0; --i) document.push_back(static_cast<int32_t>(random() % (vocab - 1)));
    return documents;
}

// Changes a header field and makes the header's own checksum fit again.
template <typename Change>
void edit_header(const fs::path& file, Change change) {
    std::string bytes = read_file(file);
    TokenFileHeader header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    change(header);
    header.header_checksum = XXH3_64bits(&header, offsetof(TokenFileHeader, header_checksum));
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::ofstream(file, std::ios::binary) << bytes;
}

TEST(DataTokenFile, RoundTripsInBothWidths) {
    const TempFolder folder;
    for (const int vocab : {257, 65536, 65537, 200000}) {
        const Documents documents = some_documents(vocab, 50);
        write(folder / "a.tokens", vocab, documents);
        const TokenFile file = TokenFile::open(folder / "a.tokens", Verify::full);
        EXPECT_EQ(file.header().token_bytes, vocab <= 65536 ? 2u : 4u);
        EXPECT_EQ(file.vocab_size(), vocab);
        EXPECT_EQ(file.separator(), vocab - 1);
        ASSERT_EQ(file.documents(), 50);
        int64_t at = 0;
        for (int64_t d = 0; d < file.documents(); ++d) {
            EXPECT_EQ(file.document_begin(d), at);
            at = file.document_end(d);
            std::vector<int32_t> tokens(file.document_end(d) - file.document_begin(d));
            file.read(file.document_begin(d), tokens);
            ASSERT_EQ(tokens.back(), vocab - 1);
            tokens.pop_back();
            EXPECT_EQ(tokens, documents[d]);
        }
        EXPECT_EQ(at, file.tokens());
        std::vector<int32_t> one(1);
        EXPECT_THROW(file.read(file.tokens(), one), InternalError);
    }
}

TEST(DataTokenFile, ChecksumCoversAllAfterTheHeader) {
    const TempFolder folder;
    const TokenFileHeader header = write(folder / "a.tokens", 300, some_documents(300, 9));
    const std::string bytes = read_file(folder / "a.tokens");
    EXPECT_EQ(bytes.size() % 8, 0u);
    EXPECT_EQ(hex_checksum(bytes.substr(64)), hex_checksum(header.checksum));
}

TEST(DataTokenFile, AnyFlippedByteIsFound) {
    const TempFolder folder;
    const fs::path file = folder / "a.tokens";
    write(file, 300, some_documents(300, 9));
    const std::string good = read_file(file);
    for (size_t at = 0; at < good.size(); ++at) {
        std::ofstream(file, std::ios::binary) << good;
        flip_byte(file, at);
        EXPECT_THROW(TokenFile::open(file, Verify::full), UserError) << "byte " << at;
    }
    for (size_t bytes = 0; bytes < good.size(); ++bytes) {
        std::ofstream(file, std::ios::binary) << good.substr(0, bytes);
        EXPECT_THROW(TokenFile::open(file), UserError) << "cut to " << bytes;
    }
}

TEST(DataTokenFile, Errors) {
    const TempFolder folder;
    const fs::path file = folder / "a.tokens";
    const auto expect_refused = [&](const std::string& id, const std::string& text) {
        expect_user_error([&] { TokenFile::open(file); }, id, text);
        write(file, 300, {{1, 2, 3}, {4}});
    };
    expect_refused("data.file_unreadable", "a.tokens: No such file or directory. Check the path");
    std::ofstream(file, std::ios::trunc).close();
    expect_refused("data.file_truncated", "a.tokens holds 0 bytes, fewer than the header of a token file (64)");
    fs::resize_file(file, 80);
    expect_refused("data.file_truncated", "a.tokens holds 80 bytes, its header promises 96");
    std::ofstream(file) << std::string(100, 'x');
    expect_refused("data.not_token_file",
                   "a.tokens is not a token file of Lockstep: it does not begin with LSTOKENS. Text and token "
                   "ids of other programs become token files with `lockstep data prepare");
    edit_header(file, [](TokenFileHeader& header) { header.version = 2; });
    expect_refused("data.token_file_version", "has format version 2, this program reads version 1");
    flip_byte(file, 20);
    expect_refused("data.file_damaged", "is damaged: the checksum of its header does not match");
    flip_byte(file, 66);
    expect_refused("data.file_damaged", "is damaged: its checksum is ");
    edit_header(file, [](TokenFileHeader& header) { header.tokens = 0; });
    expect_refused("data.no_tokens", "a.tokens holds no tokens. Run `data prepare` again");
    // Counts whose product with the size of a token is that of the file, modulo 2^64.
    edit_header(file, [](TokenFileHeader& header) { header.tokens += uint64_t{1} << 63; });
    expect_refused("data.file_truncated", "its header promises 9223372036854775814 tokens of 2 bytes and 2 documents");
    edit_header(file, [](TokenFileHeader& header) { header.documents += uint64_t{1} << 61; });
    expect_refused("data.file_truncated", "and 2305843009213693954 documents");
    edit_header(file, [](TokenFileHeader& header) { header.token_bytes = 0; });
    expect_refused("data.file_damaged", "its tokens are said to have 0 bytes");
    edit_header(file, [](TokenFileHeader& header) { header.separator = 300; });
    expect_refused("data.file_damaged", "its vocabulary is 300 and its separator 300");
    edit_header(file, [](TokenFileHeader& header) { header.vocab_size = 0; });
    expect_refused("data.file_damaged", "its vocabulary is 0 and its separator 299");
    edit_header(file, [](TokenFileHeader& header) { header.vocab_size = 4, header.separator = 3; });
    const TokenFile opened = TokenFile::open(file);
    std::vector<int32_t> tokens(4);
    expect_user_error([&] { opened.read(0, tokens); }, "data.file_damaged", "is damaged: token 299 is outside the vocabulary");
    expect_user_error([&] { MappedFile::open(folder.path()); }, "data.file_unreadable", "it is not a regular file");
}

// An index that does not ascend is refused where it is read, also if its checksum was made to fit or is left out.
TEST(DataTokenFile, ADamagedIndexIsRefused) {
    const TempFolder folder;
    const fs::path file = folder / "a.tokens";
    write(file, 300, {{1, 2, 3}, {4}, {5}});  // 8 tokens: documents from 0, 4 and 6
    const std::string good = read_file(file);
    for (const auto& [document, begin] : {std::pair<int, uint64_t>{0, 1}, {1, 0}, {1, 6}, {2, 8}, {2, uint64_t{1} << 62}}) {
        std::string bytes = good;
        std::memcpy(bytes.data() + 64 + 16 + 8 * document, &begin, sizeof(begin));
        std::ofstream(file, std::ios::binary) << bytes;
        edit_header(file, [](TokenFileHeader& header) { header.checksum = 0; });
        expect_user_error([&] { TokenFile::open(file); }, "data.file_damaged", "is said to ");
        const TokenFile opened = TokenFile::open(file, Verify::header);
        EXPECT_THROW(for (int d = 0; d < 3; ++d) opened.document_end(d), UserError);
    }
}

TEST(DataTokenFile, ChecksumsMayBeLeftOut) {
    const TempFolder folder;
    const fs::path file = folder / "a.tokens";
    write(file, 300, {{1, 2, 3}});
    std::string bytes = read_file(file);
    std::fill_n(bytes.begin() + 40, 8, '\0');
    std::fill_n(bytes.begin() + 56, 8, '\0');
    std::ofstream(file, std::ios::binary) << bytes;
    EXPECT_EQ(TokenFile::open(file, Verify::full).tokens(), 4);
}

TEST(DataTokenFile, APipeIsRefusedAndNotWaitedFor) {
    const TempFolder folder;
    ASSERT_EQ(mkfifo((folder / "pipe.tokens").c_str(), 0600), 0);
    expect_user_error([&] { TokenFile::open(folder / "pipe.tokens"); }, "data.file_unreadable", "it is not a regular file");
}

TEST(DataTokenFile, NothingRemainsWithoutPublish) {
    const TempFolder folder;
    {
        TokenFileWriter writer(folder / "a.tokens", 300, 299);
        writer.append(std::vector<int32_t>{1, 2});
        EXPECT_THROW(writer.finish(), InternalError);  // the document is not ended
        EXPECT_THROW(writer.append(std::vector<int32_t>{300}), InternalError);
    }
    EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(DataTokenFile, AFullDiskLeavesNothing) {
    const TempFolder folder;
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{1 << 16, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    expect_user_error([&] { write(folder / "a.tokens", 300, Documents(3, std::vector<int32_t>(100000, 1))); },
                      "file.cannot_write", "a.tokens.partial: write failed: File too large. Choose a folder that exists");
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old_handler);
    EXPECT_TRUE(fs::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::data
