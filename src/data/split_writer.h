// Writes prepared documents: the shards of both splits, with the counts that the manifest needs. Text is encoded on several
// threads; what is written does not depend on their number. Without publish() nothing remains.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "data/batch_encoder.h"
#include "data/corpus.h"
#include "data/heldout_split.h"
#include "data/prepared_data.h"

namespace lockstep::data {

// The shards of one split. The first is called train.tokens, others train-00001.tokens and so on.
class ShardWriter {
public:
    // `first_shard`: the number of the first one written here. A shard is closed with the document that brings it to
    // `shard_tokens`.
    ShardWriter(std::filesystem::path folder, std::string split, int64_t first_shard, int vocab_size, int32_t separator,
                int64_t shard_tokens);

    void append(std::span<const int32_t> tokens) { current().append(tokens); }
    enum class End { Separator, AsItIs };
    void end_document(End end);
    // Completes the last shard. Adds the shards, and their tokens and documents, to `split`.
    void finish(SplitInfo& split);
    void publish();

private:
    TokenFileWriter& current();
    void close();

    std::filesystem::path folder_;
    std::string split_;
    int64_t next_shard_;
    int vocab_size_;
    int32_t separator_;
    int64_t shard_tokens_;
    std::unique_ptr<TokenFileWriter> current_;
    std::vector<std::unique_ptr<TokenFileWriter>> finished_;
    SplitInfo written_;
    std::string current_name_;
};

struct SplitWriterOptions {
    std::filesystem::path folder;
    int vocab_size = 0;
    int32_t separator = 0;
    int32_t begin = -1;  // what documents begin with; -1: nothing
    int64_t first_train_shard = 0, first_heldout_shard = 0;
    int64_t shard_tokens = 0;
    int threads = 1;
};

class SplitWriter {
public:
    // `tokenizer` may be null if all documents are ids; it outlives the writer.
    SplitWriter(const SplitWriterOptions& options, const Tokenizer* tokenizer, HeldoutSplit split);
    ~SplitWriter();

    // UserError data.id_outside, data.text_without_tokenizer, data.too_little_text.
    void add(const Document& document);
    // Writes what is waiting. Adds to the splits and sets the counts of `sources`.
    void finish(Manifest& manifest);
    void publish();
    // How often each token occurs in the train documents.
    std::vector<int64_t>& train_counts() { return train_.counts; }

private:
    struct Pending {
        std::string text;
        bool is_held_out;
    };

    // A split, and what is counted of it.
    struct Split {
        ShardWriter shards;
        std::vector<int64_t> counts;  // of each token
        int64_t text_bytes = 0;       // of the texts as they were
    };
    Split& split_of(bool is_held_out) { return is_held_out ? heldout_ : train_; }
    void finish(Split& split, SplitInfo& info);

    void add_text(std::string_view text, std::string_view name, bool is_held_out);
    void add_ids(const Document& document, std::span<const IdArray> ids, bool is_held_out);
    void add_tail(const Document& document);
    void write_tokens(std::span<const int32_t> tokens, bool is_held_out);
    void begin_document(bool is_held_out);
    void end_document(bool is_held_out);
    void encode_pending();

    SplitWriterOptions options_;
    const Tokenizer* tokenizer_;
    HeldoutSplit split_;
    std::unique_ptr<BatchEncoder> encoder_;  // null without a tokenizer
    std::vector<int64_t> token_bytes_;       // of each token's text; empty without a tokenizer
    Split train_, heldout_;
    std::vector<Pending> pending_;
    size_t pending_bytes_ = 0;
    int64_t empty_ = 0, invalid_bytes_ = 0, invalid_documents_ = 0;
    std::string first_invalid_;
};

// The entropy of frequencies, in nats.
double entropy_nats(const std::vector<int64_t>& counts);

}  // namespace lockstep::data
