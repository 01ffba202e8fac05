// A generated sequence as text that grows: what is certain is handed out, what may still become part of a stop text or of a
// character of several bytes is held back.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "data/tokenizer.h"

namespace lockstep::cli {

class TextStream {
public:
    // `tokenizer` outlives this. `begins`: the first token begins a text; else it goes on with one.
    TextStream(const data::Tokenizer& tokenizer, std::vector<std::string> stops, bool begins);

    // Returns whether a stop text is complete; the text then ends before it.
    bool add(int32_t token);
    // Text that has become certain since the last call; at the end, all that is left.
    std::string take();
    std::string take_rest();
    const std::string& text() const { return text_; }

private:
    const data::Tokenizer& tokenizer_;
    std::vector<std::string> stops_;
    bool begins_;
    std::string text_;
    size_t taken_ = 0;
};

}  // namespace lockstep::cli
