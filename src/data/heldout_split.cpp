#include "data/heldout_split.h"

#include <xxhash.h>

#include <algorithm>

#include "base/error.h"

namespace lockstep::data {
namespace {

constexpr size_t kLineSearchBytes = 4 << 10;

uint64_t name_hash(const std::string& name) { return XXH3_64bits(name.data(), name.size()); }

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }

}  // namespace

std::vector<bool> held_out_documents(const std::vector<std::string>& names, double fraction) {
    ensure(names.size() >= 2, "held_out_documents: one document cannot be on both sides");
    std::vector<bool> held_out(names.size());
    size_t smallest = 0, largest = 0;
    for (size_t i = 0; i < names.size(); ++i) {
        const uint64_t hash = name_hash(names[i]);
        held_out[i] = static_cast<double>(hash >> 11) * 0x1p-53 < fraction;
        if (hash < name_hash(names[smallest])) smallest = i;
        if (hash >= name_hash(names[largest])) largest = i;
    }
    const auto count = std::count(held_out.begin(), held_out.end(), true);
    if (count == 0) held_out[smallest] = true;
    if (count == static_cast<int64_t>(names.size())) held_out[largest] = false;
    return held_out;
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
