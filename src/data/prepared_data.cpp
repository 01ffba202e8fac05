#include "data/prepared_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "data/file_io.h"

namespace lockstep::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep-tokens";

OrderedJson to_json(const SplitInfo& split) {
    OrderedJson shards = OrderedJson::array();
    for (const ShardInfo& shard : split.shards)
        shards.push_back({{"file", shard.file}, {"tokens", shard.tokens}, {"documents", shard.documents}, {"xxh3", shard.xxh3}});
    OrderedJson out = {{"tokens", split.tokens}, {"documents", split.documents}};
    if (split.text_bytes > 0) out["text_bytes"] = split.text_bytes, out["decoded_bytes"] = split.decoded_bytes;
    out["shards"] = std::move(shards);
    return out;
}

int64_t count(const OrderedJson& json, const char* key) {
    const int64_t value = json.contains(key) ? whole_number(json.at(key)) : 0;
    if (value < 0) throw std::runtime_error(fmt::format("\"{}\" is {}", key, value));
    return value;
}

// A name in the folder, not a path that leads out of it.
std::string plain_name(const std::string& name) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
        throw std::runtime_error(fmt::format("\"{}\" is not the name of a file in the folder", name));
    return name;
}

// `first_file`: the only one of version 1, which does not name it.
SplitInfo split_info(const OrderedJson& json, int version, const char* first_file) {
    SplitInfo split;
    if (version == 1) {
        split.shards.push_back({first_file, count(json, "tokens"), count(json, "documents"), json.value("xxh3", "")});
    } else {
        for (const OrderedJson& shard : json.at("shards")) {
            split.shards.push_back({plain_name(shard.at("file").get<std::string>()), count(shard, "tokens"),
                                    count(shard, "documents"), shard.value("xxh3", "")});
        }
    }
    split.tokens = count(json, "tokens");
    split.documents = count(json, "documents");
    split.text_bytes = count(json, "text_bytes");
    split.decoded_bytes = count(json, "decoded_bytes");
    return split;
}

OrderedJson to_json(const std::vector<BadLine>& lines) {
    OrderedJson out = OrderedJson::array();
    for (const BadLine& bad : lines) out.push_back({{"file", bad.file}, {bad.unit(), bad.line}, {"cause", bad.cause}});
    return out;
}

OrderedJson to_json(const SourceInfo& sources) {
    return {{"inputs", sources.inputs},
            {"files", sources.files},
            {"bytes", sources.bytes},
            {"skipped_binary", sources.skipped_binary},
            {"skipped_empty", sources.skipped_empty},
            {"skipped_hidden", sources.skipped_hidden},
            {"skipped_repeated", sources.skipped_repeated},
            {"skipped_other", sources.skipped_other},
            {"empty_documents", sources.empty_documents},
            {"bad_lines", sources.bad_lines},
            {"first_bad_lines", to_json(sources.first_bad_lines)},
            {"invalid_utf8_bytes", sources.invalid_utf8_bytes},
            {"invalid_utf8_documents", sources.invalid_utf8_documents},
            {"invalid_utf8_first", sources.invalid_utf8_first},
            {"heldout_fraction", sources.heldout_fraction},
            {"is_tail_of_one_document", sources.is_tail_of_one_document},
            {"fingerprints", sources.fingerprints}};
}

SourceInfo source_info(const OrderedJson& json) {
    SourceInfo sources;
    sources.inputs = json.value("inputs", sources.inputs);
    sources.files = count(json, "files");
    sources.bytes = count(json, "bytes");
    sources.skipped_binary = count(json, "skipped_binary");
    sources.skipped_empty = count(json, "skipped_empty");
    sources.skipped_hidden = count(json, "skipped_hidden");
    sources.skipped_repeated = count(json, "skipped_repeated");
    sources.skipped_other = count(json, "skipped_other");
    sources.empty_documents = count(json, "empty_documents");
    sources.bad_lines = count(json, "bad_lines");
    for (const OrderedJson& bad : json.value("first_bad_lines", OrderedJson::array()))
        sources.first_bad_lines.push_back(
            {bad.at("file"), count(bad, bad.contains("line") ? "line" : "object"), bad.at("cause"), bad.contains("line")});
    sources.invalid_utf8_bytes = count(json, "invalid_utf8_bytes");
    sources.invalid_utf8_documents = count(json, "invalid_utf8_documents");
    sources.invalid_utf8_first = json.value("invalid_utf8_first", "");
    sources.heldout_fraction = json.value("heldout_fraction", 0.0);
    sources.is_tail_of_one_document = json.value("is_tail_of_one_document", false);
    sources.fingerprints = json.value("fingerprints", sources.fingerprints);
    if (json.contains("fingerprint")) sources.fingerprints.push_back(json.at("fingerprint"));  // version 1
    return sources;
}

void check_agreement(const std::filesystem::path& file, const std::string& what, const std::string& in_file,
                     const std::string& in_manifest) {
    if (in_file == in_manifest) return;
    throw UserError("data.files_disagree", file.string(),
                    fmt::format("{} is not the file that {} next to it describes: {} is {}, the manifest says {}. "
                                "Run `data prepare` again, or put back the files that belong together.",
                                file.string(), kManifestFile, what, in_file, in_manifest));
}

TokenStream open_split(const std::filesystem::path& folder, const SplitInfo& split, const Manifest& manifest, Verify verify) {
    if (split.shards.empty()) return {};
    std::vector<TokenFile> files;
    for (const ShardInfo& shard : split.shards) {
        files.push_back(TokenFile::open(folder / shard.file, verify));
        const TokenFile& file = files.back();
        const auto check = [&](const std::string& what, int64_t in_file, int64_t in_manifest) {
            check_agreement(file.path(), what, std::to_string(in_file), std::to_string(in_manifest));
        };
        if (shard.tokens > 0) check("the number of tokens", file.tokens(), shard.tokens);
        if (shard.documents > 0) check("the number of documents", file.documents(), shard.documents);
        check("the vocabulary", file.vocab_size(), manifest.vocab_size);
        check("the separator", file.separator(), manifest.separator);
        if (!shard.xxh3.empty()) check_agreement(file.path(), "the checksum", hex_checksum(file.header().checksum), shard.xxh3);
    }
    const std::string name = files.size() == 1 ? files.front().path().string() : folder.string();
    return {std::move(files), name};
}

// With all token files of the folder, so that a folder of a thousand small shards opens as fast as one of a large file.
Verify affordable(const std::filesystem::path& folder, const Manifest& manifest, Verify wanted) {
    if (wanted != Verify::fast) return wanted;
    int64_t bytes = 0;
    for (const SplitInfo* split : {&manifest.train, &manifest.heldout}) {
        for (const ShardInfo& shard : split->shards) {
            std::error_code error;
            const uintmax_t size = std::filesystem::file_size(folder / shard.file, error);
            if (!error) bytes += static_cast<int64_t>(size);
        }
    }
    return bytes < kFastVerifyBytes ? Verify::full : Verify::header;
}

// Of nlohmann's "[json.exception.out_of_range.403] key 'train' not found".
std::string missing_key(const std::string& text) {
    const size_t begin = text.find('\''), end = text.rfind('\'');
    return begin < end ? "it has no " + text.substr(begin, end + 1 - begin) : "a value is missing";
}

[[noreturn]] void malformed(const std::filesystem::path& file, const std::string& why) {
    throw UserError("data.manifest_malformed", file.string(),
                    fmt::format("{} is not a usable manifest: {}. Run `data prepare` again; docs/token_files.md describes the "
                                "format.",
                                file.string(), why));
}

}  // namespace

std::string Manifest::to_json() const {
    const OrderedJson json = {
        {"format", kFormat},
        {"version", kManifestVersion},
        {"vocab_size", vocab_size},
        {"separator", separator},
        {"begin", begin >= 0 ? OrderedJson(begin) : OrderedJson(nullptr)},
        {"token_type", token_type},
        {"train", data::to_json(train)},
        {"heldout", data::to_json(heldout)},
        {"tokenizer_xxh3", tokenizer_xxh3},
        {"unigram_entropy_nats", unigram_entropy_nats ? OrderedJson(*unigram_entropy_nats) : OrderedJson(nullptr)},
        {"sources", data::to_json(sources)}};
    // File names need not be UTF-8; what is not is replaced.
    return json_text(json, 2) + "\n";
}

Manifest Manifest::parse(std::string_view text, const std::filesystem::path& file) {
    const OrderedJson json = json_or_discarded<OrderedJson>(text);
    if (json.is_discarded()) malformed(file, "it is not JSON, or it was cut off");
    if (!json.is_object()) malformed(file, "it is not an object");
    try {
        if (json.value("format", "") != kFormat) throw std::runtime_error(fmt::format("its format is not '{}'", kFormat));
        const int64_t version = whole_number(json.at("version"));
        if (version < 1 || version > kManifestVersion) {
            throw UserError("data.manifest_version", file.string(),
                            fmt::format("{} has version {}, this program reads versions 1 to {}. Run `data prepare` again.",
                                        file.string(), version, kManifestVersion));
        }
        Manifest manifest;
        const int64_t vocab_size = whole_number(json.at("vocab_size")), separator = whole_number(json.at("separator"));
        if (vocab_size < 1 || vocab_size > INT32_MAX || separator < 0 || separator >= vocab_size)
            throw std::runtime_error(fmt::format("its vocabulary is {} and its separator {}", vocab_size, separator));
        manifest.vocab_size = static_cast<int>(vocab_size);
        manifest.separator = static_cast<int32_t>(separator);
        if (json.contains("begin") && !json.at("begin").is_null()) {
            const int64_t begin = whole_number(json.at("begin"));
            if (begin < 0 || begin >= vocab_size)
                throw std::runtime_error(fmt::format("its vocabulary is {} and its \"begin\" {}", vocab_size, begin));
            manifest.begin = static_cast<int32_t>(begin);
        }
        manifest.token_type = json.value("token_type", manifest.vocab_size <= 65536 ? "u16" : "u32");
        manifest.train = split_info(json.at("train"), static_cast<int>(version), kTrainFile);
        if (manifest.train.shards.empty()) throw std::runtime_error("it names no token file to train on");
        if (json.contains("heldout")) manifest.heldout = split_info(json.at("heldout"), static_cast<int>(version), kHeldoutFile);
        manifest.tokenizer_xxh3 = json.value("tokenizer_xxh3", "");
        if (json.contains("unigram_entropy_nats") && !json.at("unigram_entropy_nats").is_null())
            manifest.unigram_entropy_nats = json.at("unigram_entropy_nats").get<double>();
        if (json.contains("sources")) manifest.sources = source_info(json.at("sources"));
        return manifest;
    } catch (const UserError&) {
        throw;
    } catch (const OrderedJson::out_of_range& error) {
        malformed(file, missing_key(error.what()));
    } catch (const OrderedJson::exception&) {
        malformed(file, "a value has another type than it must have");
    } catch (const std::runtime_error& error) {
        malformed(file, error.what());
    }
}

Manifest Manifest::load(const std::filesystem::path& file) { return parse(MappedFile::open(file).text(), file); }

PreparedData PreparedData::open(const std::filesystem::path& folder, Verify verify) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / kManifestFile, ignored)) {
        throw UserError("data.not_prepared", folder.string(),
                        fmt::format("{} is not a prepared data folder: it has no {}. Name a folder that `data prepare` wrote.",
                                    folder.string(), kManifestFile));
    }
    Manifest manifest = Manifest::load(folder / kManifestFile);
    verify = affordable(folder, manifest, verify);
    TokenStream train = open_split(folder, manifest.train, manifest, verify);
    TokenStream heldout = open_split(folder, manifest.heldout, manifest, verify);
    for (const auto& [stream, split] : {std::pair(&train, &manifest.train), std::pair(&heldout, &manifest.heldout)}) {
        split->tokens = stream->tokens();
        split->documents = 0;
        for (const TokenFile& file : stream->files()) split->documents += file.documents();
    }
    return {folder, std::move(manifest), std::move(train), std::move(heldout)};
}

std::optional<Tokenizer> PreparedData::tokenizer() const {
    const std::filesystem::path file = folder / kTokenizerFile;
    std::error_code ignored;
    if (manifest.tokenizer_xxh3.empty() && !std::filesystem::exists(file, ignored)) return std::nullopt;
    if (!manifest.tokenizer_xxh3.empty())
        check_agreement(file, "the checksum", hex_checksum(MappedFile::open(file).text()), manifest.tokenizer_xxh3);
    return Tokenizer::load(file);
}

}  // namespace lockstep::data
