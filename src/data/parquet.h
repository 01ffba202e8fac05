// One column of text of a Parquet file: flat or inside structs, nullable or not, any number of row groups, pages of version 1
// and 2, uncompressed, snappy, gzip or zstd. A page at a time is in memory.
// Whatever a file claims: a page and its dictionary take at most 1 GiB together, and the pages that are read have no more
// bytes than the file.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "data/json_value.h"
#include "data/parquet_format.h"

namespace lockstep::data {

class ParquetTexts {
public:
    // Finds the column that `field` names. `bytes` is the whole file and must outlive this. Errors: data.parquet (the file is
    // damaged, or compressed or stored in a way that is not read), data.no_field (there is no such column,
    // or it holds no text).
    ParquetTexts(std::string_view bytes, const std::filesystem::path& file, const FieldPath& field);

    // Calls `use` with the text of each row in order (nothing: null) and how much of the file has been read, until it returns
    // false. UserError data.parquet.
    using Use = std::function<bool(std::optional<std::string_view> text, int64_t bytes_done)>;
    void visit(const Use& use) const;

private:
    struct Progress {
        int64_t bytes_read = 0;  // of all pages so far
    };
    bool visit_column(const parquet::ColumnChunk& column, const Use& use, Progress& progress) const;
    [[noreturn]] void refuse(const std::string& why) const;

    std::string_view bytes_;
    std::filesystem::path file_;
    parquet::FileMetadata metadata_;
    size_t column_ = 0;
    int deepest_level_ = 0;  // of a value that is there: the optional nodes on its path
};

}  // namespace lockstep::data
