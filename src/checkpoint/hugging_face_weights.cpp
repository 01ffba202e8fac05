#include "checkpoint/hugging_face_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <stdexcept>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "data/file_io.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kMostIndexBytes = 100'000'000;  // as a header of safetensors may have

bool is_there(const fs::path& path) {
    std::error_code cannot_be;  // a name that is too long, a folder that may not be entered
    return fs::exists(path, cannot_be);
}

// The shards that an index names, ascending. transformers reads them all and does not ask which tensor should be where.
std::set<std::string> read_index(const std::string& path) {
    const auto refuse = [&](const std::string& why) {
        throw UserError("convert.index", path,
                        fmt::format("{}: is not an index of shards ({}); fetch the folder again", path, why));
    };
    std::set<std::string> shards;
    const std::string text = read_whole(path, kMostIndexBytes);
    if (is_lfs_pointer(text)) throw UserError("convert.index", path, lfs_pointer_text(path));
    try {
        const auto index = parse_json<nlohmann::json>(text);
        for (const auto& [name, file] : index.at("weight_map").items()) shards.insert(file.get<std::string>());
    } catch (const JsonError& e) {
        refuse(e.what());
    } catch (const nlohmann::json::exception& e) {
        refuse(json_reason(e));
    }
    if (shards.empty()) refuse("it names none");
    return shards;
}

// A shard next to its index; a name that leads elsewhere is not opened.
std::string shard_beside(const std::string& folder, const std::string& index, const std::string& file) {
    if (!is_plain_file_name(file))
        throw UserError("convert.index", index,
                        fmt::format("{}: names the shard {}, which is no name of a file next to it; fetch the folder again",
                                    index, shortened(file)));
    std::string path = folder + "/" + file;
    if (!is_there(path))
        throw UserError("convert.index", path, fmt::format("{}: names the shard {}, which is not there", index, shortened(file)));
    return path;
}

// How the weights of a folder without safetensors lie there, and what to do.
std::string other_weights(const std::string& folder) {
    std::set<std::string> names;
    std::error_code ignored;
    for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) names.insert(e.path().filename().string());
    const auto first = [&](const char* pattern) -> std::string {
        const std::regex wanted(pattern);
        const auto found =
            std::find_if(names.begin(), names.end(), [&](const std::string& name) { return std::regex_match(name, wanted); });
        return found == names.end() ? "" : *found;
    };
    const std::string save = "load the model with transformers and write it with save_pretrained";
    if (const std::string f = first(R"(adapter_model\..*)"); !f.empty())
        return fmt::format(
            "{} holds an adapter and no whole model: merge it into its base (peft: merge_and_unload), then "
            "save_pretrained",
            f);
    if (const std::string f = first(R"(model-\d{5}-of-\d{5}\.safetensors)"); !f.empty())
        return fmt::format("{} is a shard without its index; fetch the folder again", f);
    if (const std::string f = first(R"(model\.(safetensors\.index\.)?[^.]+\.(safetensors|json))"); !f.empty())
        return fmt::format("{} is a variant, which is read only under the plain name: {} (variant=..)", f, save);
    if (const std::string f = first(R"(.*\.(bin|bin\.index\.json|pt|pth|ckpt))"); !f.empty())
        return fmt::format("{} is pickled, which is not read, as a pickle runs what it holds: {}", f, save);
    if (const std::string f = first(R"(.*\.(h5|msgpack|gguf|onnx|safetensors))"); !f.empty())
        return fmt::format("{} is of another format or name, which is not read: {}", f, save);
    return "weights in other formats must be saved again as safetensors (transformers: save_pretrained)";
}

int64_t bytes_of(const TensorSpec& t) { return elements_of(t) * dtype_bytes(t.dtype); }

std::optional<PieceSums> sums_of(const FileSums& sums, const std::string& file) {
    const auto found = sums.find(file);
    return found == sums.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

HuggingFaceWeights::HuggingFaceWeights(const std::string& folder, const FileSums& sums, const std::string& named) {
    if (!named.empty() && !is_plain_file_name(named))
        throw UserError("convert.index", "transformers_weights",
                        fmt::format("{}/{}: transformers_weights = {} is no name of a file next to it", folder, kConfigFile,
                                    shortened(named)));
    const std::string single_name = named.empty() ? kWeightsFile : named, single = folder + "/" + single_name,
                      index = folder + "/" + kIndexFile;
    const bool both = named.empty() && is_there(single) && is_there(index);
    if (both)
        note_ =
            fmt::format("{}: the weights are those of {}, as transformers reads it before {}", folder, kWeightsFile, kIndexFile);
    if (named.ends_with(".json")) {
        open_shards(folder, single, sums);
    } else if (!named.empty() || is_there(single)) {
        readers_.push_back(std::make_unique<SafetensorsReader>(single, sums_of(sums, single_name)));
    } else if (is_there(index)) {
        open_shards(folder, index, sums);
    } else {
        throw UserError("convert.no_weights", folder,
                        fmt::format("{}: has neither {} nor {}; {}", folder, kWeightsFile, kIndexFile, other_weights(folder)));
    }
}

void HuggingFaceWeights::open_shards(const std::string& folder, const std::string& index, const FileSums& sums) {
    for (const std::string& file : read_index(index)) {
        readers_.push_back(std::make_unique<SafetensorsReader>(shard_beside(folder, index, file), sums_of(sums, file)));
        for (const TensorEntry& t : readers_.back()->tensors()) {
            if (!shard_of_.emplace(t.spec.name, readers_.back().get()).second)
                throw UserError("convert.index", index,
                                fmt::format("{}: {} is in the shard {} and in one before it; fetch the folder again", index,
                                            t.spec.name, file));
        }
    }
}

const SafetensorsReader* HuggingFaceWeights::file_of(const std::string& name) const {
    if (shard_of_.empty()) return readers_[0]->contains(name) ? readers_[0].get() : nullptr;
    const auto found = shard_of_.find(name);
    return found == shard_of_.end() ? nullptr : found->second;
}

std::vector<std::string> HuggingFaceWeights::names() const {
    std::vector<std::string> out;
    for (const auto& reader : readers_) {
        for (const TensorEntry& t : reader->tensors()) out.push_back(t.spec.name);
    }
    return out;
}

const TensorSpec& HuggingFaceWeights::spec(const std::string& name) const { return file_of(name)->find(name).spec; }

void HuggingFaceWeights::read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const {
    file_of(name)->read(name, begin, count, data, cursor);
}

FileSums write_hugging_face_weights(const std::string& folder, const std::vector<TensorSpec>& tensors, int64_t shard_bytes,
                                    FillTensor fill, const Writers& writers, OwnElements own) {
    std::vector<std::vector<TensorSpec>> shards(1);
    int64_t in_shard = 0, total = 0;
    for (const TensorSpec& t : tensors) {
        if (!shards.back().empty() && in_shard + bytes_of(t) > shard_bytes) shards.emplace_back(), in_shard = 0;
        shards.back().push_back(t);
        in_shard += bytes_of(t), total += bytes_of(t);
    }
    Json weight_map = Json::object();
    FileSums sums;
    for (size_t i = 0; i < shards.size(); ++i) {
        const std::string file =
            shards.size() == 1 ? kWeightsFile : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
        for (const TensorSpec& t : shards[i]) weight_map[t.name] = file;
        sums[file] = write_safetensors(folder + "/" + file, SafetensorsLayout(shards[i], {{"format", "pt"}}), fill, writers, own);
    }
    if (shards.size() == 1) return sums;
    writers.together([&] {
        if (!writers.is_first()) return;
        write_whole_file(folder + "/" + kIndexFile,
                         json_text(Json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}, 2) + "\n");
    });
    return sums;
}

}  // namespace lockstep::checkpoint
