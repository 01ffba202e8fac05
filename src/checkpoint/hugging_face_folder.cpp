#include "checkpoint/hugging_face_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/elements.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "data/prepared_data.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using models::StoredTensor;
using Json = nlohmann::ordered_json;

const std::string kBare = "transformer.";

models::HuggingFaceModel read_model(const std::string& folder) {
    const std::string path = folder + "/" + kConfigFile;
    return models::from_hugging_face(read_config(path), path);
}

void write_text(const fs::path& path, const std::string& text) {
    AtomicFile file(path);
    file.append(text);
    file.finish();
    file.publish();
}

// Parts stand side by side in each row of a stored tensor. Elements [begin, begin + count) of part number `part`, as stretches
// f(element of the stored tensor, element of the part, n).
template <class F>
void stretches_of_part(const StoredTensor& t, int64_t part, int64_t begin, int64_t count, const F& f) {
    const int64_t row = t.shape.back(), width = row / static_cast<int64_t>(t.parts.size());
    if (t.parts.size() == 1) return f(begin, begin, count);
    for (int64_t at = begin; at < begin + count;) {
        const int64_t n = std::min(width - at % width, begin + count - at);
        f(at / width * row + part * width + at % width, at, n);
        at += n;
    }
}

// The same of the stored tensor: f(part number, element of the part, element of the stored tensor, n).
template <class F>
void stretches_of_whole(const StoredTensor& t, int64_t begin, int64_t count, const F& f) {
    const int64_t row = t.shape.back(), width = row / static_cast<int64_t>(t.parts.size());
    if (t.parts.size() == 1) return f(0, begin, begin, count);
    for (int64_t at = begin; at < begin + count;) {
        const int64_t column = at % row, n = std::min(width - column % width, begin + count - at);
        f(column / width, at / row * width + column % width, at, n);
        at += n;
    }
}

}  // namespace

nlohmann::json read_config(const std::string& path) {
    try {
        return parse_json<nlohmann::json>(read_whole(path));
    } catch (const JsonError& e) {
        throw UserError("convert.config", path, fmt::format("{}: is not JSON: {}", path, e.what()));
    }
}

bool HuggingFaceFolder::is_at(const std::string& folder) { return fs::exists(fs::path(folder) / kConfigFile); }

HuggingFaceFolder::HuggingFaceFolder(const std::string& folder, const FileSums& sums)
    : model_(read_model(folder)), weights_(folder, sums), tensors_(models::stored_tensors(model_)) {
    bare_ = tensors_[0].name.starts_with(kBare) && weights_.contains(tensors_[0].name.substr(kBare.size()));
    check(folder);
    for (const StoredTensor& t : tensors_) {
        const std::string& dtype = weights_.spec(name_there(t.name)).dtype;
        for (size_t p = 0; p < t.parts.size(); ++p)
            places_[t.parts[p].name] = {{t.parts[p].name, dtype, t.parts[p].shape}, &t, static_cast<int64_t>(p)};
    }
}

std::string HuggingFaceFolder::name_there(const std::string& name) const {
    return bare_ && name.starts_with(kBare) ? name.substr(kBare.size()) : name;
}

// Every tensor that the model has is there as a weight of the right shape, and nothing else is.
void HuggingFaceFolder::check(const std::string& folder) const {
    const bool tied = std::get<int64_t>(model_.shape.at("tie_embeddings")) != 0;
    std::vector<std::string> known;
    for (const StoredTensor& t : tensors_) {
        const std::string name = name_there(t.name);
        if (!weights_.contains(name))
            throw UserError("convert.missing_tensor", folder,
                            fmt::format("{}: has no tensor {}, which the model of its {} needs", folder, name, kConfigFile));
        const TensorSpec& spec = weights_.spec(name);
        if (spec.shape != t.shape || !is_float(spec.dtype))
            throw UserError("convert.shape", folder,
                            fmt::format("{}: {} is {} [{}], but {} makes it [{}] of floats", folder, name, spec.dtype,
                                        fmt::join(spec.shape, ", "), kConfigFile, fmt::join(t.shape, ", ")));
        known.push_back(name);
    }
    std::sort(known.begin(), known.end());
    for (const std::string& name : weights_.names()) {
        if (std::binary_search(known.begin(), known.end(), name) || models::is_no_parameter(name, tied)) continue;
        throw UserError(
            "convert.unknown_tensor", folder,
            fmt::format("{}: holds {}, which the model of its {} does not have: without it this would be another model", folder,
                        name, kConfigFile));
    }
}

std::vector<TensorSpec> HuggingFaceFolder::parameters() const {
    std::vector<TensorSpec> out;
    for (const StoredTensor& t : tensors_) {
        for (const StoredTensor::Part& p : t.parts) out.push_back(spec(p.name));
    }
    return out;
}

void HuggingFaceFolder::read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const {
    const Source& place = places_.find(name)->second;
    const std::string there = name_there(place.tensor->name);
    const int64_t bytes = dtype_bytes(place.spec.dtype);
    stretches_of_part(*place.tensor, place.part, begin, count, [&](int64_t stored, int64_t here, int64_t n) {
        weights_.read(there, stored, n, static_cast<char*>(data) + (here - begin) * bytes, cursor);
    });
}

namespace {

void check_parameters(const TensorSource& parameters, const std::vector<StoredTensor>& tensors) {
    for (const StoredTensor& t : tensors) {
        for (const StoredTensor::Part& p : t.parts) {
            const TensorSpec spec = parameters.contains(p.name) ? parameters.spec(p.name) : TensorSpec{p.name, "absent", {}};
            if (spec.shape == p.shape && is_float(spec.dtype)) continue;
            throw UserError("convert.shape", p.name,
                            fmt::format("{} is {} [{}], but the recipe makes it [{}]", p.name, spec.dtype,
                                        fmt::join(spec.shape, ", "), fmt::join(p.shape, ", ")));
        }
    }
}

// The tokenizer, and what transformers wants to know of it.
void write_tokenizer(const std::string& folder, const HuggingFaceForm& form, Json& config) {
    if (!form.unread_tokenizer.empty()) write_text(fs::path(folder) / data::kTokenizerFile, form.unread_tokenizer);
    if (!form.tokenizer) return;
    const data::Tokenizer& tokenizer = *form.tokenizer;
    write_text(fs::path(folder) / data::kTokenizerFile, tokenizer.to_json());
    const std::string& separator = tokenizer.parts().tokens[static_cast<size_t>(tokenizer.separator())];
    const Json about = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"eos_token", separator},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", form.model.context}};
    write_text(fs::path(folder) / "tokenizer_config.json", about.dump(2) + "\n");
    config["bos_token_id"] = config["eos_token_id"] = tokenizer.separator();  // a document begins after one
}

}  // namespace

FileSums write_hugging_face(const std::string& folder, const HuggingFaceForm& form, const std::string& dtype,
                            const TensorSource& parameters, const Writers& writers) {
    Json config = models::to_hugging_face(form.model);
    const std::vector<StoredTensor> tensors = models::stored_tensors(form.model);
    check_parameters(parameters, tensors);
    std::map<std::string, const StoredTensor*> by_name;
    std::vector<TensorSpec> specs;
    for (const StoredTensor& t : tensors) {
        by_name[t.name] = &t;
        specs.push_back({t.name, dtype, t.shape});
    }
    const int64_t bytes = dtype_bytes(dtype);
    TensorSource::Cursor cursor;
    const FileSums sums = write_hugging_face_weights(
        folder, specs, form.shard_bytes,
        [&](const TensorEntry& e, int64_t begin, int64_t count, char* to) {
            const StoredTensor& t = *by_name.at(e.spec.name);
            stretches_of_whole(t, begin, count, [&](int64_t part, int64_t there, int64_t here, int64_t n) {
                parameters.read_as(t.parts[static_cast<size_t>(part)].name, there, n, dtype, to + (here - begin) * bytes, cursor);
            });
        },
        writers,
        [&](const TensorEntry& e, int64_t begin, int64_t count, OfStretch f) {
            const StoredTensor& t = *by_name.at(e.spec.name);
            stretches_of_whole(t, begin, count, [&](int64_t part, int64_t there, int64_t here, int64_t n) {
                parameters.for_each_here(t.parts[static_cast<size_t>(part)].name, there, n,
                                         [&](int64_t at, int64_t some) { f(here + at - there, some); });
            });
        });
    config["torch_dtype"] = torch_name_of(dtype);
    writers.together([&] {
        if (!writers.is_first()) return;
        write_tokenizer(folder, form, config);
        write_text(fs::path(folder) / kConfigFile, config.dump(2) + "\n");
    });
    return sums;
}

}  // namespace lockstep::checkpoint
