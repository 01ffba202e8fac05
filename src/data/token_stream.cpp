#include "data/token_stream.h"

#include <algorithm>

#include "base/error.h"

namespace lockstep::data {

TokenStream::TokenStream(TokenFile file) : name_(file.path().string()) {
    begins_ = {0, file.tokens()};
    files_.push_back(std::move(file));
}

TokenStream::TokenStream(std::vector<TokenFile> files, std::string name) : files_(std::move(files)), name_(std::move(name)) {
    begins_.push_back(0);
    for (const TokenFile& file : files_) {
        ensure(file.vocab_size() == vocab_size() && file.separator() == separator(), "TokenStream: files of two vocabularies");
        begins_.push_back(begins_.back() + file.tokens());
    }
}

void TokenStream::read(int64_t first, std::span<int32_t> out) const {
    ensure(first >= 0 && first + static_cast<int64_t>(out.size()) <= tokens(), "TokenStream::read: tokens outside the stream");
    auto file = static_cast<size_t>(std::upper_bound(begins_.begin(), begins_.end(), first) - begins_.begin() - 1);
    while (!out.empty()) {
        const int64_t left = begins_[file + 1] - first;
        const auto now = static_cast<size_t>(std::min(left, static_cast<int64_t>(out.size())));
        files_[file].read(first - begins_[file], out.first(now));
        out = out.subspan(now);
        first += static_cast<int64_t>(now);
        ++file;
    }
}

}  // namespace lockstep::data
