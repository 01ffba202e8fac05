// What a tokenizer does to text before it is split: a chain of the normalizers of Hugging Face's tokenizer.json.
// Guarantees: the result is that of `tokenizers` on valid UTF-8, with the Unicode tables of utf8proc. Bytes that are not valid
// UTF-8 stay as they are. Text that no step changes is not copied.
// Immutable: one Normalizer may serve many threads.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/pre_split.h"

namespace lockstep::data {

struct NormalizerStep {
    enum class Kind { nfc, nfd, nfkc, nfkd, lowercase, strip_accents, strip, prepend, replace };
    Kind kind;
    std::string text{};         // prepend: what is put before; replace: what is searched, unless there is a pattern
    std::string replacement{};  // replace
    std::optional<PreSplitPattern> pattern{};  // replace: its matches are replaced
    bool left = true, right = true;            // strip: which ends
};

class Normalizer {
public:
    Normalizer() = default;
    explicit Normalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {}

    bool empty() const { return steps_.empty(); }
    const std::vector<NormalizerStep>& steps() const { return steps_; }

    // The normalized text, which lies in `text` or in `buffer`.
    // `continues`: text comes before it, so that nothing is prepended.
    std::string_view apply(std::string_view text, bool continues, std::string& buffer) const;

    // Does the result of a part of a text not depend on the text around it, where the part begins and ends in ASCII characters,
    // spaces among them, that are neither a mark nor composed with one?
    bool is_local() const;

private:
    std::vector<NormalizerStep> steps_;
};

}  // namespace lockstep::data
