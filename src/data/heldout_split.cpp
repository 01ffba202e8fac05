#include "data/heldout_split.h"

#include <xxhash.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr size_t kLineSearchBytes = 4 << 10;

uint64_t name_hash(std::string_view name) { return XXH3_64bits(name.data(), name.size()); }

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

HeldoutSplit HeldoutSplit::of(const Corpus& corpus, double fraction) {
    HeldoutSplit split(fraction);
    if (fraction <= 0) return split;
    int64_t held_out = 0, documents = 0;
    std::string smallest, largest;
    const auto look = [&](const Document& document) {
        if (document.is_text() && document.text.empty()) return true;
        const uint64_t hash = name_hash(document.name);
        if (documents == 0 || hash < name_hash(smallest)) smallest = document.name;
        if (documents == 0 || hash >= name_hash(largest)) largest = document.name;
        ++documents;
        held_out += split.holds_out(document.name) ? 1 : 0;
        return held_out == 0 || held_out == documents;
    };
    const auto has_both = [&] { return held_out > 0 && held_out < documents; };
    for (int64_t f = 0; f < corpus.files() && !has_both(); ++f) corpus.visit(f, look);
    if (has_both()) return split;
    if (documents <= 1) split.is_tail_ = true;
    else if (held_out == 0) split.always_ = smallest;
    else split.never_ = largest;
    return split;
}

bool HeldoutSplit::holds_out(std::string_view name) const {
    if (!always_.empty() && name == always_) return true;
    if (!never_.empty() && name == never_) return false;
    return static_cast<double>(name_hash(name) >> 11) * 0x1p-53 < fraction_;
}

size_t held_out_tail_begin(std::string_view text, double fraction) {
    ensure(text.size() >= 2, "held_out_tail_begin: two bytes are needed for two parts");
    const double wanted = static_cast<double>(text.size()) * (1 - fraction);
    const size_t middle = std::clamp<size_t>(static_cast<size_t>(wanted), 1, text.size() - 1);
    const size_t line_end = text.substr(0, middle).rfind('\n');
    const bool line_is_near =
        line_end != std::string_view::npos && middle - line_end <= std::min(kLineSearchBytes, text.size() / 8);
    if (line_is_near) return line_end + 1;
    size_t begin = middle;
    while (begin > 1 && middle - begin < 3 && !starts_character(text[begin])) --begin;
    return begin;
}

}  // namespace lockstep::data
