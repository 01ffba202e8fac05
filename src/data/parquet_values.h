// How Parquet stores levels and texts inside a page: each reader yields one value at a time and never leaves its bytes.
// Source: parquet-format's Encodings.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/parquet_format.h"

namespace lockstep::data::parquet {

// Runs and bit-packed groups of numbers of `bit_width` bits (0 to 32). Past its last value it throws Damaged.
class HybridReader {
public:
    HybridReader(std::string_view bytes, int bit_width);
    uint32_t next();

private:
    void next_run();

    std::string_view bytes_;
    size_t at_ = 0;
    int bit_width_;
    uint64_t left_ = 0;  // values of the run at hand
    bool is_packed_ = false;
    uint32_t repeated_ = 0;
    uint64_t bit_ = 0;  // of a packed run, where the next value begins, from at_
    size_t packed_end_ = 0;
};

// All numbers of a DELTA_BINARY_PACKED section, and how long it is.
struct Deltas {
    std::vector<int32_t> values;
    size_t bytes = 0;
};
Deltas parse_deltas(std::string_view bytes);

// The texts of a page, one after another. A view lives until the next call, and as long as the page.
class TextReader {
public:
    virtual ~TextReader() = default;
    virtual std::string_view next() = 0;
    // `dictionary` may be null; `bytes` are the page's values, without levels. Throws Damaged also for encodings that texts do
    // not have.
    static std::unique_ptr<TextReader> make(int encoding, std::string_view bytes,
                                            const std::vector<std::string_view>* dictionary);
};

// The `count` texts of a dictionary page.
std::vector<std::string_view> parse_plain_texts(std::string_view bytes, int64_t count);

}  // namespace lockstep::data::parquet
