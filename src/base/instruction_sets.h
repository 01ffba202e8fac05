// What a processor offers to the cpu kernels, as a value: which of them there are, and which comes first, depends on nothing
// else. A processor that is not here can therefore be planned for. kernels/cpu/isa.h knows the one at hand.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace lockstep {

enum class Isa { baseline, avx2, avx512 };

struct InstructionSets {
    Isa isa = Isa::baseline;
    bool bf16_dot = false;       // AVX-512 BF16: products of pairs of bfloat16,
    bool fast_bf16_dot = false;  // at twice the rate of float32, as AMD's; Intel's have half of it
    bool amx = false;            // for bfloat16, and the system grants its tiles
    bool onednn = false;         // of the build: products by oneDNN

    // Products of bfloat16 are faster than those of their widened floats.
    bool has_fast_bf16() const { return amx || fast_bf16_dot; }
    bool operator==(const InstructionSets&) const = default;
};

// {"avx512", "avx512_bf16", "amx"}: the form in cluster files. Processors of equal words get the same kernels.
std::vector<std::string> words_of(const InstructionSets& sets);
const std::vector<std::string>& instruction_set_words();  // all that may occur
// Nothing where the words contradict each other. Unknown ones are ignored.
std::optional<InstructionSets> instruction_sets_from(const std::vector<std::string>& words);

// What is left of a processor for which no more than `isa` may be used.
InstructionSets limited_to(InstructionSets sets, Isa isa);

}  // namespace lockstep
