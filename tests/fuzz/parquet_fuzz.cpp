// A Parquet file's columns of text.
#include "data/parquet.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_parquet("parquet", [](std::string_view bytes) {
    for (const char* field : {"text", "meta.body"}) {
        fuzz::accepts_or_refuses([&] {
            size_t rows = 0, sum = 0;
            data::ParquetTexts(bytes, "input", data::FieldPath(field))
                .visit([&](std::optional<std::string_view> text, int64_t done) {
                    ensure(done >= 0 && done <= static_cast<int64_t>(bytes.size()), "more was read than there is");
                    for (const char c : text.value_or("")) sum += static_cast<uint8_t>(c);
                    return ++rows < 100'000 && sum < 100'000'000;
                });
        });
    }
});

}  // namespace
