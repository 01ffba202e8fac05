// JSON Lines, plain and compressed: fields, nested fields, what is refused and what is counted.
#include "data/json_lines.h"

#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "data/byte_stream.h"
#include "data/prepare.h"
#include "data/utf8.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::sample_prose;
using testing::TempFolder;
namespace fs = testing::fs;
using Kind = JsonLine::Kind;

JsonLine parse(const std::string& line, const std::string& field = "text") { return parse_json_line(line, FieldPath(field)); }

TEST(DataJsonLines, FindsAField) {
    EXPECT_EQ(parse(R"({"text": "a\n\u00e9\ud83d\ude00\"\\/"})").text, "a\né😀\"\\/");
    EXPECT_EQ(parse(R"({"id": [1, {"text": "no"}], "meta": {"text": "no"}, "text": "yes"})").text, "yes");
    EXPECT_EQ(parse(R"({"text": "first", "text": "last"})").text, "last");
    EXPECT_EQ(parse(R"({"a": {"b": "deep", "c": 1}, "b": "no"})", "a.b").text, "deep");
    EXPECT_EQ(parse(R"({"x": {"b": "no"}, "a": {"x": {"b": "no"}, "b": "deep"}})", "a.b").text, "deep");
    EXPECT_EQ(parse(R"({"a": {"b": {"c": "c"}}})", "a.b.c").text, "c");
    EXPECT_EQ(parse(R"({"a": [{"b": "no"}], "a": {"b": "deep"}})", "a.b").text, "deep");
    EXPECT_EQ(parse(R"({"text": null})").kind, Kind::null);
    EXPECT_EQ(parse(R"({"text": ""})").kind, Kind::text);
}

TEST(DataJsonLines, SaysWhatIsThereInstead) {
    JsonLine found = parse(R"({"content": "x", "meta": {"url": "y"}, "id": 3})");
    EXPECT_EQ(found.kind, Kind::absent);
    EXPECT_EQ(found.detail, "content, meta, id");
    found = parse(R"({"a": {"x": 1, "y": 2}, "c": 3})", "a.b");
    EXPECT_EQ(found.kind, Kind::absent);
    EXPECT_EQ(found.detail, "a, a.x, a.y, c");
    for (const auto& [line, what] : {std::pair{R"({"text": 3})", "a number"},
                                     {R"({"text": ["a"]})", "a list"},
                                     {R"({"text": {"b": 1}})", "an object"},
                                     {R"({"text": true})", "true or false"}}) {
        found = parse(line);
        EXPECT_EQ(found.kind, Kind::wrong_type) << line;
        EXPECT_EQ(found.detail, what);
    }
    for (const char* line : {"3", "\"text\"", "[1]", "null"}) EXPECT_EQ(parse(line).kind, Kind::no_object) << line;
    for (const char* line :
         {"", "{", "{\"text\": \"a\"", "{\"text\": \"a\"} x", "text", "{\"text\": \"\xE9\"}", "{\"text\": \"\\ud800\"}"})
        EXPECT_EQ(parse(line).kind, Kind::not_json) << line;
    EXPECT_EQ(parse(std::string(100000, '[')).kind, Kind::not_json);
    expect_user_error([] { FieldPath("a..b"); }, "data.field", "--field \"a..b\" names no field");
    expect_user_error([] { FieldPath(""); }, "data.field", "names no field");
}

TEST(DataUtf8, CountsBytesThatAreNoCharacters) {
    for (const char* good : {"", "plain", "é", "中文", "😀", "\u07ff\u0800\uffff"}) EXPECT_EQ(invalid_utf8(good).bytes, 0) << good;
    using namespace std::string_literals;
    for (const auto& [text, bytes] : {std::pair{"caf\xE9 noir"s, 1},
                                      {"\xC0\xAF"s, 2},
                                      {"\xE0\x80\x80"s, 3},
                                      {"\xED\xA0\x80"s, 3},
                                      {"\xF4\x90\x80\x80"s, 4},
                                      {"\xE4\xB8"s, 2},
                                      {"\xFF"s, 1},
                                      {"\xC3"s, 1},
                                      {"\x80x\x80"s, 2}}) {
        EXPECT_EQ(invalid_utf8(text).bytes, bytes) << text;
        EXPECT_EQ(invalid_utf8("0123456789é" + text + "é").bytes, bytes) << text;
        EXPECT_EQ(invalid_utf8(with_replacements(text)).bytes, 0) << text;
    }
    EXPECT_EQ(invalid_utf8("caf\xE9").first_at, 3u);
    EXPECT_EQ(with_replacements("caf\xE9 noir"), "caf\uFFFD noir");
}

std::string gzip(const std::string& text) {
    std::string out(compressBound(text.size()) + 64, '\0');
    z_stream z{};
    deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
    z.avail_in = static_cast<uInt>(text.size());
    z.next_out = reinterpret_cast<Bytef*>(out.data());
    z.avail_out = static_cast<uInt>(out.size());
    deflate(&z, Z_FINISH);
    out.resize(z.total_out);
    deflateEnd(&z);
    return out;
}

std::string zstd(const std::string& text) {
    std::string out(ZSTD_compressBound(text.size()), '\0');
    out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
    return out;
}

std::string unpacked(const fs::path& file, Packing packing, size_t at_once) {
    const std::unique_ptr<ByteStream> stream = ByteStream::open(file, packing);
    std::string text, chunk(at_once, '\0');
    while (const size_t got = stream->read({chunk.data(), chunk.size()})) text.append(chunk, 0, got);
    return text;
}

TEST(DataByteStream, UnpacksMembersAndFrames) {
    const TempFolder folder;
    std::string text = sample_prose(1, 200000) + std::string(3000000, 'x');  // much of which one input holds back
    for (const size_t at_once : {size_t{7919}, size_t{1} << 20}) {
        EXPECT_EQ(unpacked(folder.write("a", text), Packing::none, at_once), text);
        EXPECT_EQ(unpacked(folder.write("a", gzip(text)), Packing::gzip, at_once), text);
        EXPECT_EQ(unpacked(folder.write("a", gzip(text) + gzip("more") + std::string(512, '\0')), Packing::gzip, at_once),
                  text + "more");
        EXPECT_EQ(unpacked(folder.write("a", zstd(text)), Packing::zstd, at_once), text);
        EXPECT_EQ(unpacked(folder.write("a", zstd(text) + zstd("more")), Packing::zstd, at_once), text + "more");
    }
}

TEST(DataByteStream, DamagedFilesAreRefused) {
    const TempFolder folder;
    const std::string text = sample_prose(1, 20000);
    for (const Packing packing : {Packing::gzip, Packing::zstd}) {
        const std::string bytes = packing == Packing::gzip ? gzip(text) : zstd(text);
        const fs::path file = folder / "a";
        for (const size_t cut : {bytes.size() - 1, bytes.size() / 2, size_t{12}}) {
            folder.write("a", bytes.substr(0, cut));
            expect_user_error([&] { unpacked(file, packing, 1 << 16); }, "data.compressed_damaged", "it ends in the middle");
        }
        folder.write("a", bytes + "garbage");
        expect_user_error([&] { unpacked(file, packing, 1 << 16); }, "data.compressed_damaged", "cannot be unpacked: ");
        std::string flipped = bytes;
        for (size_t at = 40; at < 60; ++at) flipped[at] = static_cast<char>(~flipped[at]);
        folder.write("a", flipped);
        expect_user_error([&] { unpacked(file, packing, 1 << 16); }, "data.compressed_damaged", "Test it with `");
    }
}

TEST(DataLineReader, LinesOfAnyLength) {
    const TempFolder folder;
    const std::string longer(1000000, 'y');
    const fs::path file = folder.write("a",
                                       "\xEF\xBB\xBF"
                                       "one\r\n\n" +
                                           longer + "\nlast");
    const std::unique_ptr<ByteStream> stream = ByteStream::open(file, Packing::none);
    LineReader reader(*stream, file);
    std::vector<std::string> lines;
    for (std::string_view line; reader.next(line);) lines.emplace_back(line);
    EXPECT_EQ(lines, (std::vector<std::string>{"one", "", longer, "last"}));
    EXPECT_EQ(reader.line_number(), 4);
}

TEST(DataLineReader, ALineTooLongIsNamed) {
    const TempFolder folder;
    const fs::path file = folder.write("a.jsonl", "{}\n" + std::string(3 << 20, 'x'));
    const std::unique_ptr<ByteStream> stream = ByteStream::open(file, Packing::none);
    LineReader reader(*stream, file, 1 << 20);
    std::string_view line;
    EXPECT_TRUE(reader.next(line));
    expect_user_error([&] { reader.next(line); }, "data.line_too_long",
                      "a.jsonl: line 2 is longer than 1 MiB. JSON Lines have one");
}

TEST(DataSpool, AFullDiskIsReported) {
    const TempFolder folder;
    const fs::path file = folder.write("a.gz", gzip(std::string(70 << 20, 'z')));
    const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    getrlimit(RLIMIT_FSIZE, &before);
    const rlimit small{1 << 16, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const std::unique_ptr<ByteStream> stream = ByteStream::open(file, Packing::gzip);
    expect_user_error([&] { Spool{*stream}; }, "data.spool_unwritable",
                      "File too large. Make room there, or name another folder");
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old_handler);
}

// The documents of both splits, as text.
std::multiset<std::string> texts_of(const PreparedData& data) {
    const Tokenizer tokenizer = data.tokenizer().value();
    std::multiset<std::string> texts;
    for (const TokenStream* split : {&data.train, &data.heldout})
        for (const TokenFile& file : split->files())
            for (int64_t d = 0; d < file.documents(); ++d) {
                std::vector<int32_t> tokens(file.document_end(d) - file.document_begin(d) - 1);
                file.read(file.document_begin(d), tokens);
                texts.insert(tokenizer.decode(tokens));
            }
    return texts;
}

TEST(DataPrepareJsonLines, EachLineIsADocument) {
    const TempFolder folder;
    std::string lines, one;
    std::multiset<std::string> expected;
    for (int d = 0; d < 300; ++d) {
        const std::string text = sample_prose(d, 40);
        expected.insert(text);
        lines += nlohmann::json{{"id", d}, {"text", text}}.dump() + "\n";
        if (d == 100) lines += "\n  \n{\"id\": 0, \"text\": \"\"}\n{\"id\": 0, \"text\": null}\n";
    }
    PrepareOptions options;
    options.vocab = 300;
    int n = 0;
    std::string first_train;
    for (const auto& [name, bytes] : {std::pair{"a.jsonl", lines}, {"a.jsonl.gz", gzip(lines)}, {"a.jsonl.zst", zstd(lines)}}) {
        const fs::path input = folder.write(std::to_string(++n) + "/" + name, bytes);
        options.inputs = {input};
        options.out = folder / ("out" + std::to_string(n));
        const Manifest manifest = prepare(options).manifest;
        const PreparedData data = PreparedData::open(options.out);
        EXPECT_EQ(texts_of(data), expected) << name;
        EXPECT_EQ(manifest.sources.empty_documents, 2);
        EXPECT_GT(manifest.heldout.documents, 0);
        EXPECT_LT(manifest.heldout.documents, 20);
    }
}

TEST(DataPrepareJsonLines, RefusalsNameFileLineAndFields) {
    const TempFolder folder;
    PrepareOptions options;
    options.out = folder / "out";
    options.tokenizer = "bytes";
    const auto refused = [&](const std::string& lines, const std::string& id, const std::string& text) {
        options.inputs = {folder.write("c.jsonl", lines)};
        expect_user_error([&] { prepare(options); }, id, text);
        EXPECT_FALSE(fs::exists(options.out));
    };
    const std::string good = "{\"text\": \"a\"}\n";
    refused("{\"content\": \"a\", \"url\": \"b\"}\n", "data.no_field",
            "c.jsonl, line 1: there is no field \"text\"; the fields are: content, url. Name the one that holds the text with "
            "--field.");
    refused(good + "\n{\"text\": 3}\n", "data.no_field", "line 3: the field \"text\" is a number, not text");
    refused(good + "not json\n", "data.json_line", "c.jsonl, line 2: byte 2 is not JSON. Each line");
    refused("{\"text\": null}\n{\"text\": \"\"}\n", "data.nothing_to_train_on",
            "c.jsonl holds no text to train on: 2 documents were empty");
    refused(good + "[1]\n", "data.json_line", "c.jsonl, line 2: the line is a list. Each line");
}

TEST(DataPrepareJsonLines, BadBytesAreCounted) {
    const TempFolder folder;
    PrepareOptions options;
    options.tokenizer = "bytes";
    options.heldout_fraction = 0;
    options.inputs = {folder.write("c.jsonl", "{\"text\": \"caf\xE9\"}\n{\"text\": \"fine\"}\n")};
    options.out = folder / "lines";
    Manifest manifest = prepare(options).manifest;
    EXPECT_EQ(manifest.sources.invalid_utf8_bytes, 1);
    EXPECT_EQ(manifest.sources.invalid_utf8_documents, 1);
    EXPECT_EQ(manifest.sources.invalid_utf8_first, "c.jsonl#1");
    EXPECT_EQ(texts_of(PreparedData::open(options.out)), (std::multiset<std::string>{"caf\uFFFD", "fine"}));
    options.inputs = {folder.write("latin1.txt", "caf\xE9 d\xE9j\xE0 vu")};
    options.out = folder / "text";
    manifest = prepare(options).manifest;
    EXPECT_EQ(manifest.sources.invalid_utf8_bytes, 3);
    EXPECT_EQ(texts_of(PreparedData::open(options.out)), (std::multiset<std::string>{"caf\xE9 d\xE9j\xE0 vu"}));
}

TEST(DataPrepareText, CompressedTextIsOneDocument) {
    const TempFolder folder;
    const std::string text = sample_prose(3, 5000), longer(70 << 20, 'z');  // longer: through a temporary file
    folder.write("in/a.txt.gz", gzip(text));
    folder.write("in/b.txt.zst", zstd(longer));
    PrepareOptions options;
    options.tokenizer = "bytes";
    options.heldout_fraction = 0;
    options.inputs = {folder / "in"};
    options.out = folder / "out";
    EXPECT_EQ(prepare(options).manifest.train.documents, 2);
    EXPECT_EQ(texts_of(PreparedData::open(options.out)), (std::multiset<std::string>{text, longer}));
}

}  // namespace
}  // namespace lockstep::data
