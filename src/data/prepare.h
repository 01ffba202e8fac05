// Text files to a prepared folder (prepared_data.h): find the files, learn or load a tokenizer, split documents into train and
// held out, encode, write. The result depends on the files' names and contents and on the options, on nothing else.
// At an error nothing half written remains in `out`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "data/prepared_data.h"
#include "data/progress.h"

namespace lockstep::data {

inline constexpr int kDefaultVocab = 4096;

enum class ExistingData { refuse, replace };

struct PrepareOptions {
    std::vector<std::filesystem::path> inputs;
    std::filesystem::path out;
    int vocab = 0;                   // 0: 4096 for "bpe", what the tokenizer has otherwise
    std::string tokenizer = "bpe";   // "bpe": learned from the inputs; "bytes"; or the path of a tokenizer.json
    double heldout_fraction = 0.01;  // of the documents, at least one; of one document, its tail
    int64_t max_training_text_bytes = int64_t{64} << 20;  // what a vocabulary is learned from
    int threads = 2;                                      // for learning a vocabulary
    ExistingData existing = ExistingData::refuse;
};

struct PrepareSummary {
    Manifest manifest;
    bool was_prepared_already = false;  // `out` held exactly this already; nothing was written
};

// Errors: data.heldout_fraction, data.vocab_mismatch, data.too_little_text, data.out_not_a_dataset, data.out_exists,
// data.out_unwritable, and those of find_text_files, train_bpe, Tokenizer::load and the writers.
PrepareSummary prepare(const PrepareOptions& options, const Progress& progress = {});

}  // namespace lockstep::data
