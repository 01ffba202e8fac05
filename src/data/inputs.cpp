#include "data/inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "data/file_io.h"

namespace lockstep::data {
namespace fs = std::filesystem;
namespace {

enum class NamedBy { user, folder };

std::string head_of(const fs::path& path, Packing packing) {
    const std::unique_ptr<ByteStream> stream = ByteStream::open(path, packing);
    std::string head(kFormatHeadBytes, '\0');
    size_t done = 0;
    while (done < head.size()) {
        const size_t got = stream->read({head.data() + done, head.size() - done});
        if (got == 0) break;
        done += got;
    }
    head.resize(done);
    return head;
}

class InputsFinder {
public:
    explicit InputsFinder(RawIds raw_ids) : raw_ids_(raw_ids) {}

    void add_input(const fs::path& input) {
        std::error_code error;
        const fs::path absolute = fs::canonical(input, error);
        if (error) {
            throw UserError("data.input_missing", input.string(),
                            fmt::format("the input {} cannot be found: {}. Name an existing file or folder.", input.string(),
                                        error.message()));
        }
        add(absolute, absolute.filename().string(), NamedBy::user);
    }

    Inputs take() { return std::move(found_); }

private:
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
        for (const fs::path& entry : entries) {
            const std::string entry_name = entry.filename().string();
            if (entry_name.starts_with('.')) {
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
        const FileFormat format = format_of(path.filename().string(), input.packing, head);
        input.format = format.format;
        if (input.format == Format::megatron_index) {
            input.bin = fs::path(path).replace_extension(".bin");
            if (!fs::exists(input.bin))
                refuse(path, fmt::format("{} beside it is missing", input.bin.filename().string()),
                       "Megatron-LM's data are two files; give both.");
            input.bytes += static_cast<int64_t>(fs::file_size(input.bin));
        }
        const bool is_left_raw = input.format == Format::raw_ids && named_by == NamedBy::folder && raw_ids_ == RawIds::leave_out;
        if (input.format == Format::unreadable) return leave(path, format.what, format.remedy, named_by);
        if (input.format == Format::binary)
            return leave(path, "binary", "Name files of text, JSON Lines, Parquet or token ids.", named_by);
        if (is_left_raw)
            return leave(path, "a .bin without a header",
                         "If it holds 16-bit token ids, name the file itself, or give --vocab-size.", named_by);
        found_.files.push_back(std::move(input));
    }

    void leave(const fs::path& path, const std::string& what, const std::string& remedy, NamedBy named_by) {
        const std::string words = fmt::format(fmt::runtime(remedy), path.string());
        if (named_by == NamedBy::user) refuse(path, "it is " + what, words);
        ++found_.skipped_binary;
        for (LeftOut& kind : found_.left_out) {
            if (kind.what == what) return static_cast<void>(++kind.files);
        }
        found_.left_out.push_back({what, words, path.string(), 1});
    }

    static bool is_megatron_index(const fs::path& path) {
        std::error_code error;
        return fs::is_regular_file(path, error) &&
               format_of("", Packing::none, head_of(path, Packing::none)).format == Format::megatron_index;
    }

    RawIds raw_ids_;
    Inputs found_;
    std::set<std::string> seen_;  // canonical paths
};

}  // namespace

Inputs find_inputs(const std::vector<fs::path>& inputs, RawIds raw_ids) {
    if (inputs.empty()) {
        throw UserError("data.no_input", "inputs", "no input is named. Name the files or folders to prepare.");
    }
    InputsFinder finder(raw_ids);
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
