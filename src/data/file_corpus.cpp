#include "data/file_corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "data/file_io.h"
#include "data/id_files.h"
#include "data/json_shape.h"
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

// All bytes of a file, unpacked: mapped, or through a temporary file.
class WholeFile {
public:
    WholeFile(const Input& input, int64_t longest_bytes) {
        if (input.packing != Packing::none) {
            const std::unique_ptr<ByteStream> stream = ByteStream::open(input.path, input.packing);
            spool_.emplace(*stream, input.path, longest_bytes);
            return;
        }
        mapped_ = MappedFile::open(input.path);
        require_unchanged(input, static_cast<int64_t>(mapped_.text().size()));
        const bool is_one_document = input.format == Format::text;
        if (is_one_document && input.bytes > longest_bytes) refuse_long_document(input.path, "it is", longest_bytes);
    }
    std::string_view text() const { return spool_ ? spool_->text() : mapped_.text(); }

private:
    MappedFile mapped_;
    std::optional<Spool> spool_;
};

void visit_text(const Input& input, const ReadOptions& options, const Corpus::Use& use) {
    const WholeFile file(input, options.longest_document_bytes);
    Document document;
    document.name = input.name;
    document.file_bytes_done = input.bytes;
    document.text = file.text();
    use(document);
}

// ---- JSON

[[noreturn]] void refuse_json(const Input& input, const BadLine& bad, const JsonField& found) {
    const std::string where = fmt::format("{}, {} {}", input.path.string(), bad.unit(), bad.line);
    const bool is_field = found.kind == JsonField::Kind::absent || found.kind == JsonField::Kind::wrong_type;
    if (found.kind == JsonField::Kind::ambiguous) {
        throw UserError("data.no_field", "--field",
                        fmt::format("{}: {}. Rename one of the two in the data, or leave out such lines with --skip-bad-lines.",
                                    where, bad.cause));
    }
    if (is_field) {
        throw UserError("data.no_field", "--field",
                        fmt::format("{}: {}. Name the field that holds the text with --field, or leave out such lines with "
                                    "--skip-bad-lines.",
                                    where, bad.cause));
    }
    throw UserError("data.json_line", input.path.string(),
                    fmt::format("{}: {}. {}", where, bad.cause,
                                input.format == Format::json_lines
                                    ? "Each line of JSON Lines must be one object in braces; correct the line, or leave out such "
                                      "lines with --skip-bad-lines."
                                    : "Correct the file."));
}

std::string cause_of(const JsonField& found, const FieldPath& field, bool is_line) {
    using Kind = JsonField::Kind;
    switch (found.kind) {
        case Kind::absent:
            return fmt::format("there is no field \"{}\"; the fields are: {}", field.text(),
                               found.detail.empty() ? "none" : found.detail);
        case Kind::wrong_type: return fmt::format("the field \"{}\" is {}, not text", field.text(), found.detail);
        case Kind::ambiguous: return fmt::format("\"{}\" is the name of a field, and a field inside another", field.text());
        case Kind::no_object: return fmt::format("{} is {}", is_line ? "the line" : "it", found.detail);
        default: return found.detail;
    }
}

// Hands out the texts of one file of JSON.
class JsonTexts {
public:
    JsonTexts(const Input& input, const ReadOptions& options, const Corpus::Use& use, const FileCorpus::UseBad& bad)
        : input_(input), options_(options), use_(use), bad_(bad) {}

    bool add(const JsonField& found, int64_t number, int64_t bytes_done) {
        if (found.kind != JsonField::Kind::text && found.kind != JsonField::Kind::null) {
            const bool is_line = input_.format == Format::json_lines;
            const BadLine bad{input_.name, number, cause_of(found, options_.field, is_line), is_line};
            if (!options_.skips_bad_lines) refuse_json(input_, bad, found);
            if (bad_) bad_(bad);
            return true;
        }
        const std::string name = fmt::format("{}#{}", input_.name, number);
        Document document;
        document.name = name;
        document.file_bytes_done = bytes_done;
        document.replaced_bytes = invalid_utf8(found.text).bytes;
        const std::string valid = document.replaced_bytes > 0 ? with_replacements(found.text) : "";
        document.text = document.replaced_bytes > 0 ? std::string_view(valid) : found.text;
        return use_(document);
    }

private:
    const Input& input_;
    const ReadOptions& options_;
    const Corpus::Use& use_;
    const FileCorpus::UseBad& bad_;
};

void visit_json_lines(const Input& input, const ReadOptions& options, JsonTexts out) {
    const std::unique_ptr<ByteStream> stream = ByteStream::open(input.path, input.packing);
    LineReader lines(*stream, input.path, options.longest_document_bytes);
    for (std::string_view line; lines.next(line);) {
        if (skip_json_space(line, 0) == line.size()) continue;
        if (!out.add(read_json_line(line, options.field), lines.line_number(), stream->file_bytes_done())) return;
    }
}

// Objects one behind another, or a list of them.
void visit_json_values(const Input& input, const ReadOptions& options, JsonTexts out) {
    const WholeFile file(input, options.longest_document_bytes);
    const std::string_view text = file.text();
    int64_t number = 0;
    const auto damaged = [&](const std::string& why) { refuse_json(input, {input.name, number + 1, why, false}, {}); };
    size_t at = skip_json_space(text, byte_order_mark_bytes(text));
    const bool is_list = at < text.size() && text[at] == '[';
    if (is_list) at = skip_json_space(text, at + 1);
    while (at < text.size() && !(is_list && text[at] == ']')) {
        const JsonField found = read_json_value(text, at, options.field);
        if (found.kind == JsonField::Kind::not_json) damaged(found.detail);
        at = skip_json_space(text, found.end);
        if (!out.add(found, ++number, std::min(input.bytes, static_cast<int64_t>(found.end)))) return;
        if (!is_list) continue;
        if (at == text.size()) break;
        if (text[at] == ',') at = skip_json_space(text, at + 1);
        else if (text[at] != ']') damaged(not_json_at(at + 1, "a ',' or a ']' belongs here"));
    }
    if (is_list && at == text.size()) damaged(not_json_at(at + 1, "the list does not end"));
    if (is_list && skip_json_space(text, at + 1) < text.size())
        damaged(not_json_at(skip_json_space(text, at + 1) + 1, "more follows the list"));
}

void visit_parquet(const Input& input, const ReadOptions& options, const Corpus::Use& use) {
    const MappedFile file = MappedFile::open(input.path);
    require_unchanged(input, static_cast<int64_t>(file.text().size()));
    int64_t row = 0;
    ParquetTexts(file.text(), input.path, options.field).visit([&](std::optional<std::string_view> text, int64_t bytes_done) {
        const std::string name = fmt::format("{}#{}", input.name, ++row);
        Document document;
        document.name = name;
        document.text = text.value_or("");
        if (static_cast<int64_t>(document.text.size()) > options.longest_document_bytes)
            refuse_long_document(input.path, fmt::format("row {} is", row), options.longest_document_bytes);
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
        require_tokens(stream, separator);
        split_documents(stream, separator, [&](const IdArray& ids) {
            return add({&ids, 1}, ids.data - stream.data + ids.count * bytes_of(ids.type));
        });
    }

private:
    // Of a file that was made and never filled, say.
    void require_tokens(const IdArray& stream, int64_t separator) const {
        for (int64_t i = 0; i < stream.count; ++i)
            if (stream[i] != separator) return;
        if (stream.count < 2) return;
        throw UserError(
            "data.foreign_ids", input_.path.string(),
            fmt::format("{}: all of its {} ids are {}, the separator, so that all documents are empty. Write it again, "
                        "or say with --separator or --end-token which id ends a document.",
                        input_.path.string(), stream.count, separator));
    }

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

void visit_ids(const Input& input, const ReadOptions& options, const Corpus::Use& use) {
    const MappedFile file = MappedFile::open(input.path);
    IdDocuments out(input, use);
    if (input.format == Format::megatron_index) return visit_megatron(input, file.text(), out);
    require_unchanged(input, static_cast<int64_t>(file.text().size()));
    if (input.format == Format::npy) return visit_npy(parse_npy(file.text(), input.path), options.separator, out);
    if (input.format == Format::llm_c) return out.add_stream(parse_llm_c(file.text(), input.path), options.separator);
    out.add_stream(parse_raw_ids(file.text(), input.path, options.id_bytes, options.vocab_size), options.separator);
}

}  // namespace

void FileCorpus::visit(int64_t file, const Use& use, const UseBad& bad) const {
    const Input& input = files_[file];
    if (input.format == Format::text) return visit_text(input, options_, use);
    if (input.format == Format::json_lines) return visit_json_lines(input, options_, {input, options_, use, bad});
    if (input.format == Format::json_values) return visit_json_values(input, options_, {input, options_, use, bad});
    if (input.format == Format::parquet) return visit_parquet(input, options_, use);
    visit_ids(input, options_, use);
}

}  // namespace lockstep::data
