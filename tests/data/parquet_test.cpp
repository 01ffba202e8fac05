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
using Texts = std::vector<std::optional<std::string>>;

fs::path fixture(const std::string& name) { return fs::path(LOCKSTEP_SOURCE_DIR) / "tests/data/parquet" / name; }

Texts read(std::string_view bytes, const std::string& field) {
    Texts texts;
    ParquetTexts(bytes, "file.parquet", FieldPath(field)).visit([&](std::optional<std::string_view> text, int64_t) {
        texts.emplace_back(text ? std::optional<std::string>(*text) : std::nullopt);
        return true;
    });
    return texts;
}

Texts expected() {
    Texts texts;
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
    Texts filled = expected();
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

}  // namespace
}  // namespace lockstep::data
