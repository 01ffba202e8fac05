// JSON Lines, plain and compressed: fields, nested fields, what is refused and what is counted.
#include "data/json_value.h"

#include <sys/resource.h>
#include <zlib.h>
#include <zstd.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <set>

#include "data/byte_stream.h"
#include "data/json_shape.h"
#include "data/prepare.h"
#include "data/utf8.h"
#include "data_test_util.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::sample_prose;
using testing::TempFolder;
namespace fs = testing::fs;
using Kind = JsonField::Kind;

JsonField parse(const std::string& line, const std::string& field = "text") { return read_json_line(line, FieldPath(field)); }

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
    JsonField found = parse(R"({"content": "x", "meta": {"url": "y"}, "id": 3})");
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
    for (const auto& [line, why] : {std::pair{"", "byte 1 is not JSON: it ends where a value belongs"},
                                    {"{", "byte 2 is not JSON: it ends in the middle"},
                                    {"{\"text\": \"a\"", "byte 13 is not JSON: it ends in the middle"},
                                    {"{\"text\": \"a", "byte 12 is not JSON: a string does not end"},
                                    {"{\"text\": \"a\"} x", "byte 15 is not JSON: more follows the value"},
                                    {"text", "byte 1 is not JSON: no value begins like this"},
                                    {"{'text': 1}", "byte 2 is not JSON: a name in double quotes belongs here"},
                                    {"{\"a\" 1}", "byte 6 is not JSON: a ':' belongs here"},
                                    {"{\"a\": 1 2}", "byte 9 is not JSON: a ',' or a '}' belongs here"},
                                    {"[1 2]", "byte 4 is not JSON: a ',' or a ']' belongs here"},
                                    {"{\"a\": 1,}", "byte 9 is not JSON: a name in double quotes belongs here"},
                                    {"{\"a\": 01}", "byte 8 is not JSON: a ',' or a '}' belongs here"},
                                    {"{\"a\": 1.}", "byte 9 is not JSON: a digit belongs here"},
                                    {"{\"a\": nul}", "byte 7 is not JSON: no value begins like this"},
                                    {"{\"a\": \"\t\"}", "byte 8 is not JSON: a control character in a string must be written"},
                                    {"{\"a\": \"\\x41\"}", "byte 9 is not JSON: no escape begins like this"},
                                    {"{\"a\": \"\\u00g0\"}", "byte 12 is not JSON: a hexadecimal digit belongs here"}}) {
        EXPECT_EQ(parse(line).kind, Kind::not_json) << line;
        EXPECT_TRUE(parse(line).detail.starts_with(why)) << line << ": " << parse(line).detail;
    }
    EXPECT_EQ(parse(std::string(100000, '[')).kind, Kind::not_json);
    expect_user_error([] { FieldPath(".."); }, "data.field", "--field \"..\" names no field");
    expect_user_error([] { FieldPath(""); }, "data.field", "names no field");
}

TEST(DataJsonLines, ReadsWhatOtherProgramsWrite) {
    EXPECT_EQ(parse(R"({"text": "a", "score": NaN, "more": [Infinity, -Infinity]})").text, "a");
    EXPECT_EQ(parse(R"({"text": "a", "x": 1e999, "y": -123456789012345678901234567890.5E-7})").text, "a");
    EXPECT_EQ(parse(R"({"text": "cut \ud83d emoji"})").text, "cut \uFFFD emoji");
    EXPECT_EQ(parse(R"({"text": "\ude00\ud83d\ud83d\ude00"})").text, "\uFFFD\uFFFD\U0001F600");
    EXPECT_EQ(parse(R"({"text": "a", "cut \ud83d": "\ud83dx"})").text, "a");
    EXPECT_EQ(parse(R"({"text": NaN})").detail, "NaN");
    EXPECT_EQ(parse(R"({"text": -Infinity})").detail, "-Infinity");
    EXPECT_EQ(parse("{\"text\": \"caf\xE9\"}").text, "caf\xE9");  // what is no UTF-8 is the reader's matter
}

TEST(DataJsonLines, ANameMayHoldADot) {
    for (const char* line : {R"({"a.b.c": "x"})", R"({"a": {"b.c": "x"}})", R"({"a.b": {"c": "x"}})",
                             R"({"a": {"b": {"c": "x"}}})", R"({"a.b": 1, "a": {"b": {"c": "x"}, "b.d": 1}})"})
        EXPECT_EQ(parse(line, "a.b.c").text, "x") << line;
    EXPECT_EQ(parse(R"({"a.b.c": "x", "a": {"b.c": "y"}})", "a.b.c").kind, Kind::ambiguous);
    EXPECT_EQ(parse(R"({"a.b": "x", "a.b": "y"})", "a.b").text, "y");
    EXPECT_EQ(parse(R"({"a.b": "x", "a": {"c": 1}})", "a.b").text, "x");
    EXPECT_EQ(parse(R"({"a.bc": "x", "ab": "y"})", "a.b").detail, "a.bc, ab");
    EXPECT_EQ(parse(R"({"text.": "x"})", "text.").text, "x");
    EXPECT_EQ(parse(R"({".text": "x"})", ".text").text, "x");
    EXPECT_EQ(parse(R"({"a..b": "x"})", "a..b").text, "x");
    EXPECT_EQ(parse(R"({"a": null})", "a.b").kind, Kind::null);
    EXPECT_EQ(parse(R"({"a": null, "a": {"b": "x"}})", "a.b").text, "x");
    EXPECT_EQ(parse(R"({"a": null, "a.b": "x"})", "a.b").text, "x");
    EXPECT_EQ(FieldPath("a.b.c").names_that_spell({"a", "b.c"}), 2u);
    EXPECT_EQ(FieldPath("a.b").names_that_spell({"a", "b", "c"}), 2u);
    EXPECT_EQ(FieldPath("a.b").names_that_spell({"a"}), 0u);
    EXPECT_EQ(FieldPath("a.b").names_that_spell({"a", "bc"}), 0u);
}

// The texts of a line are those that nlohmann's parser finds, and what it refuses is refused, but for what is read on purpose.
TEST(DataJsonLines, AgreesWithAnotherParser) {
    std::mt19937_64 random(20261127);
    const std::string good =
        R"( {"id": [1, -2.5e+3, {"text": "no"}, [], {}], "a\"b": {"text": "no", "x": null}, "text": "y\u00e9\n\ud83d\ude00", "z": true} )";
    const std::string characters = "{}[]\",:\\ux01eE+-.tfn a/\t";
    int read = 0;
    for (int i = 0; i < 20000; ++i) {
        std::string line = good;
        for (uint64_t n = random() % 3; n > 0; --n) {
            const size_t at = random() % line.size();
            if (random() % 2 == 0) {
                line[at] = characters[random() % characters.size()];
            } else {
                line.erase(at, 1 + random() % 3);
            }
        }
        const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
        const JsonField found = parse(line);
        if (json.is_discarded()) {
            EXPECT_TRUE(found.kind == Kind::not_json || line.find("\\u") != std::string::npos) << line;
            continue;
        }
        ASSERT_NE(found.kind, Kind::not_json) << line << ": " << found.detail;
        const bool has_text = json.is_object() && json.contains("text") && json["text"].is_string();
        ASSERT_EQ(found.kind == Kind::text, has_text) << line;
        if (has_text) {
            ASSERT_EQ(found.text, json["text"].get<std::string>()) << line;
        }
        read += has_text ? 1 : 0;
    }
    EXPECT_GT(read, 5000);
}

TEST(DataJsonShape, IsKnownByContent) {
    using Shape = JsonShape::Kind;
    const FieldPath text("text");
    struct Row {
        const char* bytes;
        Shape shape;
        bool has_field;
    };
    for (const auto& [bytes, shape, has_field] : {Row{"{\"text\": \"a\"}\n{\"text\": \"b\"}\n", Shape::lines, true},
                                                  Row{"\n \r\n{\"text\": \"a\"}\r\n\r\n{\"text\"", Shape::lines, true},
                                                  Row{"\xEF\xBB\xBF{\"text\": \"a\"}", Shape::lines, true},
                                                  Row{"{\"id\": 1}\n", Shape::lines, false},
                                                  Row{"{\"text\": null}", Shape::lines, true},
                                                  Row{"{\n \"text\": \"a\"\n}\n", Shape::values, true},
                                                  Row{"{\n \"text\": \"a\"}\n{\n \"text\": \"b\"}", Shape::values, true},
                                                  Row{"{\"text\": \"a\"}\r{\"text\": \"b\"}\r", Shape::values, true},
                                                  Row{"{\"text\": \"a\"}\r", Shape::lines, true},
                                                  Row{" [{\"text\": \"a\"}, 3", Shape::values, true},
                                                  Row{"[\n{\"x\": 1}]", Shape::values, false},
                                                  Row{"{\"text\": \"a\"}{\"text\": \"b\"}\n", Shape::lines, true},
                                                  Row{"{\"text\": \"a\"},\n{\"text\": \"b\"},\n", Shape::lines, true},
                                                  Row{"{\"text\": \"a\"}\nand so on", Shape::none, true},
                                                  Row{"{x} is a set", Shape::none, false},
                                                  Row{"{\"text\": \"cut", Shape::none, false},
                                                  Row{"[1, 2]", Shape::none, false},
                                                  Row{"[\"a\"]", Shape::none, false},
                                                  Row{"text", Shape::none, false},
                                                  Row{" \n", Shape::none, false}}) {
        const JsonShape found = json_shape(bytes, true, text);
        EXPECT_EQ(found.kind, shape) << bytes;
        EXPECT_EQ(found.has_field, has_field) << bytes;
    }
    for (const char* cut : {"{\"text\": \"cut", "[", "[{\"a\": ", "{\"text\": \"a\"}", "{\"text\": \"a\"}\n  ", " \n"})
        EXPECT_EQ(json_shape(cut, false, text).kind, Shape::more) << cut;
    EXPECT_EQ(json_shape("{x", false, text).kind, Shape::none);
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
                                           longer + "\n\xEF\xBB\xBFlast");
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
    expect_user_error([&] { reader.next(line); }, "data.document_too_long",
                      "a.jsonl: line 2 is longer than 1 MiB, the longest document. Split it");
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
    expect_user_error([&] { Spool(*stream, file); }, "data.spool_unwritable",
                      "File too large. Make room there, or name another folder");
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, old_handler);
}

TEST(DataSpool, UnpacksNoMoreThanTheLongestDocument) {
    const TempFolder folder;
    for (const Packing packing : {Packing::gzip, Packing::zstd}) {
        const std::string text(66 << 20, 'z');
        const fs::path file = folder.write("a", packing == Packing::gzip ? gzip(text) : zstd(text));
        for (const int64_t longest : {int64_t{1} << 20, int64_t{65} << 20}) {
            const std::unique_ptr<ByteStream> stream = ByteStream::open(file, packing);
            expect_user_error([&] { Spool(*stream, file, longest); }, "data.document_too_long", "a: unpacked it is longer than");
        }
        const std::unique_ptr<ByteStream> stream = ByteStream::open(file, packing);
        EXPECT_EQ(Spool(*stream, file, 66 << 20).text().size(), text.size());
    }
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
            "c.jsonl, line 1: there is no field \"text\"; the fields are: content, url. Name the field that holds the text with "
            "--field");
    refused(good + "\n{\"text\": 3}\n", "data.no_field", "line 3: the field \"text\" is a number, not text");
    refused(good + "not json\n", "data.json_line", "c.jsonl, line 2: byte 1 is not JSON: no value begins like this. Each line");
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

// Options for small inputs, whose documents become bytes and are all trained on.
PrepareOptions plain_options(const TempFolder& folder) {
    PrepareOptions options;
    options.tokenizer = "bytes";
    options.heldout_fraction = 0;
    options.existing = ExistingData::replace;
    options.out = folder / "out";
    return options;
}

using Texts = std::multiset<std::string>;

Texts prepared(PrepareOptions& options, const fs::path& input) {
    options.inputs = {input};
    prepare(options);
    return texts_of(PreparedData::open(options.out));
}

TEST(DataPrepareJsonLines, TheContentSaysWhatIsJson) {
    const TempFolder folder;
    PrepareOptions options = plain_options(folder);
    const Texts three = {"one", "two", "three"};
    const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\", \"id\": 2}\r\n{\"text\": \"three\"}";
    const std::string list = "[{\"text\": \"one\"},\n {\"text\": \"two\"}, {\n\"text\": \"three\"} ]\n";
    const std::string pretty = "{\n  \"text\": \"one\"\n}\n{\n  \"text\": \"two\"\n}\n{\n  \"text\": \"three\"\n}\n";
    for (const char* name : {"a.jsonl", "a.json", "wiki_00", "a.dump", "a.jsonl.gz", "a.json.zst", "wiki_00.gz", "part-0"}) {
        for (const std::string& before :
             {std::string(), std::string("\n\n"), std::string("\xEF\xBB\xBF"), std::string(70000, '\n')}) {
            for (const std::string& json : {lines, list, pretty}) {
                const std::string bytes = before + json;
                const std::string_view n = name;
                const fs::path file = folder.write(name, n.ends_with(".gz")    ? gzip(bytes)
                                                         : n.ends_with(".zst") ? zstd(bytes)
                                                                               : bytes);
                EXPECT_EQ(prepared(options, file), three) << name << ": " << json;
            }
        }
    }
    EXPECT_EQ(prepared(options, folder.write("one.json", "{\"text\": \"one\", \"id\": 1}\n")), Texts{"one"});
    EXPECT_EQ(prepared(options, folder.write("glued.json", "{\n\"text\": \"one\"}{\"text\": \"two\"}")), (Texts{"one", "two"}));
}

TEST(DataPrepareJsonLines, AFirstLineOfAnyLengthIsSeen) {
    const TempFolder folder;
    PrepareOptions options = plain_options(folder);
    for (const size_t length : {size_t{75000}, size_t{10} << 20}) {
        const std::string letter(length, 'x');
        const std::string lines = "{\"text\": \"" + letter + "\"}\n{\"text\": \"two\"}\n";
        const Texts both = {letter, "two"};
        EXPECT_EQ(prepared(options, folder.write("a.json", lines)), both);
        EXPECT_EQ(prepared(options, folder.write("a.json.gz", gzip(lines))), both);
        EXPECT_EQ(prepared(options, folder.write("a.zst", zstd(lines))), both);
        const std::string text = "{ " + letter;
        EXPECT_EQ(prepared(options, folder.write("b.json", text)), Texts{text});
    }
}

TEST(DataPrepareJsonLines, WhatIsTakenAsTextIsSaid) {
    const TempFolder folder;
    PrepareOptions options = plain_options(folder);
    const std::string lines = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
    const fs::path dump = folder.write("in/dump.txt", lines);
    folder.write("in/package.json", "{\n  \"name\": \"x\"\n}\n");
    folder.write("in/plain.json", "{ no JSON }");
    options.inputs = {folder / "in"};
    PrepareSummary summary = prepare(options);
    ASSERT_EQ(summary.taken_as_text.size(), 3u);
    EXPECT_EQ(summary.taken_as_text[0].what, "it looks like JSON Lines");
    EXPECT_EQ(summary.taken_as_text[0].first, dump.string());
    EXPECT_NE(summary.taken_as_text[0].remedy.find("--format json reads its objects"), std::string::npos);
    EXPECT_EQ(summary.taken_as_text[1].what, "it looks like JSON objects without the field \"text\"");
    EXPECT_EQ(summary.taken_as_text[2].what, "it is named .json, and no object of JSON was found in it");
    EXPECT_EQ(summary.manifest.train.documents, 3);
    options.inputs = {folder.write("wiki_01", "{\"text\": \"one\"}\nand text\n")};
    EXPECT_EQ(prepare(options).taken_as_text.at(0).what, "it begins like JSON");
    options.text_format = TextFormat::json;
    EXPECT_EQ(prepared(options, dump), (Texts{"one", "two"}));
    options.text_format = TextFormat::text;
    EXPECT_EQ(prepared(options, folder.write("a.jsonl", lines)), Texts{lines});
    EXPECT_TRUE(prepare(options).taken_as_text.empty());
}

TEST(DataPrepareJsonLines, DamageOfJsonIsNamed) {
    const TempFolder folder;
    PrepareOptions options = plain_options(folder);
    const auto refused = [&](const std::string& name, const std::string& bytes, const std::string& id, const std::string& text) {
        expect_user_error([&] { prepared(options, folder.write(name, bytes)); }, id, text);
    };
    refused("a.json", "[{\"text\": \"one\"}, {\"text\": \"two\"}", "data.json_line",
            "object 3: byte 34 is not JSON: the list does not end");
    refused("a.json", "[{\"text\": \"one\"} {\"text\": \"two\"}]", "data.json_line",
            "object 2: byte 18 is not JSON: a ',' or a ']'");
    refused("a.json", "[{\"text\": \"one\"}] x", "data.json_line", "more follows the list");
    refused("a.json", "[{\"text\": \"one\"}, 3]", "data.json_line", "object 2: it is a number. Correct the file");
    refused("a.json", "{\n\"text\": \"one\"}\n{\"text\"", "data.json_line",
            "object 2: byte 25 is not JSON: it ends in the middle");
    refused("a.json", "[{\"body\": \"one\"}]", "data.input_unreadable", "a JSON list of objects without the field \"text\"");
    refused("a.jsonl", "plain text\n", "data.json_line", "line 1: byte 1 is not JSON: no value begins like this");
    refused("a.jsonl", "{\"text\": NaN}\n", "data.no_field", "the field \"text\" is NaN, not text");
    options.field = "a.b";
    refused("a.jsonl", "{\"a.b\": \"x\", \"a\": {\"b\": \"y\"}}\n", "data.no_field",
            "\"a.b\" is the name of a field, and a field inside another");
}

TEST(DataByteStream, UnpacksZstdOfTheLargestWindow) {
    const TempFolder folder;
    // A frame of one raw block of 5 bytes whose window has 2^31, as zstd --long=31 writes it to a pipe.
    const std::string frame = std::string("\x28\xB5\x2F\xFD\0\xA8\x29\0\0", 9) + "hello";
    char out[8];
    EXPECT_EQ(ByteStream::open(folder.write("a.zst", frame), Packing::zstd)->read(out), 5u);
    EXPECT_EQ(std::string(out, 5), "hello");
}

TEST(DataPrepareJsonLines, DataWithoutLinesIsNotTheDataWithThem) {
    const TempFolder folder;
    PrepareOptions options;
    options.tokenizer = "bytes";
    options.inputs = {folder.write("a.jsonl", "x\n{\"text\": \"a\"}\n")};
    options.out = folder / "out";
    options.heldout_fraction = 0;
    options.most_bad_lines = 1;
    prepare(options);
    EXPECT_TRUE(prepare(options).was_prepared_already);
    options.most_bad_lines = 0;
    expect_user_error([&] { prepare(options); }, "data.out_exists", "holds this dataset without 1 lines that cannot be read");
}

TEST(DataPrepareJsonLines, WhereAllLinesAreLeftOutItIsSaid) {
    const TempFolder folder;
    PrepareOptions options;
    options.tokenizer = "bytes";
    options.inputs = {folder.write("a.jsonl", "x\ny\n")};
    options.out = folder / "out";
    options.most_bad_lines = 10;
    expect_user_error([&] { prepare(options); }, "data.nothing_to_train_on",
                      "2 lines that cannot be read were left out. Correct the lines");
    expect_user_error([&] { prepare(options); }, "data.nothing_to_train_on", "\n  a.jsonl, line 1: byte 1 is not JSON");
}

TEST(DataPrepareJsonLines, BadLinesAreLeftOutUpToALimit) {
    const TempFolder folder;
    PrepareOptions options = plain_options(folder);
    const std::string good = "{\"text\": \"good\"}\n";
    const std::string bad = good + "{\"text\": NaN}\n" + "not JSON\n" + "[1]\n" + "{\"body\": 1}\n" + "{\"text\": 3}\n" + good;
    options.inputs = {folder.write("a.jsonl", bad)};
    options.most_bad_lines = 5;
    for (const char* tokenizer : {"bytes", "bpe"}) {
        options.tokenizer = tokenizer;
        options.vocab = options.tokenizer == "bpe" ? 258 : 0;
        const SourceInfo sources = prepare(options).manifest.sources;
        EXPECT_EQ(sources.bad_lines, 5);
        const std::vector<BadLine> first = {{"a.jsonl", 2, "the field \"text\" is NaN, not text"},
                                            {"a.jsonl", 3, "byte 1 is not JSON: no value begins like this"},
                                            {"a.jsonl", 4, "the line is a list"},
                                            {"a.jsonl", 5, "there is no field \"text\"; the fields are: body"},
                                            {"a.jsonl", 6, "the field \"text\" is a number, not text"}};
        EXPECT_EQ(sources.first_bad_lines, first);
        const PreparedData data = PreparedData::open(options.out);
        EXPECT_EQ(data.manifest.sources, sources);
        EXPECT_EQ(texts_of(data), (Texts{"good", "good"}));
    }
    options.tokenizer = "bytes", options.vocab = 0;
    std::string many;
    for (int i = 0; i < 30; ++i) many += "no\n" + good;
    options.inputs = {folder.write("b.jsonl", many)};
    options.most_bad_lines = 30;
    EXPECT_EQ(prepare(options).manifest.sources.first_bad_lines.size(), 10u);
    options.most_bad_lines = 29;
    options.out = folder / "none";
    expect_user_error(
        [&] { prepare(options); }, "data.too_many_bad_lines",
        "30 lines and perhaps more cannot be read, and --skip-bad-lines leaves out 29 at most. Nothing was written. The "
        "first are:\n  b.jsonl, line 1: byte 1 is not JSON");
    EXPECT_FALSE(fs::exists(options.out));
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

TEST(DataPrepareText, ADocumentTooLongIsRefused) {
    const TempFolder folder;
    PrepareOptions options = plain_options(folder);
    const std::string text(3 << 20, 'a');
    options.longest_document_bytes = 2 << 20;
    for (const auto& [name, bytes] : {std::pair{"a.txt", text},
                                      {"a.txt.gz", gzip(text)},
                                      {"a.zst", zstd(text)},
                                      {"a.jsonl", "{\"text\": \"" + text + "\"}"},
                                      {"a.json.gz", gzip("[{\"text\": \"" + text + "\"}]")}}) {
        const fs::path file = folder.write(name, bytes);
        expect_user_error([&] { prepared(options, file); }, "data.document_too_long",
                          " longer than 2 MiB, the longest document.");
    }
    options.longest_document_bytes = 4 << 20;
    EXPECT_EQ(prepared(options, folder / "a.txt.gz"), Texts{text});
}

}  // namespace
}  // namespace lockstep::data
