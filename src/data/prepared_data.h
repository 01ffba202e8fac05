// A prepared folder: tokenizer.json, train.tokens, heldout.tokens and manifest.json, which is written last and ties them
// together.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/token_file.h"
#include "data/tokenizer.h"

namespace lockstep::data {

inline constexpr int kManifestVersion = 1;
inline constexpr const char* kManifestFile = "manifest.json";
inline constexpr const char* kTokenizerFile = "tokenizer.json";
inline constexpr const char* kTrainFile = "train.tokens";
inline constexpr const char* kHeldoutFile = "heldout.tokens";

struct SplitInfo {
    int64_t tokens = 0;  // separators included
    int64_t documents = 0;
    std::string xxh3;  // the checksum in the token file's header
    bool operator==(const SplitInfo&) const = default;
};

struct SourceInfo {
    std::vector<std::string> inputs;  // as the user named them
    int64_t files = 0;
    int64_t bytes = 0;
    int64_t skipped_binary = 0, skipped_empty = 0, skipped_hidden = 0, skipped_repeated = 0, skipped_other = 0;
    std::string fingerprint;  // of the names and contents of all files and of the options that shape the tokens
    bool operator==(const SourceInfo&) const = default;
};

struct Manifest {
    int vocab_size = 0;
    int32_t separator = 0;
    std::string token_type;  // "u16" or "u32"
    SplitInfo train, heldout;
    std::string tokenizer_xxh3;  // of the whole tokenizer.json
    // Entropy of the train tokens' frequencies: the loss of a model that knows only how often each token occurs.
    double unigram_entropy_nats = 0;
    SourceInfo sources;
    bool operator==(const Manifest&) const = default;

    std::string to_json() const;
    // Errors: data.file_unreadable, data.manifest_malformed, data.manifest_version.
    static Manifest load(const std::filesystem::path& file);
};

struct PreparedData {
    Manifest manifest;
    Tokenizer tokenizer;
    TokenFile train, heldout;

    // Errors: data.not_prepared (no manifest in `folder`), data.files_disagree (a file is not the one the manifest names), and
    // those of Manifest::load, Tokenizer::load and TokenFile::open.
    static PreparedData open(const std::filesystem::path& folder, Verify verify = Verify::fast);
};

}  // namespace lockstep::data
