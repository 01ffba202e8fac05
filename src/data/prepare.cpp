#include "data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/checksum.h"
#include "base/error.h"
#include "base/output_file.h"
#include "data/bpe_trainer.h"
#include "data/file_corpus.h"
#include "data/split_writer.h"
#include "data/tokenizer_json.h"

namespace lockstep::data {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kFewestShardTokens = 1000;

void check_options(const PrepareOptions& options) {
    const double fraction = options.heldout_fraction.value_or(kDefaultHeldout);
    if (!(fraction >= 0 && fraction < 1)) {
        throw UserError("data.heldout_fraction", "--heldout",
                        fmt::format("the held-out fraction is {}; it must be at least 0 and below 1, for example 0.01. 0 holds "
                                    "nothing out.",
                                    fraction));
    }
    if (options.shard_tokens < kFewestShardTokens) {
        throw UserError("data.shard_tokens", "--shard-tokens",
                        fmt::format("--shard-tokens {}: a token file of fewer than {} tokens is refused. Give {} or more.",
                                    options.shard_tokens, kFewestShardTokens, kFewestShardTokens));
    }
    const bool has_file = !options.tokenizer.empty() && options.tokenizer != "bpe" && options.tokenizer != "bytes";
    const bool names_tokens = !options.end_token.empty() || !options.begin_token.empty();
    if (names_tokens && !has_file && options.existing != ExistingData::append) {
        throw UserError(
            "data.document_tokens", options.end_token.empty() ? "--begin-token" : "--end-token",
            fmt::format("{} names a token of a tokenizer.json: give --tokenizer FILE. Tokenizers that are made here end "
                        "documents with {}; of token ids --separator says it.",
                        options.end_token.empty() ? "--begin-token" : "--end-token", kSeparatorText));
    }
    if (options.ids_vocab_size == 0 && options.ids_separator < 0) return;
    if (options.ids_vocab_size < 1 || options.ids_separator < 0 || options.ids_separator >= options.ids_vocab_size) {
        throw UserError(
            "data.ids_options", "--separator",
            fmt::format("--vocab-size {} and --separator {} do not fit: token ids need both, the separator at least 0 "
                        "and below the size of the vocabulary. GPT-2 has --vocab-size 50257 --separator 50256.",
                        options.ids_vocab_size, options.ids_separator));
    }
    if (!options.tokenizer.empty()) {
        throw UserError("data.ids_options", "--vocab-size",
                        "--tokenizer says the vocabulary and the separator: leave --vocab-size and --separator out, or the "
                        "tokenizer.");
    }
}

// ---- the vocabulary

// A tokenizer, or only the numbers of one; neither before a tokenizer is learned.
struct Vocabulary {
    std::optional<Tokenizer> tokenizer;
    std::string tokenizer_json;
    int size = 0;
    int32_t separator = -1, begin = -1;

    bool is_known() const { return size > 0; }
    void take(Tokenizer&& made, std::string json) {
        size = made.vocab_size();
        separator = made.separator();
        begin = made.begin();
        tokenizer = std::move(made);
        tokenizer_json = std::move(json);
    }
};

// What the flags say, else the files next to the tokenizer.json; of what documents begin with, only the flag and the manifest
// of a prepared folder.
DocumentTokens document_tokens(const PrepareOptions& options) {
    DocumentTokens tokens = DocumentTokens::beside(options.tokenizer);
    if (!options.end_token.empty()) tokens.end = {{options.end_token, -1, "--end-token", true}};
    if (!options.begin_token.empty()) tokens.begin = TokenName{options.begin_token, -1, "--begin-token", true};
    return tokens;
}

// "tokenizer_config.json names </s> as eos_token, which is no token of t/tokenizer.json"
std::string unknown_end(const TokenName& name, const std::string& tokenizer) {
    return fmt::format("{} names {} as eos_token, which is no token of {}", name.said_by, name.text, tokenizer);
}

// With the token that ends a document: one that the files in its folder name, or a known one where they name none.
Tokenizer load_tokenizer(const std::string& json, const std::string& path, const DocumentTokens& documents) {
    const auto named = std::find_if(documents.end.begin(), documents.end.end(),
                                    [](const TokenName& name) { return !name.text.empty() && !name.must_exist; });
    const bool is_named = named != documents.end.end();
    const auto refuse = [&] {
        const std::string why = is_named ? unknown_end(*named, path)
                                         : fmt::format("{} next to {} is not JSON and may say which token ends a document",
                                                       documents.broken.front(), path);
        throw UserError("data.end_unknown", "--end-token",
                        fmt::format("{}. {} or say with --end-token which token ends a document.", why,
                                    is_named ? "Name the tokenizer.json that belongs to it," : "Correct it,"));
    };
    try {
        Tokenizer loaded = Tokenizer::from_json(json, path, documents);
        const bool by_known_name = loaded.parts().separator_said_by.empty();
        if (by_known_name && is_named) refuse();
        return loaded;
    } catch (const UserError& error) {
        if (error.is(kNoSeparator) && (is_named || !documents.broken.empty())) refuse();
        throw;
    }
}

// `documents`: of a tokenizer.json.
Vocabulary given_vocabulary(const PrepareOptions& options, const DocumentTokens& documents) {
    Vocabulary given;
    if (options.ids_vocab_size > 0) {
        given.size = options.ids_vocab_size;
        given.separator = options.ids_separator;
    } else if (options.tokenizer == "bytes") {
        Tokenizer bytes = Tokenizer::bytes();
        std::string json = bytes.to_json();
        given.take(std::move(bytes), std::move(json));
    } else if (options.tokenizer != "bpe") {
        std::error_code ignored;
        if (!std::filesystem::exists(options.tokenizer, ignored))
            throw UserError(
                "data.no_tokenizer", "--tokenizer",
                fmt::format("--tokenizer {}: there is no such file, and no tokenizer is downloaded. Give the path of a "
                            "tokenizer.json, or bpe or bytes.",
                            options.tokenizer));
        if (std::filesystem::is_directory(options.tokenizer, ignored))
            throw UserError("data.no_tokenizer", "--tokenizer",
                            fmt::format("--tokenizer {}: it is a folder. Give the tokenizer.json in it.", options.tokenizer));
        std::string json(MappedFile::open(options.tokenizer).text());
        Tokenizer loaded = load_tokenizer(json, options.tokenizer, documents);
        given.take(std::move(loaded), std::move(json));
    }
    if (given.tokenizer && options.vocab != 0 && options.vocab != given.size) {
        throw UserError(
            "data.vocab_mismatch", "vocab",
            fmt::format("the tokenizer '{}' has a vocabulary of {}, {} is asked for. Leave the vocabulary out, or learn a "
                        "tokenizer of that size with 'bpe'.",
                        options.tokenizer, given.size, options.vocab));
    }
    return given;
}

// That of the folder that is appended to, which any that the user names must be.
Vocabulary appended_vocabulary(const PrepareOptions& options, const PreparedData& base) {
    Vocabulary own;
    own.size = base.manifest.vocab_size;
    own.separator = base.manifest.separator;
    if (std::optional<Tokenizer> tokenizer = base.tokenizer())
        own.take(std::move(*tokenizer), std::string(MappedFile::open(base.folder / kTokenizerFile).text()));
    const auto refuse = [&](const std::string& asked) {
        throw UserError("data.append_tokenizer", "--tokenizer",
                        fmt::format("{} was prepared with another tokenizer than {}: its vocabulary is {} and its separator {}. "
                                    "Leave the tokenizer out, or prepare a folder of its own.",
                                    base.folder.string(), asked, own.size, own.separator));
    };
    own.begin = base.manifest.begin;
    const auto text_of = [&](int32_t id) {
        return own.tokenizer && id >= 0 ? own.tokenizer->parts().tokens[static_cast<size_t>(id)] : std::string();
    };
    if (!options.end_token.empty() && options.end_token != text_of(own.separator))
        refuse(fmt::format("one whose documents end with {}", options.end_token));
    if (!options.begin_token.empty() && options.begin_token != text_of(own.begin))
        refuse(fmt::format("one whose documents begin with {}", options.begin_token));
    if (options.tokenizer == "bpe" || options.vocab != 0) refuse("one that is learned now");
    if (options.tokenizer.empty() && options.ids_vocab_size == 0) return own;
    DocumentTokens documents{{{"", own.separator, "", false}}, std::nullopt};
    if (own.begin >= 0) documents.begin = TokenName{"", own.begin, "", false};
    const Vocabulary given = given_vocabulary(options, documents);
    const bool same_numbers = given.size == own.size && given.separator == own.separator;
    const bool same_file = !given.tokenizer || given.tokenizer_json == own.tokenizer_json;
    if (!same_numbers || !same_file) refuse(given.tokenizer ? options.tokenizer : fmt::format("that of {} ids", given.size));
    return own;
}

void require_vocabulary_for_ids(const FileCorpus& corpus, const Vocabulary& vocabulary) {
    for (int64_t f = 0; f < corpus.files(); ++f) {
        const Input& input = corpus.file(f);
        if (!input.holds_ids() || vocabulary.is_known()) continue;
        throw UserError(
            "data.ids_without_vocabulary", "--tokenizer",
            fmt::format("{} holds token ids, from which no tokenizer can be learned. Give the tokenizer that made them "
                        "with --tokenizer tokenizer.json, or say --vocab-size N --separator ID (GPT-2: 50257 and "
                        "50256).",
                        input.path.string()));
    }
}

// ---- what the data is made from

// Changes with anything that changes the tokens: file names, contents, tokenizer, options. Not with where the files lie.
std::string fingerprint(const FileCorpus& corpus, const PrepareOptions& options, const Vocabulary& vocabulary, double heldout,
                        const Progress& progress) {
    const std::string how =
        vocabulary.tokenizer
            ? hex_checksum(vocabulary.tokenizer_json)
            : fmt::format("{} {} {}", vocabulary.is_known() ? fmt::format("ids {}", vocabulary.separator) : "bpe",
                          vocabulary.is_known() ? vocabulary.size : options.vocab, options.max_training_text_bytes);
    std::string all = fmt::format("{} {}\n", how, heldout);
    if (const std::optional<Tokenizer>& tokenizer = vocabulary.tokenizer) {
        const std::vector<int32_t> known = tokenizer->known_separators();
        if (known.empty() || known.front() != vocabulary.separator) all += fmt::format("end {}\n", vocabulary.separator);
    }
    if (vocabulary.begin >= 0) all += fmt::format("begin {}\n", vocabulary.begin);
    if (options.id_bytes != 0) all += fmt::format("id bytes {}\n", options.id_bytes);
    if (options.text_format != TextFormat::by_content) all += fmt::format("format {}\n", static_cast<int>(options.text_format));
    if (options.field != "text") all += fmt::format("field {}\n", options.field);
    if (options.shard_tokens != kDefaultShardTokens) all += fmt::format("shards {}\n", options.shard_tokens);
    int64_t total = 0, done = 0;
    for (int64_t f = 0; f < corpus.files(); ++f) total += corpus.file_bytes(f);
    for (int64_t f = 0; f < corpus.files(); ++f) {
        report(progress, "reading", done, total);
        const Input& input = corpus.file(f);
        all += fmt::format("{} {}\n", hex_checksum(MappedFile::open(input.path).text()), input.name);
        if (input.is_json_by_content) all += "JSON\n";
        if (input.format == Format::raw_ids && options.id_bytes == 0 && vocabulary.size > 65536) all += "ids of 4 bytes\n";
        if (!input.bin.empty()) all += hex_checksum(MappedFile::open(input.bin).text()) + "\n";
        done += input.bytes;
    }
    return hex_checksum(all);
}

// ---- what is in `out` already

// Does the folder hold nothing but what an interrupted preparation has left?
bool only_leftovers(const fs::path& folder) {
    return std::all_of(fs::directory_iterator(folder), fs::directory_iterator(), [](const fs::directory_entry& e) {
        const std::string name = e.path().filename().string();
        return name == FolderLock::kFile || name == kTokenizerFile || name.ends_with(".tokens") || name.ends_with(kPartial);
    });
}

bool was_made_of(const Manifest& manifest, const std::string& fingerprint) {
    const std::vector<std::string>& all = manifest.sources.fingerprints;
    return std::find(all.begin(), all.end(), fingerprint) != all.end();
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
    const Manifest existing = PreparedData::open(options.out).manifest;
    const bool leaves_out_more = existing.sources.bad_lines > options.most_bad_lines && existing.sources.fingerprints.size() == 1;
    if (was_made_of(existing, wanted_fingerprint) && leaves_out_more && options.existing == ExistingData::refuse) {
        throw UserError(
            "data.out_exists", options.out.string(),
            fmt::format("{} holds this dataset without {} lines that cannot be read, and --skip-bad-lines leaves out {} "
                        "at most. Name another folder, or replace it with --overwrite.",
                        options.out.string(), existing.sources.bad_lines, options.most_bad_lines));
    }
    if (was_made_of(existing, wanted_fingerprint)) return existing;
    if (options.existing == ExistingData::append) return std::nullopt;
    throw UserError("data.out_exists", options.out.string(),
                    fmt::format("{} holds another dataset (vocabulary {}, {} train tokens, from {} files). Name another folder, "
                                "replace it with --overwrite, or add to it with --append.",
                                options.out.string(), existing.vocab_size, existing.train.tokens, existing.sources.files));
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

// The lines that are left out.
class BadLines {
public:
    explicit BadLines(int64_t most) : most_(most) {}

    // UserError data.too_many_bad_lines.
    void add(const BadLine& bad) {
        if (first_.size() < kNamed) first_.push_back(bad);
        if (++count_ <= most_) return;
        throw UserError(
            "data.too_many_bad_lines", "--skip-bad-lines",
            fmt::format("{} lines and perhaps more cannot be read, and --skip-bad-lines leaves out {} at most. Nothing "
                        "was written. The first are:{}",
                        count_, most_, places()));
    }
    int64_t count() const { return count_; }
    // "\n  a.jsonl, line 3: ..", of the first.
    std::string places() const {
        std::string places;
        for (const BadLine& b : first_) places += fmt::format("\n  {}, {} {}: {}", b.file, b.unit(), b.line, b.cause);
        return places;
    }
    void finish(SourceInfo& sources) const {
        sources.bad_lines += count_;
        for (const BadLine& bad : first_)
            if (sources.first_bad_lines.size() < kNamed) sources.first_bad_lines.push_back(bad);
    }

private:
    static constexpr size_t kNamed = 10;
    int64_t most_, count_ = 0;
    std::vector<BadLine> first_;
};

void write_documents(const FileCorpus& corpus, SplitWriter& writer, BadLines& bad_lines, const Progress& progress) {
    int64_t total = 0, before = 0, reported = 0;
    for (int64_t f = 0; f < corpus.files(); ++f) total += corpus.file_bytes(f);
    for (int64_t f = 0; f < corpus.files(); ++f) {
        const auto use = [&](const Document& document) {
            writer.add(document);
            const int64_t done = before + document.file_bytes_done;
            if (done - reported > total / 1000) report(progress, "encoding", reported = done, total);
            return true;
        };
        corpus.visit(f, use, [&](const BadLine& bad) { bad_lines.add(bad); });
        before += corpus.file_bytes(f);
    }
    report(progress, "encoding", total, total);
}

void add_sources(SourceInfo& sources, const PrepareOptions& options, const Inputs& found) {
    for (const fs::path& input : options.inputs) sources.inputs.push_back(input.string());
    sources.files += static_cast<int64_t>(found.files.size());
    for (const Input& file : found.files) sources.bytes += file.bytes;
    sources.skipped_binary += found.skipped_binary;
    sources.skipped_empty += found.skipped_empty;
    sources.skipped_hidden += found.skipped_hidden;
    sources.skipped_repeated += found.skipped_repeated;
    sources.skipped_other += found.skipped_other;
}

// Counts the tokens of shards that were there before.
void count_tokens(const TokenStream& stream, std::vector<int64_t>& counts, const Progress& progress) {
    std::vector<int32_t> run(64 << 10);
    for (int64_t at = 0; at < stream.tokens(); at += static_cast<int64_t>(run.size())) {
        report(progress, "counting tokens", at, stream.tokens());
        const auto now = static_cast<size_t>(std::min(stream.tokens() - at, static_cast<int64_t>(run.size())));
        stream.read(at, std::span(run).first(now));
        for (size_t i = 0; i < now; ++i) ++counts[static_cast<size_t>(run[i])];
    }
}

// The manifest first. Then all that it may have named: fewer shards may come after it.
void remove_old_data(const fs::path& folder) {
    fs::remove(folder / kManifestFile);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
        const fs::path& file = entry.path();
        const std::string name = file.filename().string();
        if (name.ends_with(".tokens") || name == kTokenizerFile) fs::remove(file);
    }
}

PrepareSummary::Documents documents_of(const PrepareOptions& options, const Tokenizer& tokenizer, const DocumentTokens& named) {
    const auto text_of = [&](int32_t id) { return id >= 0 ? tokenizer.parts().tokens[static_cast<size_t>(id)] : std::string(); };
    PrepareSummary::Documents out{text_of(tokenizer.separator()),
                                  tokenizer.parts().separator_said_by,
                                  text_of(tokenizer.begin()),
                                  {},
                                  configured_begin(options.tokenizer)};
    for (const int32_t id : tokenizer.known_separators())
        if (id != tokenizer.separator()) out.other_ends.push_back(text_of(id));
    if (!options.end_token.empty()) return out;
    out.broken = named.broken;
    bool is_before = true;
    for (const TokenName& name : named.end) {
        is_before = is_before && name.said_by != out.end_said_by;
        if (name.text.empty() || name.text == out.end) continue;
        if (is_before) out.unknown_ends.push_back(name);
        else out.other_names.push_back(fmt::format("{} says {}", name.said_by, name.text));
    }
    return out;
}

void require_tokens(const Manifest& manifest, const PrepareOptions& options, const BadLines& bad_lines) {
    if (manifest.train.tokens > 0) return;
    const std::string left_out =
        bad_lines.count() == 0 ? "" : fmt::format(", {} lines that cannot be read were left out", bad_lines.count());
    throw UserError(
        "data.nothing_to_train_on", "inputs",
        fmt::format("{} holds no text to train on: {} documents were empty, {} are held out{}. {}{}",
                    options.inputs.front().string(), manifest.sources.empty_documents, manifest.heldout.documents, left_out,
                    bad_lines.count() == 0 ? "Give more text."
                                           : "Correct the lines, or say with --format text that it is text. The "
                                             "first that were left out are:",
                    bad_lines.places()));
}

}  // namespace

PrepareSummary prepare(const PrepareOptions& asked, const Progress& progress) {
    PrepareOptions options = asked;
    check_options(options);
    std::optional<PreparedData> base;
    if (options.existing == ExistingData::append) base = PreparedData::open(options.out);
    if (!base && options.tokenizer.empty() && options.ids_vocab_size == 0) options.tokenizer = "bpe";
    if (!base && options.tokenizer == "bpe" && options.vocab == 0) options.vocab = kDefaultVocab;
    const double fraction = options.heldout_fraction.value_or(base ? base->manifest.sources.heldout_fraction : kDefaultHeldout);
    const DocumentTokens documents = base ? DocumentTokens() : document_tokens(options);
    Vocabulary vocabulary = base ? appended_vocabulary(options, *base) : given_vocabulary(options, documents);
    PrepareSummary summary;
    if (!base && vocabulary.tokenizer && options.tokenizer != "bytes")
        summary.documents = documents_of(options, *vocabulary.tokenizer, documents);

    const FieldPath field(options.field);
    const RawIds raw_ids = options.ids_vocab_size > 0 || options.id_bytes > 0 ? RawIds::take : RawIds::leave_out;
    Inputs found =
        find_inputs(options.inputs, {raw_ids, options.id_bytes, options.text_format, field, options.most_bad_lines > 0});
    summary.left_out = std::move(found.left_out);
    summary.taken_as_text = std::move(found.taken_as_text);
    Manifest manifest = base ? base->manifest : Manifest();
    add_sources(manifest.sources, options, found);
    const FileCorpus corpus(std::move(found.files), {field, vocabulary.separator, options.id_bytes, vocabulary.size,
                                                     options.longest_document_bytes, options.most_bad_lines > 0});
    require_vocabulary_for_ids(corpus, vocabulary);
    const std::string made_of = fingerprint(corpus, options, vocabulary, fraction, progress);
    const auto is_there_already = [&] {
        std::optional<Manifest> same = existing_data(options, made_of);
        if (same) summary.manifest = std::move(*same), summary.was_prepared_already = true;
        return summary.was_prepared_already;
    };
    if (is_there_already()) return summary;

    if (!vocabulary.is_known()) {
        Tokenizer learned = train_bpe(corpus, options.vocab, {options.max_training_text_bytes, options.threads}, progress);
        std::string json = learned.to_json();
        vocabulary.take(std::move(learned), std::move(json));
    }
    manifest.vocab_size = vocabulary.size;
    manifest.separator = vocabulary.separator;
    manifest.begin = vocabulary.begin;
    manifest.token_type = vocabulary.size <= 65536 ? "u16" : "u32";
    manifest.tokenizer_xxh3 = vocabulary.tokenizer ? hex_checksum(vocabulary.tokenizer_json) : "";
    manifest.sources.fingerprints.push_back(made_of);

    OutFolder out(options.out);
    if (is_there_already()) return summary;  // just now
    const HeldoutSplit split = base ? HeldoutSplit(fraction) : HeldoutSplit::of(corpus, fraction);
    manifest.sources.heldout_fraction = fraction;
    if (!base) manifest.sources.is_tail_of_one_document = split.is_tail_of_one_document();
    const SplitWriterOptions writing{options.out,
                                     vocabulary.size,
                                     vocabulary.separator,
                                     vocabulary.begin,
                                     static_cast<int64_t>(manifest.train.shards.size()),
                                     static_cast<int64_t>(manifest.heldout.shards.size()),
                                     options.shard_tokens,
                                     options.threads};
    SplitWriter writer(writing, vocabulary.tokenizer ? &*vocabulary.tokenizer : nullptr, split);
    AtomicFile tokenizer_file(options.out / kTokenizerFile), manifest_file(options.out / kManifestFile);
    BadLines bad_lines(options.most_bad_lines);
    write_documents(corpus, writer, bad_lines, progress);
    bad_lines.finish(manifest.sources);
    writer.finish(manifest);
    require_tokens(manifest, options, bad_lines);
    if (base) count_tokens(base->train, writer.train_counts(), progress);
    manifest.unigram_entropy_nats = entropy_nats(writer.train_counts());
    tokenizer_file.append(vocabulary.tokenizer_json);
    tokenizer_file.finish();
    manifest_file.append(manifest.to_json());
    manifest_file.finish();

    // All bytes are durable. Where data is replaced, the old manifest goes first; the new one comes last: a folder without one
    // is not read. New shards of data that is appended to are not read before the manifest names them.
    if (!base) {
        remove_old_data(options.out);
        if (vocabulary.tokenizer) tokenizer_file.publish();
    }
    writer.publish();
    manifest_file.publish();
    out.keep();
    summary.manifest = std::move(manifest);
    return summary;
}

}  // namespace lockstep::data
