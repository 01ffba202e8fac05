#include "data/parquet.h"

#include <fmt/format.h>
#include <snappy.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "data/parquet_values.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

using namespace parquet;

constexpr int64_t kLargestPageBytes = int64_t{1} << 30;  // with its dictionary
constexpr int64_t kMostValuesOfPage = int64_t{1} << 26;  // as many as the largest row group of pyarrow; nulls take no bytes
constexpr size_t kMostColumnsNamed = 12;
constexpr size_t kLongestColumnShown = 64;

// ---- which column

struct Leaf {
    std::vector<std::string_view> path;
    int type = -1;
    int optional = 0;
    bool is_repeated = false, is_null = false;
};

// Adds the leaves below node `at` and returns the node behind them.
size_t add_leaves(const std::vector<SchemaNode>& schema, size_t at, const Leaf& above, std::vector<Leaf>& leaves) {
    if (at >= schema.size() || above.path.size() > 64) throw Damaged("its schema is damaged");
    const SchemaNode& node = schema[at];
    Leaf here = above;
    if (at > 0) here.path.push_back(node.name);
    here.type = node.type, here.is_null = node.is_null;
    here.optional += at > 0 && node.repetition == static_cast<int>(Repetition::optional) ? 1 : 0;
    here.is_repeated = here.is_repeated || (at > 0 && node.repetition == static_cast<int>(Repetition::repeated));
    size_t next = at + 1;
    if (node.children == 0 && at > 0) {
        leaves.push_back(std::move(here));
        return next;
    }
    for (int child = 0; child < node.children; ++child) next = add_leaves(schema, next, here, leaves);
    return next;
}

std::string type_name(int type) {
    constexpr const char* kNames[] = {"true or false", "integers", "integers", "times",
                                      "numbers",       "numbers",  "text",     "bytes of fixed length"};
    return type >= 0 && type < 8 ? kNames[type] : "groups";
}

std::string dotted(const std::vector<std::string_view>& path) {
    std::string text;
    for (const std::string_view name : path) {
        text += (text.empty() ? "" : ".") + with_replacements(name.substr(0, kLongestColumnShown));
        if (name.size() > kLongestColumnShown) text += "...";
    }
    return text;
}

// ---- pages

// Memory of a page that nothing is written to before it is unpacked: what a header claims and does not hold takes none.
struct PageBuffer {
    std::unique_ptr<char[]> bytes;
    size_t size = 0;
    char* resize(size_t wanted) {
        if (wanted > size) {
            bytes.reset();
            bytes = std::make_unique_for_overwrite<char[]>(wanted);
            size = wanted;
        }
        return bytes.get();
    }
};

bool unpack_gzip(std::string_view packed, char* out, size_t bytes) {
    constexpr int kZlibOrGzip = 32;
    z_stream z{};
    ensure(inflateInit2(&z, MAX_WBITS + kZlibOrGzip) == Z_OK, "parquet: zlib does not start");
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
    z.avail_in = static_cast<uInt>(packed.size());
    z.next_out = reinterpret_cast<Bytef*>(out);
    z.avail_out = static_cast<uInt>(bytes);
    const bool is_right = inflate(&z, Z_FINISH) == Z_STREAM_END && z.avail_out == 0;
    inflateEnd(&z);
    return is_right;
}

// `most`: the bytes that the page may have.
std::string_view unpack(int codec, std::string_view packed, int64_t bytes, int64_t most, PageBuffer& buffer) {
    if (static_cast<Codec>(codec) == Codec::none) return packed;
    if (bytes < 0 || bytes > most)
        throw Damaged(
            fmt::format("a page is said to have {} bytes; a page and its dictionary have at most {} MiB. Write it again "
                        "with smaller pages",
                        bytes, kLargestPageBytes >> 20));
    const auto wanted = static_cast<size_t>(bytes);
    if (wanted == 0) return {};  // a dictionary of a page of nulls
    bool is_right = false;
    if (static_cast<Codec>(codec) == Codec::snappy) {
        size_t length = 0;
        is_right = snappy::GetUncompressedLength(packed.data(), packed.size(), &length) && length == wanted &&
                   snappy::RawUncompress(packed.data(), packed.size(), buffer.resize(wanted));
    } else if (static_cast<Codec>(codec) == Codec::zstd) {
        is_right = ZSTD_decompress(buffer.resize(wanted), wanted, packed.data(), packed.size()) == wanted;
    } else if (static_cast<Codec>(codec) == Codec::gzip) {
        is_right = unpack_gzip(packed, buffer.resize(wanted), wanted);
    } else {
        constexpr const char* kNames[] = {"", "", "", "LZO", "Brotli", "LZ4", "", "LZ4"};
        throw Damaged(
            fmt::format("it is compressed with {}; snappy, gzip and zstd are read. Write it again with pyarrow: "
                        "pyarrow.parquet.write_table(pyarrow.parquet.read_table(FILE), FILE, compression=\"zstd\")",
                        codec >= 0 && codec < 8 ? kNames[codec] : fmt::format("the unknown codec {}", codec)));
    }
    if (!is_right) throw Damaged("a page cannot be unpacked");
    return {buffer.bytes.get(), wanted};
}

// The values of a data page, with the levels that say which of them are null.
struct DataPage {
    std::string_view levels, values;
};

DataPage data_page(const PageHeader& header, int codec, std::string_view body, bool has_levels, int64_t most,
                   PageBuffer& buffer) {
    if (header.type == static_cast<int>(PageType::data_v2)) {
        if (header.level_bytes < 0 || header.repetition_bytes < 0 || header.level_bytes > static_cast<int64_t>(body.size()) ||
            header.repetition_bytes > static_cast<int64_t>(body.size()) - header.level_bytes)
            throw Damaged("the levels of a page leave it");
        const auto before = static_cast<size_t>(header.level_bytes + header.repetition_bytes);
        const std::string_view levels =
            body.substr(static_cast<size_t>(header.repetition_bytes), static_cast<size_t>(header.level_bytes));
        const std::string_view packed = body.substr(before);
        if (!header.is_compressed || packed.empty()) return {levels, packed};
        return {levels, unpack(codec, packed, header.uncompressed_bytes - static_cast<int64_t>(before), most, buffer)};
    }
    std::string_view page = unpack(codec, body, header.uncompressed_bytes, most, buffer);
    if (!has_levels) return {{}, page};
    uint32_t length = 0;
    if (page.size() < sizeof(length)) throw Damaged("a page was cut off");
    std::memcpy(&length, page.data(), sizeof(length));
    page.remove_prefix(sizeof(length));
    if (length > page.size()) throw Damaged("the levels of a page leave it");
    return {page.substr(0, length), page.substr(length)};
}

}  // namespace

void ParquetTexts::refuse(const std::string& why) const {
    throw UserError("data.parquet", file_.string(), fmt::format("{}: {}.", file_.string(), why));
}

ParquetTexts::ParquetTexts(std::string_view bytes, const std::filesystem::path& file, const FieldPath& field)
    : bytes_(bytes), file_(file) {
    std::vector<Leaf> leaves;
    try {
        metadata_ = parse_metadata(bytes);
        if (metadata_.is_encrypted) throw Damaged("it is encrypted");
        add_leaves(metadata_.schema, 0, {}, leaves);
    } catch (const Damaged& damage) {
        refuse(damage.what());
    }
    const auto no_field = [&](const std::string& why, const char* remedy = "Name the column that holds the text with --field") {
        throw UserError("data.no_field", "--field", fmt::format("{}: {}. {}.", file.string(), why, remedy));
    };
    std::string columns, inside;
    size_t found = leaves.size();
    int spelled = 0;
    bool is_in_struct = false;
    for (size_t i = 0; i < leaves.size(); ++i) {
        const std::vector<std::string_view>& path = leaves[i].path;
        if (i < kMostColumnsNamed) columns += (i > 0 ? ", " : "") + dotted(path);
        if (i == kMostColumnsNamed) columns += ", ...";
        const size_t names = field.names_that_spell(path);
        if (names == path.size() && names > 0) found = i, ++spelled, is_in_struct = is_in_struct || names > 1;
        const bool is_below = names > 0 && names < path.size();
        if (is_below && leaves[i].is_repeated) no_field(fmt::format("the column \"{}\" holds lists, not text", field.text()));
        if (is_below && inside.size() < kMostColumnsNamed * kLongestColumnShown)
            inside += (inside.empty() ? "" : ", ") + dotted(path);
    }
    if (spelled > 1) {
        const char* what = is_in_struct ? "a column, and a field of a struct" : "more than one column";
        no_field(fmt::format("\"{}\" is the name of {}", field.text(), what), "Rename one of them in the data");
    }
    if (!inside.empty()) no_field(fmt::format("the column \"{}\" is a struct of {}", field.text(), inside));
    if (found == leaves.size()) no_field(fmt::format("there is no column \"{}\"; the columns are: {}", field.text(), columns));
    const Leaf& leaf = leaves[found];
    if (leaf.is_repeated) no_field(fmt::format("the column \"{}\" holds lists, not text", field.text()));
    if (leaf.type != static_cast<int>(Type::byte_array))
        no_field(
            fmt::format("the column \"{}\" holds {}, not text", field.text(), leaf.is_null ? "nulls" : type_name(leaf.type)));
    column_ = found;
    deepest_level_ = leaf.optional;
}

void ParquetTexts::visit(const Use& use) const {
    Progress progress;
    try {
        for (const RowGroup& group : metadata_.row_groups) {
            if (column_ >= group.columns.size()) throw Damaged("a row group lacks the column");
            if (!visit_column(group.columns[column_], use, progress)) return;
        }
    } catch (const Damaged& damage) {
        refuse(damage.what());
    }
}

bool ParquetTexts::visit_column(const ColumnChunk& column, const Use& use, Progress& progress) const {
    if (column.is_elsewhere) throw Damaged("a column lies in another file or is encrypted");
    if (column.type != static_cast<int>(Type::byte_array)) throw Damaged("a row group has the column with another type");
    const bool has_dictionary = column.dictionary_offset > 0 && column.dictionary_offset < column.data_offset;
    int64_t at = has_dictionary ? column.dictionary_offset : column.data_offset;
    const auto file_bytes = static_cast<int64_t>(bytes_.size());
    PageBuffer dictionary_buffer, buffer;
    std::vector<std::string_view> dictionary;
    bool dictionary_is_read = false;
    int64_t left = column.values;
    while (left > 0) {
        if (at < 0 || at >= file_bytes) throw Damaged("a column leaves the file");
        const PageHeader header = parse_page_header(bytes_.substr(static_cast<size_t>(at)));
        at += header.header_bytes;
        if (header.compressed_bytes < 0 || header.compressed_bytes > file_bytes - at) throw Damaged("a page leaves the file");
        const std::string_view body = bytes_.substr(static_cast<size_t>(at), static_cast<size_t>(header.compressed_bytes));
        at += header.compressed_bytes;
        progress.bytes_read += header.header_bytes + header.compressed_bytes;
        if (progress.bytes_read > file_bytes) throw Damaged("its row groups share pages");
        const int64_t most = kLargestPageBytes - static_cast<int64_t>(dictionary_buffer.size);
        if (header.type == static_cast<int>(PageType::dictionary)) {
            if (dictionary_is_read) throw Damaged("a column has two dictionaries");
            dictionary =
                parse_plain_texts(unpack(column.codec, body, header.uncompressed_bytes, most, dictionary_buffer), header.values);
            dictionary_is_read = true;
            continue;
        }
        if (header.type != static_cast<int>(PageType::data) && header.type != static_cast<int>(PageType::data_v2)) {
            if (header.compressed_bytes + header.header_bytes == 0) throw Damaged("a page is empty");
            continue;
        }
        if (header.values < 0 || header.values > left) throw Damaged("a page holds more rows than its column");
        if (header.values > kMostValuesOfPage) throw Damaged(fmt::format("a page is said to hold {} rows", header.values));
        const DataPage page = data_page(header, column.codec, body, deepest_level_ > 0, most, buffer);
        HybridReader levels(page.levels, std::bit_width(static_cast<unsigned>(deepest_level_)));
        const std::unique_ptr<TextReader> texts =
            TextReader::make(header.encoding, page.values, dictionary_is_read ? &dictionary : nullptr);
        for (int64_t row = 0; row < header.values; ++row) {
            const bool is_there = deepest_level_ == 0 || static_cast<int>(levels.next()) == deepest_level_;
            if (!use(is_there ? std::optional(texts->next()) : std::nullopt, at)) return false;
        }
        left -= header.values;
    }
    return true;
}

}  // namespace lockstep::data
