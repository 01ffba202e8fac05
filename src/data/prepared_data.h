// A prepared folder: token files (shards) for training and held out, the tokenizer.json that made them, and manifest.json,
// which is written last and ties them together. docs/token_files.md describes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "data/token_stream.h"
#include "data/tokenizer.h"

namespace lockstep::data {

inline constexpr int kManifestVersion = 2;  // version 1 had one file a split
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kTokenizerFile = "tokenizer.json";
inline constexpr const char* kTrainFile = "train.tokens";  // the first shard
inline constexpr const char* kHeldoutFile = "heldout.tokens";

struct ShardInfo {
    std::string file;
    int64_t tokens = 0;  // separators included; 0: the file says it
    int64_t documents = 0;
    std::string xxh3;  // the checksum in the token file's header; empty: none
    bool operator==(const ShardInfo&) const = default;
};

struct SplitInfo {
    int64_t tokens = 0, documents = 0;  // of all shards
    // Bytes of the texts as they were, and of the texts that the tokens stand for: fewer where the tokenizer drops some. 0: not
    // known.
    int64_t text_bytes = 0, decoded_bytes = 0;
    std::vector<ShardInfo> shards;
    bool operator==(const SplitInfo&) const = default;
};

struct SourceInfo {
    std::vector<std::string> inputs;  // as the user named them
    int64_t files = 0;
    int64_t bytes = 0;
    int64_t skipped_binary = 0, skipped_empty = 0, skipped_hidden = 0, skipped_repeated = 0, skipped_other = 0;
    int64_t empty_documents = 0;  // of files that hold several
    int64_t bad_lines = 0;        // of JSON, left out
    std::vector<BadLine> first_bad_lines;
    int64_t invalid_utf8_bytes = 0, invalid_utf8_documents = 0;
    std::string invalid_utf8_first;  // name of the first such document
    double heldout_fraction = 0;
    bool is_tail_of_one_document = false;  // what is held out
    // Of the names and contents of all files and of the options that shape the tokens; of each preparation that appended, too.
    std::vector<std::string> fingerprints;
    bool operator==(const SourceInfo&) const = default;
};

struct Manifest {
    int vocab_size = 0;
    int32_t separator = 0;
    int32_t begin = -1;      // the token that each document begins with; -1: none
    std::string token_type;  // "u16" or "u32"
    SplitInfo train, heldout;
    std::string tokenizer_xxh3;  // of the whole tokenizer.json; empty: there is none
    // Entropy of the train tokens' frequencies: the loss of a model that knows only how often each token occurs. Nothing where
    // another program wrote the folder and did not say.
    std::optional<double> unigram_entropy_nats;
    SourceInfo sources;
    bool operator==(const Manifest&) const = default;

    std::string to_json() const;
    // `file` is for messages. Errors: data.manifest_malformed, data.manifest_version.
    static Manifest parse(std::string_view json, const std::filesystem::path& file);
    // As parse, and data.file_unreadable.
    static Manifest load(const std::filesystem::path& file);
};

struct PreparedData {
    std::filesystem::path folder;
    Manifest manifest;
    TokenStream train, heldout;  // heldout may be empty

    // Reads headers, not tokens, of more than kFastVerifyBytes of token files (Verify::fast). Errors: data.not_prepared (no
    // manifest in `folder`), data.files_disagree (a file is not the one that the manifest names), and those of Manifest::load
    // and TokenFile::open.
    static PreparedData open(const std::filesystem::path& folder, Verify verify = Verify::fast);
    // Nothing where the folder has none. Errors: data.files_disagree, and those of Tokenizer::load.
    std::optional<Tokenizer> tokenizer() const;
};

}  // namespace lockstep::data
