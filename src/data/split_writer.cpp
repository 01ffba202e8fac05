#include "data/split_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/checksum.h"
#include "base/error.h"
#include "data/utf8.h"

namespace lockstep::data {
namespace {

constexpr size_t kPendingBytesOfAThread = size_t{4} << 20;
constexpr int64_t kIdsAtOnce = 64 << 10;

}  // namespace

ShardWriter::ShardWriter(std::filesystem::path folder, std::string split, int64_t first_shard, int vocab_size, int32_t separator,
                         int64_t shard_tokens)
    : folder_(std::move(folder)),
      split_(std::move(split)),
      next_shard_(first_shard),
      vocab_size_(vocab_size),
      separator_(separator),
      shard_tokens_(shard_tokens) {}

TokenFileWriter& ShardWriter::current() {
    if (!current_) {
        current_name_ = next_shard_ == 0 ? split_ + ".tokens" : fmt::format("{}-{:05}.tokens", split_, next_shard_);
        ++next_shard_;
        current_ = std::make_unique<TokenFileWriter>(folder_ / current_name_, vocab_size_, separator_);
    }
    return *current_;
}

void ShardWriter::end_document(End end) {
    if (end == End::Separator) current().end_document();
    else current().end_document_as_it_is();
    if (current_->tokens() >= shard_tokens_) close();
}

void ShardWriter::close() {
    const TokenFileHeader header = current_->finish();
    written_.shards.push_back({current_name_, static_cast<int64_t>(header.tokens), static_cast<int64_t>(header.documents),
                               hex_checksum(header.checksum)});
    finished_.push_back(std::move(current_));
}

void ShardWriter::finish(SplitInfo& split) {
    if (current_) close();
    for (ShardInfo& shard : written_.shards) {
        split.tokens += shard.tokens;
        split.documents += shard.documents;
        split.shards.push_back(std::move(shard));
    }
    written_ = {};
}

void ShardWriter::publish() {
    for (const std::unique_ptr<TokenFileWriter>& writer : finished_) writer->publish();
}

SplitWriter::SplitWriter(const SplitWriterOptions& options, const Tokenizer* tokenizer, HeldoutSplit split)
    : options_(options),
      tokenizer_(tokenizer),
      split_(std::move(split)),
      train_{{options.folder, "train", options.first_train_shard, options.vocab_size, options.separator, options.shard_tokens},
             std::vector<int64_t>(static_cast<size_t>(options.vocab_size))},
      heldout_{
          {options.folder, "heldout", options.first_heldout_shard, options.vocab_size, options.separator, options.shard_tokens},
          std::vector<int64_t>(static_cast<size_t>(options.vocab_size))} {
    if (tokenizer_ == nullptr) return;
    token_bytes_ = tokenizer_->text_bytes();
    encoder_ = std::make_unique<BatchEncoder>(*tokenizer_, std::max(1, options_.threads));
}

SplitWriter::~SplitWriter() = default;

void SplitWriter::add(const Document& document) {
    if (document.is_text() && document.text.empty()) {
        ++empty_;
        return;
    }
    if (document.is_text()) {
        const int64_t invalid = document.replaced_bytes + invalid_utf8(document.text).bytes;
        if (invalid > 0 && invalid_documents_++ == 0) first_invalid_ = document.name;
        invalid_bytes_ += invalid;
    }
    if (split_.is_tail_of_one_document()) return add_tail(document);
    const bool is_held_out = split_.holds_out(document.name);
    if (document.is_text()) add_text(document.text, document.name, is_held_out);
    else add_ids(document, document.ids, is_held_out);
}

void SplitWriter::add_tail(const Document& document) {
    std::vector<int32_t> last(1);
    int64_t parts = static_cast<int64_t>(document.text.size());
    for (const IdArray& ids : document.ids) parts += ids.count;
    if (parts < 2) {
        throw UserError(
            "data.too_little_text", std::string(document.name),
            fmt::format("{} holds {} {}: nothing would be left to train on once a part is held out. Give more text, or "
                        "--heldout 0.",
                        document.name, parts, document.is_text() ? "byte" : "id"));
    }
    if (document.is_text()) {
        const size_t tail = held_out_tail_begin(document.text, split_.fraction());
        add_text(document.text.substr(0, tail), document.name, false);
        add_text(document.text.substr(tail), document.name, true);
        return;
    }
    const auto wanted = static_cast<int64_t>(static_cast<double>(parts) * (1 - split_.fraction()));
    int64_t left = std::clamp<int64_t>(wanted, 1, parts - 1);
    std::vector<IdArray> train, tail;
    for (const IdArray& ids : document.ids) {
        const int64_t here = std::min(left, ids.count);
        if (here > 0) train.push_back(ids.part(0, here));
        if (here < ids.count) tail.push_back(ids.part(here, ids.count - here));
        left -= here;
    }
    add_ids(document, train, false);
    add_ids(document, tail, true);
}

void SplitWriter::write_tokens(std::span<const int32_t> tokens, bool is_held_out) {
    Split& split = split_of(is_held_out);
    split.shards.append(tokens);
    for (const int32_t token : tokens) ++split.counts[static_cast<size_t>(token)];
}

void SplitWriter::begin_document(bool is_held_out) {
    if (options_.begin >= 0) write_tokens({&options_.begin, 1}, is_held_out);
}

void SplitWriter::end_document(bool is_held_out) {
    split_of(is_held_out).shards.end_document(ShardWriter::End::Separator);
    ++split_of(is_held_out).counts[static_cast<size_t>(options_.separator)];
}

void SplitWriter::add_text(std::string_view text, std::string_view name, bool is_held_out) {
    if (tokenizer_ == nullptr) {
        throw UserError(
            "data.text_without_tokenizer", "--tokenizer",
            fmt::format("{} is text, and no tokenizer is given: --vocab-size and --separator describe token ids. Give "
                        "--tokenizer in their place.",
                        name));
    }
    split_of(is_held_out).text_bytes += static_cast<int64_t>(text.size());
    if (text.size() <= kPendingBytesOfAThread) {
        pending_.push_back({std::string(text), is_held_out});
        pending_bytes_ += text.size();
        if (pending_bytes_ >= kPendingBytesOfAThread * static_cast<size_t>(encoder_->threads())) encode_pending();
        return;
    }
    encode_pending();
    begin_document(is_held_out);
    encoder_->encode({&text, 1}, [&](size_t, std::span<const int32_t> tokens) { write_tokens(tokens, is_held_out); });
    end_document(is_held_out);
}

void SplitWriter::encode_pending() {
    if (pending_.empty()) return;
    std::vector<std::string_view> texts;
    for (const Pending& document : pending_) texts.push_back(document.text);
    size_t begun = 0;
    const auto begin_texts_up_to = [&](size_t last) {  // and end those before the last
        for (; begun < last; ++begun) {
            if (begun > 0) end_document(pending_[begun - 1].is_held_out);
            begin_document(pending_[begun].is_held_out);
        }
    };
    encoder_->encode(texts, [&](size_t text, std::span<const int32_t> tokens) {
        begin_texts_up_to(text + 1);
        write_tokens(tokens, pending_[text].is_held_out);
    });
    begin_texts_up_to(pending_.size());
    end_document(pending_.back().is_held_out);
    pending_.clear();
    pending_bytes_ = 0;
}

void SplitWriter::add_ids(const Document& document, std::span<const IdArray> ids, bool is_held_out) {
    encode_pending();  // documents keep their order
    Split& split = split_of(is_held_out);
    const bool has_begin = !ids.empty() && ids.front().count > 0 && ids.front()[0] == options_.begin;
    if (!has_begin && document.ends_with_separator) begin_document(is_held_out);
    int64_t last = -1, at = 0;
    std::vector<int32_t> run;
    for (const IdArray& part : ids) {
        for (int64_t first = 0; first < part.count; first += kIdsAtOnce) {
            run.clear();
            for (int64_t i = first; i < std::min(first + kIdsAtOnce, part.count); ++i, ++at) {
                last = part[i];
                if (last < 0 || last >= options_.vocab_size) {
                    throw UserError(
                        "data.id_outside", "--vocab-size",
                        fmt::format("{}: token {} of the document is {}, outside the vocabulary of {}. {}", document.name, at,
                                    last, options_.vocab_size,
                                    last < 0 ? "Give the ids without negative ones, which are masks or padding and no tokens."
                                             : "Give the tokenizer, or the size of the vocabulary, that the ids were "
                                               "made with; of ids without a header --id-bytes says the width."));
                }
                run.push_back(static_cast<int32_t>(last));
                if (!token_bytes_.empty()) split.text_bytes += token_bytes_[static_cast<size_t>(last)];
            }
            write_tokens(run, is_held_out);
        }
    }
    if (last != options_.separator && document.ends_with_separator) end_document(is_held_out);
    else split.shards.end_document(ShardWriter::End::AsItIs);
}

void SplitWriter::finish(Manifest& manifest) {
    encode_pending();
    finish(train_, manifest.train);
    finish(heldout_, manifest.heldout);
    SourceInfo& sources = manifest.sources;
    sources.empty_documents += empty_;
    sources.invalid_utf8_bytes += invalid_bytes_;
    sources.invalid_utf8_documents += invalid_documents_;
    if (sources.invalid_utf8_first.empty()) sources.invalid_utf8_first = first_invalid_;
}

void SplitWriter::finish(Split& split, SplitInfo& info) {
    // What was there before may come from a program that did not count.
    const bool is_known = !token_bytes_.empty() && (info.tokens == 0 || info.text_bytes > 0);
    split.shards.finish(info);
    if (!is_known) return;
    info.text_bytes += split.text_bytes;
    for (size_t token = 0; token < token_bytes_.size(); ++token) info.decoded_bytes += split.counts[token] * token_bytes_[token];
}

void SplitWriter::publish() {
    train_.shards.publish();
    heldout_.shards.publish();
}

double entropy_nats(const std::vector<int64_t>& counts) {
    double total = 0, entropy = 0;
    for (const int64_t count : counts) total += static_cast<double>(count);
    for (const int64_t count : counts) {
        if (count == 0) continue;
        const double share = static_cast<double>(count) / total;
        entropy -= share * std::log(share);
    }
    return entropy;
}

}  // namespace lockstep::data
