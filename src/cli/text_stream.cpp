#include "cli/text_stream.h"

#include <algorithm>

namespace lockstep::cli {
namespace {

// Bytes at the end of `text` that begin a UTF-8 character and do not finish it.
size_t unfinished_bytes(const std::string& text) {
    for (size_t back = 1; back <= std::min<size_t>(4, text.size()); ++back) {
        const auto byte = static_cast<unsigned char>(text[text.size() - back]);
        if ((byte & 0xc0) == 0x80) continue;  // goes on with a character
        const size_t length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
        return length > back ? back : 0;
    }
    return 0;
}

}  // namespace

TextStream::TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops, bool begins)
    : tokenizer_(tokenizer), stops_(std::move(stops)), begins_(begins) {}

bool TextStream::add(int32_t token) {
    const size_t before = text_.size();
    text_ += tokenizer_.decode_one(token, begins_);
    begins_ = false;
    size_t end = std::string::npos;
    for (const std::string& stop : stops_) {
        if (stop.empty()) continue;
        const size_t from = before + 1 > stop.size() ? before + 1 - stop.size() : 0;
        end = std::min(end, text_.find(stop, from));
    }
    if (end == std::string::npos) return false;
    text_.resize(end);
    return true;
}

std::string TextStream::take() {
    size_t held = unfinished_bytes(text_);
    for (const std::string& stop : stops_) {  // a beginning of a stop text at the end
        for (size_t n = std::min(stop.size(), text_.size() + 1) - (stop.empty() ? 0 : 1); n > held; --n) {
            if (text_.compare(text_.size() - n, n, stop, 0, n) == 0) held = n;
        }
    }
    const size_t certain = std::max(taken_, text_.size() - held);
    const std::string out = text_.substr(taken_, certain - taken_);
    taken_ = certain;
    return out;
}

std::string TextStream::take_rest() {
    const std::string out = text_.substr(std::min(taken_, text_.size()));
    taken_ = text_.size();
    return out;
}

}  // namespace lockstep::cli
