// Cuts text into pieces by a regular expression (PCRE2, Unicode properties, JIT): matches, and the text between two matches.
// Guarantees: the pieces tile the text exactly and none is empty. The expression means what it means to Oniguruma, the engine
// of Hugging Face's tokenizers; one that PCRE2 would read otherwise is refused. The expressions of known_split.h run as plain
// loops. Any bytes are accepted: a byte that is not part of valid UTF-8 is a piece of one byte, and the text around it is split
// apart. A PreSplitPattern is immutable and may be shared between threads; a PreSplitter belongs to one thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/known_split.h"
#include "data/unicode.h"

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;

namespace lockstep::data {

class PreSplitPattern {
public:
    // UserError data.split_pattern where PCRE2 does not compile the expression, or would not read it as Oniguruma does.
    explicit PreSplitPattern(std::string expression);
    const std::string& expression() const { return expression_; }
    bool is_known() const { return known_.has_value(); }
    bool can_match_nothing() const;  // x* and look-around: a match may be empty

private:
    friend class PreSplitter;
    std::string expression_;
    std::optional<KnownSplit> known_;
    std::shared_ptr<const pcre2_real_code_8> code_;
};

class PreSplitter {
public:
    explicit PreSplitter(const PreSplitPattern& pattern);

    // Begins a new text, which must stay alive while pieces are taken from it.
    void start(std::string_view text);
    // The next piece, empty at the end of the text. UserError data.split_limit where the expression backtracks without end.
    std::string_view next();
    // Whether the piece that next() returned last is a match.
    bool is_match() const { return is_match_; }

private:
    std::string_view next_by_expression();
    void find_match();
    void search(size_t from);

    PreSplitPattern pattern_;  // shares the compiled code
    std::unique_ptr<pcre2_real_match_data_8, void (*)(pcre2_real_match_data_8*)> match_data_;
    std::string_view text_;
    size_t position_ = 0;
    size_t valid_begin_ = 0;  // text_[valid_begin_, valid_end_) is the run of valid UTF-8 at or after position_
    size_t valid_end_ = 0;
    size_t match_begin_ = 0;  // the next match; equal to position_ or later
    size_t match_end_ = 0;
    bool is_match_ = false;
};

}  // namespace lockstep::data
