#include "data/prepared_data.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "data/file_io.h"

namespace lockstep::data {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "lockstep-tokens";

Json to_json(const SplitInfo& split) { return {{"tokens", split.tokens}, {"documents", split.documents}, {"xxh3", split.xxh3}}; }

SplitInfo split_info(const Json& json) { return {json.at("tokens"), json.at("documents"), json.at("xxh3")}; }

Json to_json(const SourceInfo& sources) {
    return {{"inputs", sources.inputs},
            {"files", sources.files},
            {"bytes", sources.bytes},
            {"skipped_binary", sources.skipped_binary},
            {"skipped_empty", sources.skipped_empty},
            {"skipped_hidden", sources.skipped_hidden},
            {"skipped_repeated", sources.skipped_repeated},
            {"skipped_other", sources.skipped_other},
            {"fingerprint", sources.fingerprint}};
}

SourceInfo source_info(const Json& json) {
    SourceInfo sources;
    json.at("inputs").get_to(sources.inputs);
    json.at("files").get_to(sources.files);
    json.at("bytes").get_to(sources.bytes);
    json.at("skipped_binary").get_to(sources.skipped_binary);
    json.at("skipped_empty").get_to(sources.skipped_empty);
    json.at("skipped_hidden").get_to(sources.skipped_hidden);
    json.at("skipped_repeated").get_to(sources.skipped_repeated);
    json.at("skipped_other").get_to(sources.skipped_other);
    json.at("fingerprint").get_to(sources.fingerprint);
    return sources;
}

void check_agreement(const std::filesystem::path& file, const std::string& what, const std::string& in_file,
                     const std::string& in_manifest) {
    if (in_file == in_manifest) return;
    throw UserError("data.files_disagree", file.string(),
                    fmt::format("{} is not the file that {} beside it describes: {} is {}, the manifest says {}. "
                                "Run `data prepare` again, or put back the files that belong together.",
                                file.string(), kManifestFile, what, in_file, in_manifest));
}

void check_split(const TokenFile& file, const SplitInfo& split, const Manifest& manifest) {
    const auto check = [&](const std::string& what, int64_t in_file, int64_t in_manifest) {
        check_agreement(file.path(), what, std::to_string(in_file), std::to_string(in_manifest));
    };
    check("the number of tokens", file.tokens(), split.tokens);
    check("the number of documents", file.documents(), split.documents);
    check("the vocabulary", file.vocab_size(), manifest.vocab_size);
    check("the separator", file.separator(), manifest.separator);
    check_agreement(file.path(), "the checksum", hex_checksum(file.header().checksum), split.xxh3);
}

}  // namespace

std::string Manifest::to_json() const {
    const Json json = {{"format", kFormat},
                       {"version", kManifestVersion},
                       {"vocab_size", vocab_size},
                       {"separator", separator},
                       {"token_type", token_type},
                       {"train", data::to_json(train)},
                       {"heldout", data::to_json(heldout)},
                       {"tokenizer_xxh3", tokenizer_xxh3},
                       {"unigram_entropy_nats", unigram_entropy_nats},
                       {"sources", data::to_json(sources)}};
    // File names need not be UTF-8; what is not is replaced.
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Manifest Manifest::load(const std::filesystem::path& file) {
    const MappedFile mapped = MappedFile::open(file);
    try {
        const Json json = Json::parse(mapped.text());
        if (json.at("format") != kFormat) throw std::runtime_error(fmt::format("its format is not '{}'", kFormat));
        if (json.at("version") != kManifestVersion) {
            throw UserError("data.manifest_version", file.string(),
                            fmt::format("{} has version {}, this program reads version {}. Run `data prepare` again.",
                                        file.string(), json.at("version").dump(), kManifestVersion));
        }
        Manifest manifest;
        json.at("vocab_size").get_to(manifest.vocab_size);
        json.at("separator").get_to(manifest.separator);
        json.at("token_type").get_to(manifest.token_type);
        manifest.train = split_info(json.at("train"));
        manifest.heldout = split_info(json.at("heldout"));
        json.at("tokenizer_xxh3").get_to(manifest.tokenizer_xxh3);
        json.at("unigram_entropy_nats").get_to(manifest.unigram_entropy_nats);
        manifest.sources = source_info(json.at("sources"));
        return manifest;
    } catch (const UserError&) {
        throw;
    } catch (const std::runtime_error& error) {
        throw UserError("data.manifest_malformed", file.string(),
                        fmt::format("{} is not a usable manifest: {}. Run `data prepare` again.", file.string(), error.what()));
    } catch (const Json::exception& error) {
        throw UserError("data.manifest_malformed", file.string(),
                        fmt::format("{} is not a usable manifest: {}. Run `data prepare` again.", file.string(), error.what()));
    }
}

PreparedData PreparedData::open(const std::filesystem::path& folder, Verify verify) {
    if (!std::filesystem::exists(folder / kManifestFile)) {
        throw UserError("data.not_prepared", folder.string(),
                        fmt::format("{} is not a prepared data folder: it has no {}. Name a folder that `data prepare` wrote.",
                                    folder.string(), kManifestFile));
    }
    Manifest manifest = Manifest::load(folder / kManifestFile);
    const std::filesystem::path tokenizer_file = folder / kTokenizerFile;
    check_agreement(tokenizer_file, "the checksum", hex_checksum(MappedFile::open(tokenizer_file).text()),
                    manifest.tokenizer_xxh3);
    PreparedData data{std::move(manifest), Tokenizer::load(tokenizer_file), TokenFile::open(folder / kTrainFile, verify),
                      TokenFile::open(folder / kHeldoutFile, verify)};
    check_split(data.train, data.manifest.train, data.manifest);
    check_split(data.heldout, data.manifest.heldout, data.manifest);
    return data;
}

}  // namespace lockstep::data
