// Parquet: files that pyarrow wrote (parquet/make_parquet.py), columns that are refused by name, damage of every byte.
#include "data/parquet.h"

#include <nlohmann/json.hpp>

#include "data/file_io.h"
#include "data_test_util.h"
#include "tests/paths.h"

namespace lockstep::data {
namespace {

using testing::expect_user_error;
using testing::read_file;
namespace fs = testing::fs;
using ColumnTexts = std::vector<std::optional<std::string>>;

fs::path fixture(const std::string& name) { return fs::path(LOCKSTEP_SOURCE_DIR) / "tests/data/parquet" / name; }

ColumnTexts read(std::string_view bytes, const std::string& field) {
    ColumnTexts texts;
    ParquetTexts(bytes, "file.parquet", FieldPath(field)).visit([&](std::optional<std::string_view> text, int64_t) {
        texts.emplace_back(text ? std::optional<std::string>(*text) : std::nullopt);
        return true;
    });
    return texts;
}

ColumnTexts expected() {
    ColumnTexts texts;
    for (const nlohmann::json& text : nlohmann::json::parse(read_file(fixture("texts.json"))))
        texts.push_back(text.is_null() ? std::nullopt : std::optional(text.get<std::string>()));
    return texts;
}

TEST(DataParquet, ReadsWhatPyarrowWrites) {
    for (const char* name : {"plain", "dictionary_snappy", "gzip_v2", "zstd_v2_plain", "delta_length", "delta_byte_array",
                             "row_groups", "small_pages"}) {
        EXPECT_EQ(read(read_file(fixture(std::string(name) + ".parquet")), "text"), expected()) << name;
    }
    EXPECT_EQ(read(read_file(fixture("nested.parquet")), "meta.body"), expected());
    ColumnTexts filled = expected();
    for (std::optional<std::string>& text : filled) text = text.value_or("");
    EXPECT_EQ(read(read_file(fixture("required.parquet")), "text"), filled);
}

TEST(DataParquet, StopsWhenAsked) {
    int rows = 0;
    const std::string bytes = read_file(fixture("row_groups.parquet"));
    ParquetTexts(bytes, "f", FieldPath("text")).visit([&](auto, int64_t) { return ++rows < 10; });
    EXPECT_EQ(rows, 10);
}

TEST(DataParquet, ColumnsThatHoldNoTextAreRefusedByName) {
    const std::string plain = read_file(fixture("plain.parquet")), nested = read_file(fixture("nested.parquet"));
    expect_user_error([&] { read(plain, "content"); }, "data.no_field",
                      "there is no column \"content\"; the columns are: id, text, tags.list.element. Name the column");
    expect_user_error([&] { read(plain, "id"); }, "data.no_field", "the column \"id\" holds integers, not text");
    expect_user_error([&] { read(plain, "tags"); }, "data.no_field", "the column \"tags\" holds lists, not text");
    expect_user_error([&] { read(nested, "meta"); }, "data.no_field", "the column \"meta\" is a struct of meta.id, meta.body");
    const std::string odd = read_file(fixture("odd_columns.parquet"));
    expect_user_error([&] { read(odd, "nothing"); }, "data.no_field", "the column \"nothing\" holds nulls, not text");
    expect_user_error([&] { read(odd, "twice"); }, "data.no_field",
                      "\"twice\" is the name of more than one column. Rename one of them in the data.");
    expect_user_error([&] { read(read_file(fixture("brotli.parquet")), "text"); }, "data.parquet",
                      "it is compressed with Brotli; snappy, gzip and zstd are read. Write it again with pyarrow");
    expect_user_error([&] { read(plain.substr(0, plain.size() - 1), "text"); }, "data.parquet",
                      "its end is missing: it was cut off");
}

// Damage is refused or changes texts; nothing is read outside the file (the sanitizers' build watches).
TEST(DataParquet, NoDamageIsFatal) {
    int refused = 0;
    for (const char* name : {"plain", "gzip_v2", "delta_length", "delta_byte_array", "small_pages"}) {
        const std::string good = read_file(fixture(std::string(name) + ".parquet"));
        for (size_t at = 0; at < good.size(); ++at) {
            for (const int bits : {0x01, 0x10, 0xFF}) {
                std::string bytes = good;
                bytes[at] = static_cast<char>(bytes[at] ^ bits);
                try {
                    read(bytes, "text");
                } catch (const UserError&) {
                    ++refused;
                }
            }
        }
        for (size_t cut = 0; cut < good.size(); cut += 7) EXPECT_THROW(read(good.substr(0, cut), "text"), UserError);
    }
    EXPECT_GT(refused, 1000);
}

// ---- what a file may claim: small files, written here

using Fields = std::vector<std::pair<int, std::string>>;  // ids, and wire type and bytes of the values

std::string varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    return out + static_cast<char>(value);
}

// Thrift's compact protocol: a value with its wire type before it.
std::string number(int64_t value) {
    return "\x06" + varint(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
}
std::string bytes(const std::string& text) { return "\x08" + varint(text.size()) + text; }
std::string structure(const Fields& fields) {
    std::string out = "\x0C";
    int last = 0;
    for (const auto& [id, value] : fields) {
        out += static_cast<char>((id - last) << 4 | value[0]);
        out += value.substr(1);
        last = id;
    }
    return out + '\0';
}
std::string list(const std::vector<std::string>& structures) {
    std::string out = "\x09";
    out += static_cast<char>(structures.size() << 4 | 12);
    for (const std::string& s : structures) out += s.substr(1);
    return out;
}

struct Page {
    int64_t unpacked_bytes;
    std::string body;
    int64_t values = 1;
    std::string bytes() const {
        const std::string data = structure({{1, number(values)}, {2, number(0)}, {3, number(3)}, {4, number(3)}});
        return structure({{1, number(0)}, {2, number(unpacked_bytes)}, {3, number(static_cast<int64_t>(body.size()))}, {5, data}})
                   .substr(1) +
               body;
    }
};

// A column "text" of one page, which all row groups point to.
std::string file_of(const Page& page, int codec, int row_groups = 1, bool is_optional = false) {
    const std::string column =
        structure({{1, number(6)}, {4, number(codec)}, {5, number(page.values)}, {7, number(1)}, {9, number(4)}});
    const std::string group = structure({{1, list({structure({{3, column}})})}, {3, number(page.values)}});
    const std::string root = structure({{4, bytes("schema")}, {5, number(1)}});
    const std::string leaf = structure({{1, number(6)}, {3, number(is_optional ? 1 : 0)}, {4, bytes("text")}});
    const std::string footer = structure({{1, number(2)},
                                          {2, list({root, leaf})},
                                          {3, number(page.values)},
                                          {4, list(std::vector<std::string>(static_cast<size_t>(row_groups), group))}})
                                   .substr(1);
    const auto size = static_cast<uint32_t>(footer.size());
    return "PAR1" + page.bytes() + footer + std::string(reinterpret_cast<const char*>(&size), 4) + "PAR1";
}

TEST(DataParquet, ClaimsAreBounded) {
    constexpr int kNone = 0, kSnappy = 1, kGzip = 2, kZstd = 6;
    const std::string abc = std::string("\3\0\0\0", 4) + "abc";
    EXPECT_EQ(read(file_of({7, abc}, kNone), "text"), ColumnTexts{"abc"});
    EXPECT_EQ(read(file_of({7, "\x07\x18" + abc}, kSnappy), "text"), ColumnTexts{"abc"});
    const auto refused = [](const std::string& file, const std::string& why) {
        expect_user_error([&] { read(file, "text"); }, "data.parquet", "file.parquet: " + why);
    };
    for (const int codec : {kSnappy, kGzip, kZstd}) {
        for (const int64_t claim : {(int64_t{1} << 30) + 1, int64_t{INT32_MAX}, int64_t{1} << 40, int64_t{-1}})
            refused(file_of({claim, "xx"}, codec), "a page is said to have ");
        refused(file_of({int64_t{1} << 30, "xx"}, codec), "a page cannot be unpacked");
    }
    refused(file_of({int64_t{1} << 30, varint(uint64_t{1} << 30) + "\x18" + abc}, kSnappy), "a page cannot be unpacked");
    const std::string longer = std::string("\xE8\3\0\0", 4) + std::string(1000, 'x');
    EXPECT_EQ(read(file_of({1004, longer}, kNone), "text"), ColumnTexts{std::string(1000, 'x')});
    refused(file_of({1004, longer}, kNone, 2), "its row groups share pages");
    // A run of levels: so many nulls, in two bytes.
    const int64_t many = (int64_t{1} << 26) + 1;
    const std::string levels = varint(static_cast<uint64_t>(many) << 1) + '\0';
    refused(file_of({0, std::string("\6\0\0\0", 4) + levels, many}, kNone, 1, true), "a page is said to hold 67108865 rows");
}

TEST(DataParquet, ANameMayHoldADot) {
    std::string flat = file_of({7, std::string("\3\0\0\0", 4) + "abc"}, 0);
    flat.replace(flat.find("text"), 4, "a.bc");
    EXPECT_EQ(read(flat, "a.bc"), ColumnTexts{"abc"});
    expect_user_error([&] { read(flat, "a"); }, "data.no_field", "there is no column \"a\"; the columns are: a.bc.");
}

}  // namespace
}  // namespace lockstep::data
