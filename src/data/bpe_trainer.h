// Learns a byte-level BPE vocabulary: repeatedly the most frequent pair of neighbouring tokens becomes a token.
// Deterministic: the larger count first, then the smaller pair of ids; the number of threads changes nothing.
// Ids: 0 to 255 are the bytes, then the learned tokens in their order, last the separator.
// Source: Sennrich, Haddow, Birch 2016, on the byte alphabet of GPT-2 and the split of Llama 3.
#pragma once

#include "data/corpus.h"
#include "data/progress.h"
#include "data/tokenizer.h"
#include "data/word_counts.h"

namespace lockstep::data {

// Errors: data.vocab_too_small (below 258: use Tokenizer::bytes()), data.vocab_too_large with the largest that `corpus`
// supports. A pair seen once is never merged.
Tokenizer train_bpe(const Corpus& corpus, int vocab_size, const WordCountOptions& options = {}, const Progress& progress = {});

}  // namespace lockstep::data
