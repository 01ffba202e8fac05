#include "data/file_corpus.h"

#include <fmt/format.h>

#include "base/error.h"
#include "data/file_io.h"
#include "data/id_files.h"
#include "data/parquet.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

void require_unchanged(const Input& input, int64_t bytes) {
    if (bytes == input.bytes) return;
    throw UserError("data.file_changed", input.path.string(),
                    fmt::format("{} held {} bytes when it was found and holds {} now. Let nothing write to the inputs while they "
                                "are prepared, and start again.",
                                input.path.string(), input.bytes, bytes));
}

void visit_text(const Input& input, const Corpus::Use& use) {
    Document document;
    document.name = input.name;
    document.file_bytes_done = input.bytes;
    if (input.packing == Packing::none) {
        const MappedFile mapped = MappedFile::open(input.path);
        require_unchanged(input, static_cast<int64_t>(mapped.text().size()));
        document.text = mapped.text();
        use(document);
        return;
    }
    const std::unique_ptr<ByteStream> stream = ByteStream::open(input.path, input.packing);
    const Spool unpacked(*stream);
    document.text = unpacked.text();
    use(document);
}

[[noreturn]] void refuse_line(const Input& input, int64_t line, const JsonLine& found, const FieldPath& field) {
    const std::string where = fmt::format("{}, line {}", input.path.string(), line);
    if (found.kind == JsonLine::Kind::absent) {
        throw UserError("data.no_field", "--field",
                        fmt::format("{}: there is no field \"{}\"; the fields are: {}. Name the one that holds the text with "
                                    "--field.",
                                    where, field.text(), found.detail.empty() ? "none" : found.detail));
    }
    if (found.kind == JsonLine::Kind::wrong_type) {
        throw UserError("data.no_field", "--field",
                        fmt::format("{}: the field \"{}\" is {}, not text. Name the field that holds the text with --field.",
                                    where, field.text(), found.detail));
    }
    const std::string why = found.kind == JsonLine::Kind::not_json ? found.detail : fmt::format("the line is {}", found.detail);
    throw UserError("data.json_line", input.path.string(),
                    fmt::format("{}: {}. Each line of JSON Lines must be one object in braces; correct the line or take it out.",
                                where, why));
}

void visit_json_lines(const Input& input, const FieldPath& field, const Corpus::Use& use) {
    const std::unique_ptr<ByteStream> stream = ByteStream::open(input.path, input.packing);
    LineReader lines(*stream, input.path);
    for (std::string_view line; lines.next(line);) {
        if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
        Document document;
        JsonLine found = parse_json_line(line, field);
        if (found.kind == JsonLine::Kind::not_json) {
            document.replaced_bytes = invalid_utf8(line).bytes;
            if (document.replaced_bytes > 0) found = parse_json_line(with_replacements(line), field);
        }
        if (found.kind != JsonLine::Kind::text && found.kind != JsonLine::Kind::null)
            refuse_line(input, lines.line_number(), found, field);
        const std::string name = fmt::format("{}#{}", input.name, lines.line_number());
        document.name = name;
        document.text = found.text;
        document.file_bytes_done = stream->file_bytes_done();
        if (!use(document)) return;
    }
}

void visit_parquet(const Input& input, const FieldPath& field, const Corpus::Use& use) {
    const MappedFile file = MappedFile::open(input.path);
    require_unchanged(input, static_cast<int64_t>(file.text().size()));
    int64_t row = 0;
    ParquetTexts(file.text(), input.path, field).visit([&](std::optional<std::string_view> text, int64_t bytes_done) {
        const std::string name = fmt::format("{}#{}", input.name, ++row);
        Document document;
        document.name = name;
        document.text = text.value_or("");
        document.file_bytes_done = bytes_done;
        return use(document);
    });
}

// Hands out the documents of one mapped file of ids.
class IdDocuments {
public:
    IdDocuments(const Input& input, const Corpus::Use& use) : input_(input), use_(use) {}

    bool add(std::span<const IdArray> ids, int64_t bytes_done, bool ends_with_separator = true) {
        const std::string name = fmt::format("{}#{}", input_.name, ++documents_);
        Document document;
        document.name = name;
        document.ids = ids;
        document.file_bytes_done = bytes_done;
        document.ends_with_separator = ends_with_separator;
        return use_(document);
    }
    void add_stream(const IdArray& stream, int64_t separator) {
        split_documents(stream, separator, [&](const IdArray& ids) {
            return add({&ids, 1}, ids.data - stream.data + ids.count * bytes_of(ids.type));
        });
    }

private:
    const Input& input_;
    const Corpus::Use& use_;
    int64_t documents_ = 0;
};

void visit_npy(const NpyArray& array, int64_t separator, IdDocuments& out) {
    if (array.rows == 0) return out.add_stream(array.ids, separator);
    for (int64_t row = 0; row < array.rows; ++row) {
        const IdArray ids = array.ids.part(row * array.row_length, array.row_length);
        if (!out.add({&ids, 1}, (row + 1) * array.row_length * bytes_of(ids.type), false)) return;
    }
}

void visit_megatron(const Input& input, std::string_view index, IdDocuments& out) {
    const MappedFile bin = MappedFile::open(input.bin);
    require_unchanged(input, static_cast<int64_t>(index.size() + bin.text().size()));
    const MegatronIndex documents = MegatronIndex::parse(index, bin.text(), input.path);
    std::vector<IdArray> sequences;
    for (int64_t d = 0; d < documents.documents(); ++d) {
        sequences.clear();
        documents.document(d, sequences);
        if (sequences.empty()) continue;
        const IdArray& last = sequences.back();
        if (!out.add(sequences, last.data - bin.text().data() + last.count * bytes_of(last.type))) return;
    }
}

void visit_ids(const Input& input, int64_t separator, const Corpus::Use& use) {
    const MappedFile file = MappedFile::open(input.path);
    IdDocuments out(input, use);
    if (input.format == Format::megatron_index) return visit_megatron(input, file.text(), out);
    require_unchanged(input, static_cast<int64_t>(file.text().size()));
    if (input.format == Format::npy) return visit_npy(parse_npy(file.text(), input.path), separator, out);
    if (input.format == Format::llm_c) return out.add_stream(parse_llm_c(file.text(), input.path), separator);
    out.add_stream(parse_raw_ids(file.text(), input.path), separator);
}

}  // namespace

void FileCorpus::visit(int64_t file, const Use& use) const {
    const Input& input = files_[file];
    if (input.format == Format::text) return visit_text(input, use);
    if (input.format == Format::json_lines) return visit_json_lines(input, options_.field, use);
    if (input.format == Format::parquet) return visit_parquet(input, options_.field, use);
    visit_ids(input, options_.separator, use);
}

}  // namespace lockstep::data
