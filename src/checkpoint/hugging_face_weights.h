// A folder of Hugging Face transformers: config.json and the weights as model.safetensors, or as shards with
// model.safetensors.index.json. Which tensors a model has is not known here.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

inline const std::string kConfigFile = "config.json", kWeightsFile = "model.safetensors",
                         kIndexFile = "model.safetensors.index.json";

class HuggingFaceWeights : public TensorSource {
public:
    // Reads the files that transformers would read: the one that its config names (transformers_weights; empty: none), else
    // model.safetensors, else all shards that the index names. Files that `sums` knows are checked as they are read. UserError
    // convert.no_weights, convert.index, and the reader's.
    explicit HuggingFaceWeights(const std::string& folder, const FileSums& sums = {}, const std::string& named = "");

    bool contains(const std::string& name) const override { return file_of(name) != nullptr; }
    std::vector<std::string> names() const;
    const TensorSpec& spec(const std::string& name) const override;
    void read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const override;

    // What a person should know of this choice; empty: nothing.
    const std::string& note() const { return note_; }

private:
    void open_shards(const std::string& folder, const std::string& index, const FileSums& sums);
    const SafetensorsReader* file_of(const std::string& name) const;

    std::vector<std::unique_ptr<SafetensorsReader>> readers_;
    std::unordered_map<std::string_view, const SafetensorsReader*> shard_of_;  // where there are several; views of the readers'
    std::string note_;
};

// Writes tensors as one file, or as shards of at most `shard_bytes` (a single tensor may be larger) with their index. `tensor`
// in fill's calls is that of the file at hand; each element is asked for once, in order. Returns the checksums of the weights'
// files.
FileSums write_hugging_face_weights(const std::string& folder, const std::vector<TensorSpec>& tensors, int64_t shard_bytes,
                                    FillTensor fill, const Writers& writers = {}, OwnElements own = kOwnAll);

}  // namespace lockstep::checkpoint
