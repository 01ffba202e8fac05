// The metadata of Parquet files: Thrift's compact protocol, and of it what is needed to read one column of text. Parsers look
// at bytes only; whatever they hold, nothing is read outside. Source: parquet-format's parquet.thrift and Encodings.md.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data::parquet {

// What is wrong with the file, in words; the caller knows which file it is.
struct Damaged : std::runtime_error {
    using std::runtime_error::runtime_error;
};

enum class Type { boolean, int32, int64, int96, float32, float64, byte_array, fixed_byte_array };
enum class Repetition { required, optional, repeated };
enum class Codec { none = 0, snappy = 1, gzip = 2, lzo = 3, brotli = 4, lz4 = 5, zstd = 6, lz4_raw = 7 };
enum class Encoding { plain = 0, plain_dictionary = 2, rle = 3, delta_length = 6, delta_byte_array = 7, rle_dictionary = 8 };
enum class PageType { data = 0, index = 1, dictionary = 2, data_v2 = 3 };

struct SchemaNode {
    std::string name;
    int type = -1;  // Type; below 0: a group
    int repetition = 0;
    int children = 0;
    bool is_null = false;  // every value is null, whatever `type` says
};

struct ColumnChunk {
    int type = -1, codec = 0;
    int64_t values = 0;
    int64_t data_offset = -1, dictionary_offset = -1;
    int64_t compressed_bytes = 0;
    bool is_elsewhere = false;  // in another file, or encrypted
};

struct RowGroup {
    std::vector<ColumnChunk> columns;
    int64_t rows = 0;
};

struct FileMetadata {
    std::vector<SchemaNode> schema;  // depth first; the root comes first
    int64_t rows = 0;
    std::vector<RowGroup> row_groups;
    bool is_encrypted = false;
};

struct PageHeader {
    int type = -1;
    int64_t uncompressed_bytes = 0, compressed_bytes = 0;
    int64_t values = 0;
    int encoding = 0;
    int64_t level_bytes = 0;  // of data_v2: definition and repetition levels, which are never compressed
    int64_t repetition_bytes = 0;
    bool is_compressed = true;
    int64_t header_bytes = 0;  // of this header itself
};

// Of a whole file: checks the magic at both ends and reads the footer. Throws Damaged.
FileMetadata parse_metadata(std::string_view file);
// `bytes` begins with the header. Throws Damaged.
PageHeader parse_page_header(std::string_view bytes);

}  // namespace lockstep::data::parquet
