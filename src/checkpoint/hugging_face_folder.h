// Models as folders of Hugging Face transformers: read as the parameters of a model here, and written from them. Tensors go
// through a stretch at a time, so a model may be larger than memory.
// Which architectures are known: models/hugging_face_config.h.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hugging_face_weights.h"
#include "checkpoint/serving_files.h"
#include "data/tokenizer.h"
#include "models/hugging_face_config.h"

namespace lockstep::checkpoint {

// A config.json. UserError convert.config where it is not JSON.
nlohmann::json read_config(const std::string& path);

// The model of a config.json; there may be no weights next to it. Where they are there and can be read, it is as they have it
// (see HuggingFaceFolder). UserError convert.*.
models::HuggingFaceModel model_of_config(const std::string& path);

// A folder's weights under the names and in the shapes that parameters have here.
class HuggingFaceFolder : public TensorSource {
public:
    // The weights that transformers would load, and those of a wrapped model (`module.`). A config that ties the head to the
    // embedding is not believed where the files hold a head of other values: the model is then one with a head of its own.
    // Files that `sums` knows are checked as they are read. UserError convert.* where the config is not known here, or where a
    // tensor is too few, too many or of another shape.
    explicit HuggingFaceFolder(const std::string& folder, const FileSums& sums = {});
    static bool is_at(const std::string& folder);  // there is a config.json

    const models::HuggingFaceModel& model() const { return model_; }
    std::vector<TensorSpec> parameters() const;                       // in the order of the blocks
    const std::vector<std::string>& notes() const { return notes_; }  // what a person should know of it

    bool contains(const std::string& name) const override { return places_.contains(name); }
    const TensorSpec& spec(const std::string& name) const override { return places_.find(name)->second.spec; }
    void read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const override;

private:
    struct Source {
        TensorSpec spec;
        const models::StoredTensor* tensor;
        int64_t part;
    };
    HuggingFaceFolder(const std::string& folder, const nlohmann::json& config, const FileSums& sums);
    bool has_own_head() const;
    std::string name_there(const std::string& name) const;
    [[noreturn]] void refuse_missing(const std::string& folder, const std::string& name) const;
    void check(const std::string& folder) const;

    models::HuggingFaceModel model_;
    HuggingFaceWeights weights_;
    std::vector<models::StoredTensor> tensors_;
    std::map<std::string, Source> places_;
    std::string wrapper_;                      // before all names in the files: "module."
    std::string base_;                         // "model.", where a base model was saved, whose names lack it
    std::string embedding_, embedding_there_;  // the embedding's name here and in the files, where a tied one is the head
    std::vector<std::string> notes_;
};

// What transformers is to know of a model apart from its weights. Without a tokenizer the folder has none.
struct HuggingFaceForm {
    models::HuggingFaceModel model;
    std::optional<data::Tokenizer> tokenizer;
    int64_t shard_bytes = 5'000'000'000;
    std::string unread_tokenizer{};  // without `tokenizer`: a tokenizer.json that cannot be read here, written as it is
    ServingFiles serving{};          // of the folder that the model came from
};

// Writes a folder that is there and empty, with `parameters` in the type `dtype` of safetensors. Returns the checksums of its
// weights. UserError convert.no_architecture, convert.shape where the parameters are not those of form.model.
FileSums write_hugging_face(const std::string& folder, const HuggingFaceForm& form, const std::string& dtype,
                            const TensorSource& parameters, const Writers& writers = {});

}  // namespace lockstep::checkpoint
