// Finds the text files under the paths a user names; each file is one document.
// Folders are read recursively, sorted by name. Links are followed, but a file or folder reached a second time is taken once, so
// a cycle ends. Hidden entries (".git") inside folders are left out; a file with a NUL byte in its first 8 KiB is no text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/corpus.h"

namespace lockstep::data {

struct TextFile {
    std::filesystem::path path;
    std::string name;  // relative to the folder that holds the input, with '/': "include/stdio.h"; decides the held-out split
    int64_t bytes = 0;
};

struct TextFiles {
    std::vector<TextFile> files;  // in the order of the inputs, inside one by name
    int64_t skipped_binary = 0;
    int64_t skipped_empty = 0;
    int64_t skipped_hidden = 0;
    int64_t skipped_repeated = 0;
    int64_t skipped_other = 0;  // broken links, sockets, devices
};

// Errors: data.no_input (no path named), data.input_missing, data.no_text, data.file_unreadable.
TextFiles find_text_files(const std::vector<std::filesystem::path>& inputs);

class FileCorpus : public Corpus {
public:
    explicit FileCorpus(std::vector<TextFile> files) : files_(std::move(files)) {}
    int64_t documents() const override { return static_cast<int64_t>(files_.size()); }
    int64_t document_bytes(int64_t document) const override { return files_[document].bytes; }
    // UserError data.file_unreadable, or data.file_changed where the file is not as long as it was when found.
    void visit(int64_t document, const std::function<void(std::string_view)>& use) const override;

    const TextFile& file(int64_t document) const { return files_[document]; }

private:
    std::vector<TextFile> files_;
};

}  // namespace lockstep::data
