// Files of text or token ids to a prepared folder (prepared_data.h): find the files, learn or load a tokenizer, split documents
// into train and held out, encode, write. The result depends on the files' names and contents and on the options, on nothing
// else. Documents are read one at a time, so memory does not grow with the inputs. At an error nothing half written remains in
// `out`.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/document_tokens.h"
#include "data/inputs.h"
#include "data/prepared_data.h"
#include "data/progress.h"

namespace lockstep::data {

inline constexpr int kDefaultVocab = 4096;
inline constexpr double kDefaultHeldout = 0.01;
inline constexpr int64_t kDefaultShardTokens = 1'000'000'000;

// append: the documents become further shards of what the folder holds.
enum class ExistingData { refuse, replace, append };

struct PrepareOptions {
    std::vector<std::filesystem::path> inputs;
    std::filesystem::path out;
    int vocab = 0;  // 0: 4096 for "bpe"; for another tokenizer, its own size
    // "bpe": learned from the inputs; "bytes"; or the path of a tokenizer.json. Empty: "bpe"; none with ids_vocab_size; the
    // folder's own when appending.
    std::string tokenizer;
    int ids_vocab_size = 0;      // for inputs of token ids without a tokenizer: the size of their vocabulary,
    int32_t ids_separator = -1;  // and the id that separates documents
    int id_bytes = 0;            // of ids without a header: 2 or 4; 0: as many as the vocabulary needs
    // The tokens that end and begin documents, by their text. Empty: the one that the files next to the tokenizer.json name,
    // else one with a known name (DocumentTokens); nothing to begin with. When appending, the folder's own.
    std::string end_token, begin_token;
    std::string field = "text";  // of JSON and Parquet: the field that has the text; "a.b" is b inside a, or a name with a dot
    TextFormat text_format = TextFormat::by_content;
    int64_t most_bad_lines = 0;  // of JSON: so many lines that cannot be read are left out; one more is an error
    int64_t longest_document_bytes = kLongestDocumentBytes;
    // Share of the documents (HeldoutSplit). Default: kDefaultHeldout; the folder's own when appending.
    std::optional<double> heldout_fraction;
    int64_t shard_tokens = kDefaultShardTokens;  // a token file ends with the document that brings it to this number of tokens
    int64_t max_training_text_bytes = int64_t{64} << 20;  // a vocabulary is learned from at most this much text
    int threads = 2;                                      // for learning a vocabulary and for encoding; at least 1
    ExistingData existing = ExistingData::refuse;
};

struct PrepareSummary {
    Manifest manifest;
    bool was_prepared_already = false;   // `out` held exactly this already; nothing was written
    std::vector<LeftOut> left_out;       // files in folders that are not read
    std::vector<LeftOut> taken_as_text;  // files that look like JSON
    // Of a tokenizer.json that the user named: which tokens end and begin documents, who said it (empty: a known name), and
    // what else might have been meant.
    struct Documents {
        std::string end, end_said_by, begin;
        std::vector<std::string> other_ends;
        std::string configured_begin;            // which transformers would put before a text
        std::vector<TokenName> unknown_ends{};   // named by files before end_said_by, and no tokens of the tokenizer
        std::vector<std::string> other_names{};  // another end: "special_tokens_map.json says </s>"
        std::vector<std::string> broken{};       // files next to the tokenizer.json that are no JSON
    };
    std::optional<Documents> documents;
};

// Errors: data.heldout_fraction, data.vocab_mismatch, data.ids_without_vocabulary, data.ids_options, data.separator,
// data.shard_tokens, data.document_tokens, data.too_many_bad_lines, data.out_not_a_dataset, data.out_exists,
// data.out_unwritable, data.append_tokenizer, data.nothing_to_train_on, and those of find_inputs, FileCorpus, SplitWriter,
// train_bpe, Tokenizer::load and the writers.
PrepareSummary prepare(const PrepareOptions& options, const Progress& progress = {});

}  // namespace lockstep::data
