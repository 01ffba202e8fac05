// How often each piece of the pre-split occurs in a corpus, or in an even sample of it: what byte-pair training looks at.
// The result depends on the corpus and the limit only, not on the number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/pre_split.h"
#include "data/progress.h"

namespace lockstep::data {

struct WordCount {
    std::string word;  // bytes, at least two: a single byte has no pairs
    int64_t count = 0;
};

struct WordCountOptions {
    int64_t max_text_bytes = int64_t{64} << 20;  // of a larger corpus, about so much is read
    int threads = 2;
};

// Sorted by word. Words longer than 256 bytes are counted in parts of 256.
// A corpus whose files are larger than the limit is cut into blocks of 16 KiB (ending after a line if one ends nearby). The
// golden-ratio sequence chooses the blocks that are counted, so they lie evenly in all documents. A document shorter than a
// block is a block. Of compressed files the share is the same, so more text is counted than the limit says.
std::vector<WordCount> count_words(const Corpus& corpus, const PreSplitPattern& pattern, const WordCountOptions& options,
                                   const Progress& progress = {});

}  // namespace lockstep::data
