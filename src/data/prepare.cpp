#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"
#include "base/output_file.h"
#include "data/bpe_trainer.h"
#include "data/encoder.h"
#include "data/heldout_split.h"
#include "data/text_files.h"

namespace lockstep::data {
namespace fs = std::filesystem;
namespace {

void check_options(const PrepareOptions& options) {
    if (options.heldout_fraction >= 0 && options.heldout_fraction < 1) return;
    throw UserError("data.heldout_fraction", "heldout_fraction",
                    fmt::format("the held-out fraction is {}; it must be at least 0 and below 1, for example 0.01.",
                                options.heldout_fraction));
}

// ---- what the data is made from

// Changes with anything that changes the tokens: file names, contents, tokenizer, fraction. Not with where the files lie.
std::string fingerprint(const FileCorpus& corpus, const PrepareOptions& options, const std::string& tokenizer_json,
                        const Progress& progress) {
    const std::string how = tokenizer_json.empty()
                                ? fmt::format("{} {} {}", options.tokenizer, options.vocab, options.max_training_text_bytes)
                                : hex_checksum(tokenizer_json);
    std::string all = fmt::format("{} {}\n", how, options.heldout_fraction);
    for (int64_t d = 0; d < corpus.documents(); ++d) {
        report(progress, "reading", d, corpus.documents());
        corpus.visit(d, [&](std::string_view text) { all += fmt::format("{} {}\n", hex_checksum(text), corpus.file(d).name); });
    }
    return hex_checksum(all);
}

// The tokenizer.json that is given and not learned; empty for "bpe".
std::string given_tokenizer(const PrepareOptions& options) {
    if (options.tokenizer == "bpe") return {};
    if (options.tokenizer == "bytes") return Tokenizer::bytes().to_json();
    return std::string(MappedFile::open(options.tokenizer).text());
}

void check_vocab(const PrepareOptions& options, const Tokenizer& tokenizer) {
    if (options.vocab == 0 || options.vocab == tokenizer.vocab_size()) return;
    throw UserError(
        "data.vocab_mismatch", "vocab",
        fmt::format("the tokenizer '{}' has a vocabulary of {}, {} is asked for. Leave the vocabulary out, or learn a "
                    "tokenizer of that size with 'bpe'.",
                    options.tokenizer, tokenizer.vocab_size(), options.vocab));
}

// ---- what stands in `out` already

// Does the folder hold nothing but what an interrupted preparation has left?
bool only_leftovers(const fs::path& folder) {
    return std::all_of(fs::directory_iterator(folder), fs::directory_iterator(), [](const fs::directory_entry& e) {
        const std::string name = e.path().filename().string();
        return name == FolderLock::kFile || name == kTokenizerFile || name == kTrainFile || name == kHeldoutFile ||
               name.ends_with(kPartial);
    });
}

// The manifest of the same data prepared before, nothing where `out` may be written, else an error.
std::optional<Manifest> existing_data(const PrepareOptions& options, const std::string& wanted_fingerprint) {
    std::error_code error;
    if (!fs::exists(options.out, error)) return std::nullopt;  // where it cannot be looked at, making it says why
    const bool has_data = fs::exists(options.out / kManifestFile, error);
    if (!fs::is_directory(options.out) || (!has_data && !only_leftovers(options.out))) {
        throw UserError("data.out_not_a_dataset", options.out.string(),
                        fmt::format("{} exists and is not a prepared data folder (it has no {}), so nothing is written into it. "
                                    "Name a new or an empty folder.",
                                    options.out.string(), kManifestFile));
    }
    if (!has_data || options.existing == ExistingData::replace) return std::nullopt;
    PreparedData existing = PreparedData::open(options.out);
    if (existing.manifest.sources.fingerprint == wanted_fingerprint) return existing.manifest;
    throw UserError(
        "data.out_exists", options.out.string(),
        fmt::format("{} holds another dataset (vocabulary {}, {} train tokens, from {} files). Name another folder, or "
                    "ask for it to be replaced.",
                    options.out.string(), existing.manifest.vocab_size, existing.manifest.train.tokens,
                    existing.manifest.sources.files));
}

// Makes `out` and holds it against other jobs; unless keep() was called, takes away again what it made.
class OutFolder {
public:
    explicit OutFolder(const fs::path& folder) : folder_(folder) {
        std::error_code error;
        is_new_ = !fs::exists(folder_, error);
        fs::create_directories(folder_, error);
        if (error) {
            throw UserError("data.out_unwritable", folder_.string(),
                            fmt::format("the folder {} cannot be made: {}. Name a folder in a place that you may write to.",
                                        folder_.string(), error.message()));
        }
        lock_.emplace(folder_);
        is_new_ = is_new_ && only_leftovers(folder_);  // another job may have made it just now
        remove_partial(folder_);
    }
    ~OutFolder() {
        std::error_code ignored;
        if (is_new_ && !kept_) fs::remove_all(folder_, ignored);
    }
    void keep() { kept_ = true; }

private:
    fs::path folder_;
    std::optional<FolderLock> lock_;
    bool is_new_ = false, kept_ = false;
};

// ---- writing

// Encodes documents into the two token files and counts the train tokens.
class SplitWriter {
public:
    SplitWriter(const fs::path& out, const Tokenizer& tokenizer)
        : encoder_(tokenizer),
          train_(out / kTrainFile, tokenizer.vocab_size(), tokenizer.separator()),
          heldout_(out / kHeldoutFile, tokenizer.vocab_size(), tokenizer.separator()),
          counts_(tokenizer.vocab_size()),
          separator_(tokenizer.separator()) {}

    void add_train(std::string_view text) {
        encoder_.encode_in_runs(text, [&](std::span<const int32_t> tokens, size_t) {
            train_.append(tokens);
            for (const int32_t token : tokens) ++counts_[token];
        });
        train_.end_document();
        ++counts_[separator_];
    }

    void add_heldout(std::string_view text) {
        encoder_.encode_in_runs(text, [&](std::span<const int32_t> tokens, size_t) { heldout_.append(tokens); });
        heldout_.end_document();
    }

    void finish(Manifest& manifest) {
        manifest.train = split_info(train_.finish());
        manifest.heldout = split_info(heldout_.finish());
        manifest.token_type = manifest.vocab_size <= 65536 ? "u16" : "u32";
        const auto total = static_cast<double>(manifest.train.tokens);
        for (const int64_t count : counts_) {
            if (count == 0) continue;
            const double share = static_cast<double>(count) / total;
            manifest.unigram_entropy_nats -= share * std::log(share);
        }
    }

    void publish() {
        train_.publish();
        heldout_.publish();
    }

private:
    static SplitInfo split_info(const TokenFileHeader& header) {
        return {static_cast<int64_t>(header.tokens), static_cast<int64_t>(header.documents), hex_checksum(header.checksum)};
    }

    Encoder encoder_;
    TokenFileWriter train_, heldout_;
    std::vector<int64_t> counts_;
    int32_t separator_;
};

void write_single_document(const FileCorpus& corpus, double fraction, SplitWriter& writer) {
    corpus.visit(0, [&](std::string_view text) {
        if (text.size() < 2) {
            throw UserError("data.too_little_text", corpus.file(0).path.string(),
                            fmt::format("{} holds {} byte: nothing would be left to train on once a part is held out. "
                                        "Give more text.",
                                        corpus.file(0).path.string(), text.size()));
        }
        const size_t tail = held_out_tail_begin(text, fraction);
        writer.add_train(text.substr(0, tail));
        writer.add_heldout(text.substr(tail));
    });
}

void write_documents(const FileCorpus& corpus, double fraction, SplitWriter& writer, const Progress& progress) {
    if (corpus.documents() == 1) return write_single_document(corpus, fraction, writer);
    std::vector<std::string> names;
    for (int64_t d = 0; d < corpus.documents(); ++d) names.push_back(corpus.file(d).name);
    const std::vector<bool> held_out = held_out_documents(names, fraction);
    for (int64_t d = 0; d < corpus.documents(); ++d) {
        report(progress, "encoding", d, corpus.documents());
        corpus.visit(d, [&](std::string_view text) { held_out[d] ? writer.add_heldout(text) : writer.add_train(text); });
    }
    report(progress, "encoding", corpus.documents(), corpus.documents());
}

SourceInfo source_info(const PrepareOptions& options, const TextFiles& found) {
    SourceInfo sources;
    for (const fs::path& input : options.inputs) sources.inputs.push_back(input.string());
    sources.files = static_cast<int64_t>(found.files.size());
    for (const TextFile& file : found.files) sources.bytes += file.bytes;
    sources.skipped_binary = found.skipped_binary;
    sources.skipped_empty = found.skipped_empty;
    sources.skipped_hidden = found.skipped_hidden;
    sources.skipped_repeated = found.skipped_repeated;
    sources.skipped_other = found.skipped_other;
    return sources;
}

}  // namespace

PrepareSummary prepare(const PrepareOptions& asked, const Progress& progress) {
    PrepareOptions options = asked;
    check_options(options);
    if (options.tokenizer == "bpe" && options.vocab == 0) options.vocab = kDefaultVocab;
    std::string tokenizer_json = given_tokenizer(options);
    std::optional<Tokenizer> tokenizer;
    if (!tokenizer_json.empty()) {
        tokenizer = Tokenizer::from_json(tokenizer_json, options.tokenizer);
        check_vocab(options, *tokenizer);
    }

    TextFiles found = find_text_files(options.inputs);
    Manifest manifest;
    manifest.sources = source_info(options, found);
    const FileCorpus corpus(std::move(found.files));
    manifest.sources.fingerprint = fingerprint(corpus, options, tokenizer_json, progress);
    if (std::optional<Manifest> same = existing_data(options, manifest.sources.fingerprint)) return {*same, true};

    if (!tokenizer) {
        tokenizer = train_bpe(corpus, options.vocab, {options.max_training_text_bytes, options.threads}, progress);
        tokenizer_json = tokenizer->to_json();
    }
    manifest.vocab_size = tokenizer->vocab_size();
    manifest.separator = tokenizer->separator();
    manifest.tokenizer_xxh3 = hex_checksum(tokenizer_json);

    OutFolder out(options.out);
    if (std::optional<Manifest> same = existing_data(options, manifest.sources.fingerprint)) return {*same, true};  // just now
    SplitWriter writer(options.out, *tokenizer);
    AtomicFile tokenizer_file(options.out / kTokenizerFile), manifest_file(options.out / kManifestFile);
    write_documents(corpus, options.heldout_fraction, writer, progress);
    writer.finish(manifest);
    tokenizer_file.append(tokenizer_json);
    tokenizer_file.finish();
    manifest_file.append(manifest.to_json());
    manifest_file.finish();

    // All bytes are durable. An old manifest goes first and the new one comes last: a folder without one is not read.
    fs::remove(options.out / kManifestFile);
    tokenizer_file.publish();
    writer.publish();
    manifest_file.publish();
    out.keep();
    return {std::move(manifest), false};
}

}  // namespace lockstep::data
