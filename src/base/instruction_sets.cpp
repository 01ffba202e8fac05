#include "base/instruction_sets.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr const char *kDot = "avx512_bf16", *kFastDot = "fast_avx512_bf16", *kAmx = "amx", *kOnednn = "onednn";

}  // namespace

std::vector<std::string> words_of(const InstructionSets& s) {
    std::vector<std::string> words = {s.isa == Isa::avx512 ? "avx512" : s.isa == Isa::avx2 ? "avx2" : "baseline"};
    if (s.bf16_dot) words.emplace_back(s.fast_bf16_dot ? kFastDot : kDot);
    if (s.amx) words.emplace_back(kAmx);
    if (s.onednn) words.emplace_back(kOnednn);
    return words;
}

const std::vector<std::string>& instruction_set_words() {
    static const std::vector<std::string> words = {"baseline", "avx2", "avx512", kDot, kFastDot, kAmx, kOnednn};
    return words;
}

std::optional<InstructionSets> instruction_sets_from(const std::vector<std::string>& words) {
    const auto count = [&](const char* word) { return std::count(words.begin(), words.end(), word); };
    if (count("baseline") + count("avx2") + count("avx512") != 1 || count(kDot) + count(kFastDot) > 1) return std::nullopt;
    InstructionSets s;
    if (count("avx2") > 0) s.isa = Isa::avx2;
    if (count("avx512") > 0) s.isa = Isa::avx512;
    s.fast_bf16_dot = count(kFastDot) > 0, s.bf16_dot = s.fast_bf16_dot || count(kDot) > 0;
    s.amx = count(kAmx) > 0, s.onednn = count(kOnednn) > 0;
    if ((s.bf16_dot && s.isa != Isa::avx512) || (s.amx && !s.bf16_dot)) return std::nullopt;
    return s;
}

InstructionSets limited_to(InstructionSets s, Isa isa) {
    s.isa = std::min(s.isa, isa);
    if (s.isa != Isa::avx512) s.bf16_dot = s.fast_bf16_dot = s.amx = false;
    return s;
}

}  // namespace lockstep
