// The documents of files that were found (inputs.h), read one at a time: memory does not grow with a file.
// A document's name is its file's, and for files of several documents "#" and its number from 1 behind it (of JSON Lines, the
// line's), so that it does not depend on what else is prepared.
#pragma once

#include <vector>

#include "data/corpus.h"
#include "data/inputs.h"
#include "data/json_value.h"

namespace lockstep::data {

struct ReadOptions {
    FieldPath field{"text"};  // of JSON and Parquet
    int64_t separator = -1;   // ends a document in a stream of ids
    int id_bytes = 0;         // of ids without a header; 0: as many as the vocabulary needs
    int vocab_size = 0;       // of such ids
    int64_t longest_document_bytes = kLongestDocumentBytes;
    bool skips_bad_lines = false;  // of JSON; else the first is an error
};

class FileCorpus : public Corpus {
public:
    FileCorpus(std::vector<Input> files, ReadOptions options) : files_(std::move(files)), options_(std::move(options)) {}
    int64_t files() const override { return static_cast<int64_t>(files_.size()); }
    int64_t file_bytes(int64_t file) const override { return files_[file].bytes; }
    // UserError data.file_unreadable; data.file_changed where the file is not as long as it was when found; data.json_line,
    // data.no_field; data.foreign_ids; data.document_too_long; those of ByteStream.
    void visit(int64_t file, const Use& use) const override { visit(file, use, {}); }
    // Calls `bad` with each line that is skipped.
    using UseBad = std::function<void(const BadLine&)>;
    void visit(int64_t file, const Use& use, const UseBad& bad) const;

    const Input& file(int64_t file) const { return files_[file]; }

private:
    std::vector<Input> files_;
    ReadOptions options_;
};

}  // namespace lockstep::data
