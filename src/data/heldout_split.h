// Which documents are held out of training. By a hash of each document's name, so that it depends neither on their order nor on
// which other documents there are (but for the corrections below).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "data/corpus.h"

namespace lockstep::data {

class HeldoutSplit {
public:
    // fraction 0: no document is held out.
    explicit HeldoutSplit(double fraction) : fraction_(fraction) {}
    // With corrections for a small corpus: of two documents or more at least one is held out and at least one is not. If the
    // fraction says otherwise, the name of the smallest hash is held out, or the one of the largest is not. Of a single
    // document the tail is held out. Reads documents only until it has seen one for each side.
    // Documents without text do not count.
    static HeldoutSplit of(const Corpus& corpus, double fraction);

    bool holds_out(std::string_view name) const;
    bool is_tail_of_one_document() const { return is_tail_; }
    double fraction() const { return fraction_; }

private:
    double fraction_ = 0;
    bool is_tail_ = false;
    std::string always_, never_;
};

// For a single document of at least two bytes: where its held-out tail begins, about `fraction` before the end, after a line
// end where there is one nearby, and never inside a UTF-8 character. Both parts hold at least a byte.
size_t held_out_tail_begin(std::string_view text, double fraction);

}  // namespace lockstep::data
