// The tokens of several token files, one behind another: what training sees does not depend on how they are cut into files.
// Immutable: any number of threads may read one.
#pragma once

#include <vector>

#include "data/token_file.h"

namespace lockstep::data {

class TokenStream {
public:
    TokenStream() = default;
    // A single file.
    TokenStream(TokenFile file);  // NOLINT(google-explicit-constructor): a file is a stream
    // At least one file, all of one vocabulary and separator. `name` is for messages: the folder.
    TokenStream(std::vector<TokenFile> files, std::string name);

    bool empty() const { return files_.empty(); }
    int64_t tokens() const { return begins_.empty() ? 0 : begins_.back(); }
    int vocab_size() const { return files_.empty() ? 0 : files_.front().vocab_size(); }
    int32_t separator() const { return files_.empty() ? 0 : files_.front().separator(); }
    const std::string& name() const { return name_; }
    const std::vector<TokenFile>& files() const { return files_; }

    // Copies tokens [first, first + out.size()), which must exist, from as many files as they lie in. As TokenFile::read.
    void read(int64_t first, std::span<int32_t> out) const;

private:
    std::vector<TokenFile> files_;
    std::vector<int64_t> begins_;  // of each file its first token's number; at the end their sum
    std::string name_;
};

}  // namespace lockstep::data
