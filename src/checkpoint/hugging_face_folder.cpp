#include "checkpoint/hugging_face_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/elements.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_file.h"
#include "data/prepared_data.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using models::StoredTensor;
using Json = nlohmann::ordered_json;

constexpr int64_t kMostConfigBytes = int64_t{16} << 20;

models::HuggingFaceModel read_model(const std::string& folder, const nlohmann::json& config) {
    return models::from_hugging_face(config, folder + "/" + kConfigFile);
}

// The file of weights that a config names in place of those with the usual names.
std::string named_weights(const nlohmann::json& config) {
    const auto named = config.find("transformers_weights");
    return named != config.end() && named->is_string() ? named->get<std::string>() : "";
}

const std::string kHead = "lm_head.weight", kAdapterFile = "adapter_config.json";

// What torch.compile and DistributedDataParallel put before all names of a model whose wrapper was saved with it.
std::string wrapper_of(const std::vector<std::string>& names) {
    std::string wrapper;
    const auto all_begin_with = [&](const std::string& prefix) {
        return !names.empty() &&
               std::all_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
    };
    for (bool found = true; found;) {
        found = false;
        for (const char* part : {"_orig_mod.", "module."}) {
            if (!all_begin_with(wrapper + part)) continue;
            wrapper += part;
            found = true;
        }
    }
    return wrapper;
}

// The prefix under which the files have this name; empty: none has it.
std::string prefix_of(const std::string& name, const std::vector<std::string>& names) {
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& n) { return n.ends_with("." + name); });
    return found == names.end() ? "" : found->substr(0, found->size() - name.size());
}

// Parts are side by side in each row of a stored tensor. Elements [begin, begin + count) of part number `part`, as stretches
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
    const std::string text = read_whole(path, kMostConfigBytes);
    if (is_lfs_pointer(text)) throw UserError("convert.config", path, lfs_pointer_text(path));
    if (auto config = json_or_discarded<nlohmann::json>(text); !config.is_discarded()) return config;
    try {  // a key that counts is then of another type than it must have
        return parse_json<nlohmann::json>(without_nonfinite(text, R"("no finite number")"));
    } catch (const JsonError& e) {
        throw UserError("convert.config", path, fmt::format("{}: is not JSON: {}", path, e.what()));
    }
}

models::HuggingFaceModel model_of_config(const std::string& path) {
    const models::HuggingFaceModel of_config = models::from_hugging_face(read_config(path), path);
    const fs::path file = path;
    if (std::get<int64_t>(of_config.shape.at("tie_embeddings")) == 0 || file.filename() != kConfigFile) return of_config;
    try {
        return HuggingFaceFolder(file.has_parent_path() ? file.parent_path().string() : ".").model();
    } catch (const UserError&) {  // only a config, or weights that whoever loads them will refuse
        return of_config;
    }
}

bool HuggingFaceFolder::is_at(const std::string& folder) {
    std::error_code cannot_be;
    return fs::exists(fs::path(folder) / kConfigFile, cannot_be);
}

HuggingFaceFolder::HuggingFaceFolder(const std::string& folder, const FileSums& sums)
    : HuggingFaceFolder(folder, read_config(folder + "/" + kConfigFile), sums) {}

HuggingFaceFolder::HuggingFaceFolder(const std::string& folder, const nlohmann::json& config, const FileSums& sums)
    : model_(read_model(folder, config)),
      weights_(folder, sums, named_weights(config)),
      tensors_(models::stored_tensors(model_)) {
    if (fs::exists(fs::path(folder) / kAdapterFile))
        throw UserError("convert.adapter", folder,
                        fmt::format("{}: holds {}, an adapter that transformers adds to the weights: merge it into them (peft: "
                                    "merge_and_unload), or remove it to read only the weights",
                                    folder, kAdapterFile));
    if (!weights_.note().empty()) notes_.push_back(weights_.note());
    embedding_ = tensors_[0].name;
    wrapper_ = wrapper_of(weights_.names());
    if (!wrapper_.empty())
        notes_.push_back(fmt::format("{}: the names of all weights begin with {}, as a wrapped model has them: read without it",
                                     folder, wrapper_));
    const std::string base = embedding_.substr(0, embedding_.find('.') + 1);
    if (weights_.contains(wrapper_ + embedding_.substr(base.size()))) base_ = base;
    int64_t& tied = std::get<int64_t>(model_.shape.at("tie_embeddings"));
    if (tied != 0 && weights_.contains(wrapper_ + kHead)) {
        if (!weights_.contains(name_there(embedding_))) {
            embedding_there_ = wrapper_ + kHead;
        } else if (has_own_head()) {
            notes_.push_back(fmt::format(
                "{}: tie_word_embeddings is true in {}, but {} differs from {}: both are kept, as transformers does, so "
                "model.tie_embeddings = 0",
                folder, kConfigFile, kHead, name_there(embedding_)));
            tied = 0;
            tensors_ = models::stored_tensors(model_);
        }
    }
    check(folder);
    for (const StoredTensor& t : tensors_) {
        const std::string& dtype = weights_.spec(name_there(t.name)).dtype;
        for (size_t p = 0; p < t.parts.size(); ++p)
            places_[t.parts[p].name] = {{t.parts[p].name, dtype, t.parts[p].shape}, &t, static_cast<int64_t>(p)};
    }
}

std::string HuggingFaceFolder::name_there(const std::string& name) const {
    if (!embedding_there_.empty() && name == embedding_) return embedding_there_;
    return wrapper_ + (name.starts_with(base_) ? name.substr(base_.size()) : name);
}

// Do the files hold a head of other values than the embedding's?
bool HuggingFaceFolder::has_own_head() const {
    const std::string embedding = name_there(embedding_);
    const TensorSpec &a = weights_.spec(embedding), &b = weights_.spec(wrapper_ + kHead);
    if (a.shape != b.shape || !is_float(a.dtype) || !is_float(b.dtype)) return true;
    constexpr int64_t kElements = 1 << 18;
    std::vector<float> ours(kElements), theirs(kElements);
    TensorSource::Cursor of_ours, of_theirs;
    const int64_t elements = elements_of(a);
    for (int64_t begin = 0; begin < elements; begin += kElements) {
        const int64_t n = std::min(kElements, elements - begin);
        weights_.read_as(embedding, begin, n, "F32", ours.data(), of_ours);
        weights_.read_as(wrapper_ + kHead, begin, n, "F32", theirs.data(), of_theirs);
        if (!std::equal(ours.begin(), ours.begin() + n, theirs.begin())) return true;
    }
    return false;
}

void HuggingFaceFolder::refuse_missing(const std::string& folder, const std::string& name) const {
    std::string more;
    if (const std::string prefix = prefix_of(name, weights_.names()); !prefix.empty())
        more = fmt::format(". Its names begin with {}: save only the model, without what it was wrapped in", prefix);
    if (name == wrapper_ + kHead)
        more = fmt::format(
            ", as tie_word_embeddings is not true there. These are the weights of a base model, such as one for embeddings: "
            "without a head it predicts no token. Save the whole model ({}), or set tie_word_embeddings to true if its head "
            "is the embedding",
            models::to_hugging_face(model_).at("architectures").at(0).get<std::string>());
    throw UserError("convert.missing_tensor", folder,
                    fmt::format("{}: has no tensor {}, which the model of its {} needs{}", folder, name, kConfigFile, more));
}

// Every tensor that the model has is there as a weight of the right shape, and nothing else is.
void HuggingFaceFolder::check(const std::string& folder) const {
    const bool tied = std::get<int64_t>(model_.shape.at("tie_embeddings")) != 0;
    std::vector<std::string> known;
    for (const StoredTensor& t : tensors_) {
        const std::string name = name_there(t.name);
        if (!weights_.contains(name)) refuse_missing(folder, name);
        const TensorSpec& spec = weights_.spec(name);
        if (spec.shape != t.shape || !is_float(spec.dtype))
            throw UserError("convert.shape", folder,
                            fmt::format("{}: {} is {} [{}], but {} makes it [{}] of floats", folder, name, spec.dtype,
                                        fmt::join(spec.shape, ", "), kConfigFile, fmt::join(t.shape, ", ")));
        known.push_back(name);
    }
    std::sort(known.begin(), known.end());
    for (const std::string& name : weights_.names()) {
        const bool is_known = std::binary_search(known.begin(), known.end(), name);
        if (is_known || models::is_no_parameter(name.substr(wrapper_.size()), tied)) continue;
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

struct ConfigText {
    std::string text;
    std::vector<int32_t> end_tokens;
};

// What the model came with stays, ids of tokens above all;
// without it the tokenizer's separator both begins and ends a document.
ConfigText config_of(const HuggingFaceForm& form, const std::string& dtype) {
    const auto finished = [&](auto config) {
        config["torch_dtype"] = torch_name_of(dtype);
        if (config.contains("dtype")) config["dtype"] = config["torch_dtype"];
        return ConfigText{json_text(config, 2) + "\n", end_tokens(nlohmann::json(config))};
    };
    nlohmann::json came = json_of(form.serving, kSourceConfigFile);
    if (came.is_object()) return finished(models::to_hugging_face(form.model, std::move(came)));
    Json config = models::to_hugging_face(form.model);
    if (form.tokenizer) config["bos_token_id"] = config["eos_token_id"] = form.tokenizer->separator();
    return finished(std::move(config));
}

// The text of the token that ends one, as tokenizer_config.json names it: the config's, else the tokenizer's own.
const std::string& end_of_text(const data::Tokenizer& tokenizer, const std::vector<int32_t>& ends) {
    const std::vector<std::string>& tokens = tokenizer.parts().tokens;
    for (const int32_t id : ends) {
        if (id < tokenizer.vocab_size() && !tokens[static_cast<size_t>(id)].empty()) return tokens[static_cast<size_t>(id)];
    }
    return tokens[static_cast<size_t>(tokenizer.separator())];
}

// The tokenizer, and what transformers wants to know of it.
void write_tokenizer(const std::string& folder, const HuggingFaceForm& form, const std::vector<int32_t>& ends) {
    if (!form.unread_tokenizer.empty()) write_whole_file(fs::path(folder) / data::kTokenizerFile, form.unread_tokenizer);
    if (!form.tokenizer) return;
    write_whole_file(fs::path(folder) / data::kTokenizerFile, form.tokenizer->to_json());
    if (form.serving.contains("tokenizer_config.json")) return;
    const Json about = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"eos_token", end_of_text(*form.tokenizer, ends)},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", form.model.context}};
    write_whole_file(fs::path(folder) / "tokenizer_config.json", json_text(about, 2) + "\n");
}

}  // namespace

FileSums write_hugging_face(const std::string& folder, const HuggingFaceForm& form, const std::string& dtype,
                            const TensorSource& parameters, const Writers& writers) {
    const ConfigText config = config_of(form, dtype);
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
    writers.together([&] {
        if (!writers.is_first()) return;
        write_serving_files(folder, form.serving, ServingFolder::Transformers);
        write_tokenizer(folder, form, config.end_tokens);
        write_whole_file(fs::path(folder) / kConfigFile, config.text);
    });
    return sums;
}

}  // namespace lockstep::checkpoint
