// Which documents are held out of training. By a hash of each document's name, so that it depends neither on their order nor on
// which other documents there are (but for the two corrections below).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

// One flag a name: true is held out. With two names or more at least one is held out and at least one is not: where the fraction
// says otherwise, the name of the smallest hash is held out, or the one of the largest is not.
std::vector<bool> held_out_documents(const std::vector<std::string>& names, double fraction);

// For a single document of at least two bytes: where its held-out tail begins, about `fraction` before the end, after a line end
// where there is one nearby, and never inside a UTF-8 character. Both parts hold at least a byte.
size_t held_out_tail_begin(std::string_view text, double fraction);

}  // namespace lockstep::data
