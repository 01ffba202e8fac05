// How a tokenizer cuts text into the pieces that merges never cross: a chain of the pre-tokenizers of Hugging Face's
// tokenizer.json. Each step cuts the pieces of the step before it. `Digits`, `Punctuation` and the like are Splits.
// A PreTokenizer is immutable and may be shared between threads; a PreTokenizerRun belongs to one thread.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/function_ref.h"
#include "data/pre_split.h"

namespace lockstep::data {

// A regular expression cuts the text; `behavior` says what becomes of its matches.
struct SplitStep {
    enum class Behavior { isolated, removed, contiguous, merged_with_previous, merged_with_next };
    PreSplitPattern pattern;
    Behavior behavior = Behavior::isolated;
    bool invert = false;  // what is between two matches counts as a match, and the other way round
};

// A space before a text that does not begin with one ("add_prefix_space").
struct PrefixSpaceStep {};

// Spaces become `mark`; words begin with it.
struct MetaspaceStep {
    enum class Prepend { always, first, never };
    std::string mark;  // one character
    Prepend prepend = Prepend::always;
    bool split = true;
};

using PreTokenizerStep = std::variant<SplitStep, PrefixSpaceStep, MetaspaceStep>;

// What comes before a text that is to be cut.
struct Before {
    bool nothing = true;     // it begins its document
    bool continues = false;  // it is a later part of a text that was cut for no other reason than its length
};

class PreTokenizerRun {
public:
    // `steps` outlives this.
    explicit PreTokenizerRun(const std::vector<PreTokenizerStep>& steps);

    using Sink = FunctionRef<void(std::string_view piece)>;
    // Calls sink(piece) for each piece, in order; none is empty.
    void run(std::string_view text, Before before, Sink sink) { run(0, text, before, sink); }

private:
    void run(size_t step, std::string_view text, Before before, Sink sink);
    void split(size_t step, const SplitStep& how, std::string_view text, Before before, Sink sink);
    void metaspace(size_t step, const MetaspaceStep& how, std::string_view text, Before before, Sink sink);

    const std::vector<PreTokenizerStep>& steps_;
    std::vector<PreSplitter> splitters_;  // of the Split steps
    std::vector<size_t> splitter_of_;     // of each step
    std::vector<std::string> buffers_;    // of each step that changes its text
};

}  // namespace lockstep::data
