// Documents to learn a vocabulary from or to turn into tokens, visited one at a time so that none needs to stay in memory.
// A document is text, or the ids that another program's tokenizer made of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/id_array.h"

namespace lockstep::data {

// What it points to lives until the visitor returns.
struct Document {
    std::string_view name;            // unique in the corpus; decides the held-out split
    std::string_view text;            // of a document of text
    std::span<const IdArray> ids;     // of a document of ids, its parts in order; empty: it is text
    bool ends_with_separator = true;  // false: of ids, a row of a table, to which no separator is added
    int64_t replaced_bytes = 0;       // bytes that were no UTF-8 and that `text` has U+FFFD for
    int64_t file_bytes_done = 0;      // how far its file has been read

    bool is_text() const { return ids.empty(); }
};

// A line of JSON Lines, or an object of JSON, that cannot be read.
struct BadLine {
    std::string file;
    int64_t line = 0;  // of JSON that is no JSON Lines, the number of the object; both from 1
    std::string cause;
    bool is_line = true;  // else an object
    const char* unit() const { return is_line ? "line" : "object"; }
    bool operator==(const BadLine&) const = default;
};

class Corpus {
public:
    virtual ~Corpus() = default;
    virtual int64_t files() const = 0;
    virtual int64_t file_bytes(int64_t file) const = 0;
    // Calls `use` with each document of the file in order, until it returns false. Safe from several threads.
    using Use = std::function<bool(const Document&)>;
    virtual void visit(int64_t file, const Use& use) const = 0;
};

}  // namespace lockstep::data
