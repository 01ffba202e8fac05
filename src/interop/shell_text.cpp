#include "interop/shell_text.h"

#include <algorithm>

namespace lockstep::interop {

Text Text::unknown(const std::string& written, Place place, const Why& why) {
    Text out;
    for (const char c : written) out.chars_ += c, out.marks_.push_back({place, why});
    return out;
}

Text Text::of_file(const std::string& chars, int file) {
    Text out;
    Place place{1, file};
    for (const char c : chars) {
        out.add(c, place);
        place.line += c == '\n';
    }
    return out;
}

void Text::add(const Text& other, size_t begin, size_t end) {
    const Text copy = &other == this ? other : Text();
    const Text& from = &other == this ? copy : other;
    chars_.append(from.chars_, begin, end - begin);
    marks_.insert(marks_.end(), from.marks_.begin() + static_cast<long>(begin), from.marks_.begin() + static_cast<long>(end));
}

Text Text::part(size_t begin, size_t end) const {
    Text out;
    out.add(*this, std::min(begin, size()), std::min(std::max(begin, end), size()));
    return out;
}

Text::Why Text::why() const {
    const auto found = std::find_if(marks_.begin(), marks_.end(), [](const Mark& m) { return m.why != nullptr; });
    return found == marks_.end() ? nullptr : found->why;
}

bool Text::is_unset_or_empty() const {
    return std::all_of(marks_.begin(), marks_.end(), [](const Mark& m) { return m.why && m.why->is_unset; });
}

bool Text::operator==(const Text& other) const {
    const auto same = [](const Mark& a, const Mark& b) { return (!a.why && !b.why) || (a.why && b.why && *a.why == *b.why); };
    return chars_ == other.chars_ && std::equal(marks_.begin(), marks_.end(), other.marks_.begin(), same);
}

}  // namespace lockstep::interop
