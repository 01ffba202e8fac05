#include "checkpoint/hugging_face_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/json.h"
#include "data/file_io.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Tensor -> file.
std::map<std::string, std::string> read_index(const std::string& path) {
    const auto refuse = [&](const std::string& why) {
        throw UserError("convert.index", path,
                        fmt::format("{}: is not an index of shards ({}); fetch the folder again", path, why));
    };
    std::map<std::string, std::string> out;
    try {
        const auto index = parse_json<Json>(read_whole(path));
        for (const auto& [name, file] : index.at("weight_map").items()) out[name] = file.get<std::string>();
    } catch (const JsonError& e) {
        refuse(e.what());
    } catch (const Json::exception& e) {
        refuse(json_reason(e));
    }
    return out;
}

int64_t bytes_of(const TensorSpec& t) { return elements_of(t) * dtype_bytes(t.dtype); }

std::optional<PieceSums> sums_of(const FileSums& sums, const std::string& file) {
    const auto found = sums.find(file);
    return found == sums.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

HuggingFaceWeights::HuggingFaceWeights(const std::string& folder, const FileSums& sums) {
    const std::string index = folder + "/" + kIndexFile, single = folder + "/" + kWeightsFile;
    if (!fs::exists(index)) {
        if (!fs::exists(single))
            throw UserError("convert.no_weights", folder,
                            fmt::format("{}: has neither {} nor {}; weights in other formats must be saved again as safetensors "
                                        "(transformers: save_pretrained)",
                                        folder, kWeightsFile, kIndexFile));
        readers_.push_back(std::make_unique<SafetensorsReader>(single, sums_of(sums, kWeightsFile)));
        for (const TensorEntry& t : readers_[0]->tensors()) file_of_[t.spec.name] = readers_[0].get();
        return;
    }
    std::map<std::string, const SafetensorsReader*> open;
    for (const auto& [name, file] : read_index(index)) {
        const std::string path = folder + "/" + file;
        if (!open.contains(file)) {
            if (!fs::exists(path))
                throw UserError("convert.index", path, fmt::format("{}: names the shard {}, which is not there", index, file));
            readers_.push_back(std::make_unique<SafetensorsReader>(path, sums_of(sums, file)));
            open[file] = readers_.back().get();
        }
        if (!open[file]->contains(name))
            throw UserError("convert.index", path,
                            fmt::format("{}: says that {} stands in {}, but it does not", index, name, file));
        file_of_[name] = open[file];
    }
}

std::vector<std::string> HuggingFaceWeights::names() const {
    std::vector<std::string> out;
    for (const auto& [name, reader] : file_of_) out.push_back(name);
    return out;
}

const TensorSpec& HuggingFaceWeights::spec(const std::string& name) const { return reader_of(name).find(name).spec; }

void HuggingFaceWeights::read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const {
    reader_of(name).read(name, begin, count, data, cursor);
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
        AtomicFile index(folder + "/" + kIndexFile);
        index.append(Json{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}}.dump(2) + "\n");
        index.finish();
        index.publish();
    });
    return sums;
}

}  // namespace lockstep::checkpoint
