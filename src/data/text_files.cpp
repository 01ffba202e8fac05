#include "data/text_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "data/file_io.h"

namespace lockstep::data {
namespace fs = std::filesystem;
namespace {

constexpr size_t kBinaryCheckBytes = 8 << 10;

class Finder {
public:
    void add_input(const fs::path& input) {
        std::error_code error;
        const fs::path absolute = fs::canonical(input, error);
        if (error) {
            throw UserError("data.input_missing", input.string(),
                            fmt::format("the input {} cannot be found: {}. Name an existing text file or folder.", input.string(),
                                        error.message()));
        }
        add(absolute, absolute.filename().string());
    }

    TextFiles take() { return std::move(found_); }

private:
    void add(const fs::path& path, const std::string& name) {
        std::error_code error;
        const fs::file_status status = fs::status(path, error);  // of what a link leads to
        if (fs::is_directory(status)) return add_folder(path, name);
        if (fs::is_regular_file(status)) return add_file(path, name);
        ++found_.skipped_other;
    }

    bool is_new(const fs::path& path) {
        if (seen_.insert(fs::canonical(path).string()).second) return true;
        ++found_.skipped_repeated;
        return false;
    }

    void add_folder(const fs::path& folder, const std::string& name) {
        if (!is_new(folder)) return;
        std::error_code error;
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
                add(entry, name + "/" + entry_name);
            }
        }
    }

    void add_file(const fs::path& path, const std::string& name) {
        if (!is_new(path)) return;
        const MappedFile file = MappedFile::open(path);
        if (file.text().empty()) {
            ++found_.skipped_empty;
        } else if (file.text().substr(0, kBinaryCheckBytes).find('\0') != std::string_view::npos) {
            ++found_.skipped_binary;
        } else {
            found_.files.push_back({path, name, static_cast<int64_t>(file.text().size())});
        }
    }

    TextFiles found_;
    std::set<std::string> seen_;  // canonical paths
};

}  // namespace

TextFiles find_text_files(const std::vector<fs::path>& inputs) {
    if (inputs.empty()) {
        throw UserError("data.no_input", "inputs", "no input is named. Name the text files or folders to prepare.");
    }
    Finder finder;
    for (const fs::path& input : inputs) finder.add_input(input);
    TextFiles found = finder.take();
    if (found.files.empty()) {
        throw UserError(
            "data.no_text", "inputs",
            fmt::format("no text was found in {} ({} input{}): {} binary, {} empty, {} hidden and {} other files were "
                        "left out. Name files that hold text.",
                        inputs.front().string(), inputs.size(), inputs.size() == 1 ? "" : "s", found.skipped_binary,
                        found.skipped_empty, found.skipped_hidden, found.skipped_other));
    }
    return found;
}

void FileCorpus::visit(int64_t document, const std::function<void(std::string_view)>& use) const {
    const TextFile& file = files_[document];
    const MappedFile mapped = MappedFile::open(file.path);
    if (static_cast<int64_t>(mapped.text().size()) != file.bytes) {
        throw UserError(
            "data.file_changed", file.path.string(),
            fmt::format("{} held {} bytes when it was found and holds {} now. Let nothing write to the inputs while they "
                        "are prepared, and start again.",
                        file.path.string(), file.bytes, mapped.text().size()));
    }
    use(mapped.text());
}

}  // namespace lockstep::data
