// Text, plain or packed, line by line: each line as text of a vocabulary of bytes and as a line of JSON Lines.
#include "data/byte_stream.h"
#include "data/file_format.h"
#include "data/json_shape.h"
#include "data/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_json_lines("json_lines", [](std::string_view bytes) {
    const fuzz::MemoryFile file(bytes);
    data::format_of("a.json", data::packing_of(bytes), bytes);
    for (const bool is_whole : {false, true}) data::json_shape(bytes, is_whole, data::FieldPath("text"));
    const std::unique_ptr<data::ByteStream> stream = data::ByteStream::open(file.path(), data::packing_of(bytes));
    data::LineReader lines(*stream, file.path(), int64_t{1} << 20);
    const data::FieldPath text("text"), inner("meta.body");
    std::string_view line;
    for (int n = 0; n < 10'000 && lines.next(line); ++n) {
        const std::string valid = data::with_replacements(line);
        ensure(data::invalid_utf8(valid).bytes == 0, "a text is not valid after its replacements");
        for (const data::FieldPath* field : {&text, &inner}) {
            const data::JsonField found = data::read_json_line(valid, *field);
            ensure(data::invalid_utf8(found.text).bytes == 0, "a text of JSON is not UTF-8");
        }
    }
});

}  // namespace
