#include "data/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "data/file_io.h"
#include "data/json_shape.h"
#include "data/known_datasets.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace fs = std::filesystem;
namespace {

enum class NamedBy { user, folder };

// More than the longest line of JSON Lines is read for no shape.
constexpr size_t kLongestHeadBytes = kLongestDocumentBytes + kFormatHeadBytes;

std::string head_of(const fs::path& path, Packing packing, size_t bytes = kFormatHeadBytes) {
    const std::unique_ptr<ByteStream> stream = ByteStream::open(path, packing);
    std::string head;
    while (head.size() < bytes) {
        const size_t before = head.size(), wanted = std::min(bytes - before, kFormatHeadBytes);
        head.resize(before + wanted);
        const size_t got = stream->read({head.data() + before, wanted});
        head.resize(before + got);
        if (got == 0) break;
    }
    return head;
}

class InputsFinder {
public:
    explicit InputsFinder(const FindOptions& options) : options_(options) {}

    void add_input(const fs::path& input) {
        std::error_code error;
        if (const fs::file_status status = fs::status(input, error); !fs::exists(status)) {
            throw UserError(
                "data.input_missing", input.string(),
                fmt::format("the input {0} cannot be found: {1}. Name an existing file or folder{2}.", input.string(),
                            error.message(),
                            is_megatron_index(with_suffix(input, ".idx"))
                                ? fmt::format("; of Megatron-LM's pair {0}.idx and {0}.bin, name {0}.idx", input.string())
                                : ""));
        }
        const fs::path path = absolute(input);
        add(path, path.filename().string(), NamedBy::user);
    }

    Inputs take() { return std::move(found_); }

private:
    static fs::path with_suffix(fs::path path, const char* suffix) { return path += suffix; }

    // A link keeps its name and its neighbours: what it leads to in the cache of Hugging Face's hub is named by a checksum.
    static fs::path absolute(const fs::path& input) {
        const fs::path named = input.has_filename() ? input : input.parent_path();  // "folder/"
        const fs::path name = named.filename();
        if (name.empty() || name == "." || name == "..") return fs::canonical(input);
        return fs::canonical(fs::absolute(named).parent_path()) / name;
    }

    void add(const fs::path& path, const std::string& name, NamedBy named_by) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);  // of what a link leads to
        if (fs::is_directory(status)) return add_folder(path, name, named_by);
        if (fs::is_regular_file(status)) return add_file(path, name, named_by);
        if (named_by == NamedBy::user) refuse(path, "it is not a regular file", "Write what it gives into a file first.");
        ++found_.skipped_other;
    }

    [[noreturn]] static void refuse(const fs::path& path, const std::string& why, const std::string& remedy) {
        throw UserError("data.input_unreadable", path.string(),
                        fmt::format("{} is not read: {}. {}", path.string(), why, remedy));
    }

    bool is_new(const fs::path& path) {
        if (seen_.insert(fs::canonical(path).string()).second) return true;
        ++found_.skipped_repeated;
        return false;
    }

    void add_folder(const fs::path& folder, const std::string& name, NamedBy named_by) {
        if (!is_new(folder)) return;
        std::error_code error;
        if (fs::is_regular_file(folder / "manifest.json", error) &&
            head_of(folder / "manifest.json", Packing::none).find("\"lockstep-tokens\"") != std::string::npos)
            return leave(folder, "a folder of tokens that `data prepare` wrote", "Give it to training.dataset_path.", named_by);
        std::vector<fs::path> entries;
        for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
            entries.push_back(at->path());
        if (error) {
            throw UserError(
                "data.file_unreadable", folder.string(),
                fmt::format("cannot read {}: {}. Check the path and its permissions.", folder.string(), error.message()));
        }
        std::sort(entries.begin(), entries.end());
        for (const char* file : kDescribingFiles) {
            if (!std::binary_search(entries.begin(), entries.end(), folder / file)) continue;
            if (!fs::is_regular_file(folder / file, error)) continue;
            const std::optional<KnownDataset> known = known_dataset(file, head_of(folder / file, Packing::none));
            if (known && known->is_of_folder) return leave(folder, known->what, known->remedy, named_by);
        }
        for (const fs::path& entry : entries) {
            const std::string entry_name = entry.filename().string();
            if (entry_name.starts_with('.') || entry_name == "_delta_log") {  // the log of a Delta table, next to its Parquet
                ++found_.skipped_hidden;
            } else {
                add(entry, name + "/" + entry_name, NamedBy::folder);
            }
        }
    }

    void add_file(const fs::path& path, const std::string& name, NamedBy named_by) {
        // Of Megatron-LM's pair either file stands for both; the index is the one that is kept.
        fs::path index = path;
        if (path.extension() == ".bin" && is_megatron_index(index.replace_extension(".idx")))
            return add_file(index, fs::path(name).replace_extension(".idx").generic_string(), named_by);
        if (path.extension() == ".idx" && named_by == NamedBy::folder && seen_.contains(fs::canonical(path).string())) return;
        if (!is_new(path)) return;
        Input input{path, name, static_cast<int64_t>(fs::file_size(path)), Format::text, Packing::none, {}};
        std::string head = head_of(path, Packing::none);
        if (head.empty()) {
            ++found_.skipped_empty;
            return;
        }
        input.packing = packing_of(head);
        if (input.packing != Packing::none) head = head_of(path, input.packing);
        const std::string file_name = path.filename().string();
        if (const std::optional<KnownDataset> known = known_dataset(file_name, head))
            return leave(path, known->what, known->remedy, named_by, known->is_of_folder ? path.parent_path() : path);
        const FileFormat format = format_of(file_name, input.packing, head, options_.id_bytes, named_by == NamedBy::user);
        input.format = format.format;
        if (input.format == Format::megatron_index) {
            input.bin = fs::path(path).replace_extension(".bin");
            if (!fs::exists(input.bin))
                refuse(path, fmt::format("{} next to it is missing", input.bin.filename().string()),
                       "Megatron-LM's data are two files; give both.");
            input.bytes += static_cast<int64_t>(fs::file_size(input.bin));
        }
        const bool is_left_raw =
            input.format == Format::raw_ids && named_by == NamedBy::folder && options_.raw_ids == RawIds::leave_out;
        if (input.format == Format::unreadable) return leave(path, format.what, format.remedy, named_by);
        if (input.format == Format::binary)
            return leave(path, "binary", "Name files of text, JSON Lines, Parquet or token ids.", named_by);
        if (is_left_raw)
            return leave(path, "a .bin without a header",
                         "If it holds 16-bit token ids, name the file itself, or give --vocab-size.", named_by);
        if (input.format == Format::text && !settle_text(input, std::move(head))) {
            return leave(path, fmt::format("a JSON list of objects without the field \"{}\"", options_.field.text()),
                         "Name the field that holds the text with --field.", named_by);
        }
        found_.files.push_back(std::move(input));
    }

    // Is a file of text JSON? False where it is JSON that is not read.
    bool settle_text(Input& input, std::string head) {
        using Kind = JsonShape::Kind;
        if (options_.text_format == TextFormat::text) return true;
        const NamePromise promise = promise_of(input.path.filename().string(), input.packing);
        const bool two_lines = promise == NamePromise::json && begins_with_two_objects(head);
        JsonShape shape = json_shape(head, head.size() < kFormatHeadBytes, options_.field);
        for (size_t bytes = kFormatHeadBytes; shape.kind == Kind::more && bytes < kLongestHeadBytes;) {
            bytes = std::min(bytes * 8, kLongestHeadBytes);
            head = head_of(input.path, input.packing, bytes);
            shape = json_shape(head, head.size() < bytes, options_.field);
        }
        // A damaged line, or the end of one that was cut off, may come before good ones.
        const bool is_whole = head.size() < kFormatHeadBytes;
        const ObjectLines lines = shape.kind == Kind::none ? object_lines(head, is_whole, options_.field) : ObjectLines();
        const bool is_likely = lines.are_many() && (!shape.has_field || promise == NamePromise::json);
        if (is_likely || (options_.skips_bad_lines && lines.objects > 0)) shape = {Kind::lines, true};
        const bool may_have_bad_lines = options_.skips_bad_lines || promise == NamePromise::json || lines.objects == 0;
        const bool is_json = shape.kind == Kind::lines || shape.kind == Kind::values;
        const bool must_be_json = promise == NamePromise::json_lines || options_.text_format == TextFormat::json || two_lines;
        const bool may_be_json = is_json && shape.has_field && promise != NamePromise::text && may_have_bad_lines;
        if (must_be_json || may_be_json) {
            input.format = shape.kind == Kind::values ? Format::json_values : Format::json_lines;
            input.is_json_by_content = promise != NamePromise::json_lines && !two_lines;
        } else if (shape.kind == Kind::values && promise != NamePromise::text && is_json_list(head)) {
            return false;
        } else if (is_json || shape.has_field || promise == NamePromise::json) {
            const std::string what = shape.kind == Kind::lines    ? "it looks like JSON Lines"
                                     : shape.kind == Kind::values ? "it looks like JSON objects"
                                     : shape.has_field            ? "it begins like JSON"
                                                                  : "it is named .json, and no object of JSON was found in it";
            const bool lacks_field = is_json && !shape.has_field;
            count(found_.taken_as_text,
                  what + (lacks_field ? fmt::format(" without the field \"{}\"", options_.field.text()) : ""),
                  lacks_field ? "--field NAME says which field holds the text, --format text that it is text."
                              : "--format json reads its objects, --format text says that it is text.",
                  input.path);
        }
        return true;
    }

    // Of an "a.json", which is JSON Lines for that whatever fields the objects have.
    bool begins_with_two_objects(std::string_view head) const {
        for (int line = 0; line < 2; ++line) {
            const size_t end = head.find('\n');
            if (end == std::string_view::npos) return false;
            const JsonField::Kind kind = read_json_line(head.substr(0, end), options_.field).kind;
            if (kind == JsonField::Kind::not_json || kind == JsonField::Kind::no_object) return false;
            head.remove_prefix(end + 1);
        }
        return true;
    }

    static bool is_json_list(std::string_view head) {
        const size_t first = skip_json_space(head, byte_order_mark_bytes(head));
        return first < head.size() && head[first] == '[';
    }

    void leave(const fs::path& path, const std::string& what, const std::string& remedy, NamedBy named_by) {
        leave(path, what, remedy, named_by, path);
    }
    // `remedied`: what the remedy is about.
    void leave(const fs::path& path, const std::string& what, const std::string& remedy, NamedBy named_by,
               const fs::path& remedied) {
        const std::string words = fmt::format(fmt::runtime(remedy), remedied.string());
        if (named_by == NamedBy::user) refuse(path, "it is " + what, words);
        ++found_.skipped_binary;
        count(found_.left_out, what, words, path);
    }

    static void count(std::vector<LeftOut>& kinds, const std::string& what, const std::string& remedy, const fs::path& path) {
        for (LeftOut& kind : kinds) {
            if (kind.what == what) return static_cast<void>(++kind.files);
        }
        kinds.push_back({what, remedy, path.string(), 1});
    }

    static bool is_megatron_index(const fs::path& path) {
        std::error_code error;
        return fs::is_regular_file(path, error) &&
               format_of("", Packing::none, head_of(path, Packing::none)).format == Format::megatron_index;
    }

    FindOptions options_;
    Inputs found_;
    std::set<std::string> seen_;  // canonical paths
};

}  // namespace

Inputs find_inputs(const std::vector<fs::path>& inputs, const FindOptions& options) {
    if (inputs.empty()) {
        throw UserError("data.no_input", "inputs", "no input is named. Name the files or folders to prepare.");
    }
    InputsFinder finder(options);
    for (const fs::path& input : inputs) finder.add_input(input);
    Inputs found = finder.take();
    if (found.files.empty()) {
        std::string why;
        for (const LeftOut& kind : found.left_out) why += fmt::format(" {} is {}. {}", kind.first, kind.what, kind.remedy);
        throw UserError(
            "data.no_text", "inputs",
            fmt::format("nothing to read was found in {}{}: {} unreadable, {} empty, {} hidden and {} other files were "
                        "left out.{}{}",
                        inputs.front().string(), inputs.size() == 1 ? "" : fmt::format(" and {} more inputs", inputs.size() - 1),
                        found.skipped_binary, found.skipped_empty, found.skipped_hidden, found.skipped_other, why,
                        why.empty() ? " Name files that hold text, JSON Lines, Parquet or token ids." : ""));
    }
    return found;
}

}  // namespace lockstep::data
