// Both directions are one copy, some elements at a time, so memory does not grow with the model. The folder that is made has its
// name only when everything in it is on the disk.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "checkpoint/elements.h"
#include "checkpoint/hugging_face_folder.h"
#include "cli/stored.h"
#include "data/prepared_data.h"
#include "models/hugging_face.h"
#include "telemetry/console.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorSpec;
using models::HuggingFaceModel;
using models::StoredTensor;
using Json = nlohmann::ordered_json;

// As safetensors has it.
std::string file_dtype(const std::string& name) {
    if (name == "float32") return "F32";
    if (name == "bfloat16") return "BF16";
    if (name == "float16") return "F16";
    throw UserError("convert.dtype", "--dtype", fmt::format("--dtype {}: must be float32, bfloat16 or float16", name));
}

models::Model built(const HuggingFaceModel& m) {
    for (const models::ModelSpec& spec : models::all_models()) {
        if (spec.name == m.name) return spec.build(m.shape, {1, 1, 1});
    }
    throw InternalError("convert: no model is called " + m.name);
}

void refuse_existing(const std::string& path) {
    if (fs::exists(path))
        throw UserError("convert.exists", path, fmt::format("{}: is there already; choose another folder, or remove it", path));
}

std::string read_text(const fs::path& path) {
    std::stringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
}

void write_text(const fs::path& path, const std::string& text) {
    AtomicFile file(path);
    file.append(text);
    file.finish();
    file.publish();
}

// `count` elements that read(first, n, to) supplies from `begin` on, in another type.
class Copier {
public:
    using Read = std::function<void(int64_t first, int64_t n, void* to)>;
    void operator()(const Read& read, const std::string& from, int64_t begin, int64_t count, const std::string& to_dtype,
                    char* to) {
        if (from == to_dtype) return read(begin, count, to);
        buffer_.resize(kElements * 8);
        for (int64_t done = 0; done < count; done += kElements) {
            const int64_t n = std::min<int64_t>(kElements, count - done);
            read(begin + done, n, buffer_.data());
            checkpoint::convert(from, buffer_.data(), to_dtype, to + done * checkpoint::dtype_bytes(to_dtype), n);
        }
    }

private:
    static constexpr int64_t kElements = 1 << 18;
    std::vector<char> buffer_;
};

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

struct Outcome {
    std::string direction, out;
    HuggingFaceModel model;
    int64_t tensors = 0, parameters = 0;
};

// ---- from Hugging Face

// Every tensor that the model has is there as a weight of the right shape, and nothing else is.
void check_weights(const checkpoint::HuggingFaceWeights& weights, const std::string& folder,
                   const std::vector<StoredTensor>& tensors, const std::function<std::string(const std::string&)>& name_there,
                   bool tied) {
    std::vector<std::string> known;
    for (const StoredTensor& t : tensors) {
        const std::string name = name_there(t.name);
        if (!weights.contains(name))
            throw UserError(
                "convert.missing_tensor", folder,
                fmt::format("{}: has no tensor {}, which the model of its {} needs", folder, name, checkpoint::kConfigFile));
        const TensorSpec& spec = weights.spec(name);
        if (spec.shape != t.shape || !checkpoint::is_float(spec.dtype))
            throw UserError("convert.shape", folder,
                            fmt::format("{}: {} is {} [{}], but {} makes it [{}] of floats", folder, name, spec.dtype,
                                        fmt::join(spec.shape, ", "), checkpoint::kConfigFile, fmt::join(t.shape, ", ")));
        known.push_back(name);
    }
    std::sort(known.begin(), known.end());
    for (const std::string& name : weights.names()) {
        if (std::binary_search(known.begin(), known.end(), name) || models::is_no_parameter(name, tied)) continue;
        throw UserError(
            "convert.unknown_tensor", folder,
            fmt::format("{}: holds {}, which the model of its {} does not have: without it this would be another model", folder,
                        name, checkpoint::kConfigFile));
    }
}

compile::Recipe recipe_of(const HuggingFaceModel& m) {
    compile::Recipe recipe;
    recipe.set("model.name", m.name);
    for (const auto& [key, value] : m.shape) {
        if (const auto* i = std::get_if<int64_t>(&value)) recipe.set("model." + key, std::to_string(*i));
        if (const auto* d = std::get_if<double>(&value)) recipe.set("model." + key, fmt::format("{}", *d));
    }
    recipe.set("training.seq_len", std::to_string(m.context));
    return recipe;
}

nlohmann::json read_config(const std::string& path) {
    try {
        return nlohmann::json::parse(read_text(path));
    } catch (const nlohmann::json::exception& e) {
        throw UserError("convert.config", path, fmt::format("{}: is not JSON: {}", path, e.what()));
    }
}

Outcome import_from(const ConvertArgs& args) {
    const std::string config = args.in + "/" + checkpoint::kConfigFile, dtype = file_dtype(args.dtype);
    const HuggingFaceModel model = models::from_hugging_face(read_config(config), config);
    const std::vector<StoredTensor> tensors = models::stored_tensors(built(model));
    const checkpoint::HuggingFaceWeights weights(args.in);
    // GPT-2's own files were saved without the head's model around them.
    const std::string prefix = "transformer.";
    const bool bare = tensors[0].name.starts_with(prefix) && weights.contains(tensors[0].name.substr(prefix.size()));
    const auto name_there = [&](const std::string& name) {
        return bare && name.starts_with(prefix) ? name.substr(prefix.size()) : name;
    };
    check_weights(weights, args.in, tensors, name_there, std::get<int64_t>(model.shape.at("tie_embeddings")) != 0);

    struct Place {
        const StoredTensor* tensor;
        int64_t part;
    };
    std::map<std::string, Place> place_of;  // of a parameter here
    std::vector<TensorSpec> specs;
    Outcome outcome{"import", args.out, model, 0, 0};
    for (const StoredTensor& t : tensors) {
        for (size_t p = 0; p < t.parts.size(); ++p) {
            specs.push_back({t.parts[p].name, dtype, t.parts[p].shape});
            place_of[t.parts[p].name] = {&t, static_cast<int64_t>(p)};
        }
    }
    refuse_existing(checkpoint::folder_of(args.out, 0));
    checkpoint::NewCheckpoint folder(args.out, 0);
    Copier copy;
    const checkpoint::SafetensorsLayout layout(specs, {{"format", "pt"}});
    folder.write(checkpoint::kModelFile, layout, [&](const checkpoint::TensorEntry& e, int64_t begin, int64_t count, char* to) {
        const Place& place = place_of.at(e.spec.name);
        const std::string name = name_there(place.tensor->name);
        stretches_of_part(*place.tensor, place.part, begin, count, [&](int64_t there, int64_t here, int64_t n) {
            copy([&](int64_t first, int64_t k, void* data) { weights.read(name, first, k, data); }, weights.spec(name).dtype,
                 there, n, dtype, to + (here - begin) * checkpoint::dtype_bytes(dtype));
        });
    });
    if (const fs::path tokenizer = fs::path(args.in) / data::kTokenizerFile; fs::exists(tokenizer))
        write_text(fs::path(folder.temporary()) / data::kTokenizerFile, read_text(tokenizer));
    for (const checkpoint::TensorEntry& e : layout.tensors()) outcome.parameters += e.elements;
    outcome.tensors = static_cast<int64_t>(specs.size());
    checkpoint::Manifest manifest;
    manifest.dtype = dtype;
    manifest.recipe = recipe_of(model).toml();
    outcome.out = folder.publish(manifest);
    return outcome;
}

// ---- to Hugging Face

// The tokenizer, and what transformers wants to know of it.
void write_tokenizer(const Stored& stored, const std::string& folder, Json& config, int64_t context) {
    const std::optional<data::Tokenizer> tokenizer = find_tokenizer(stored, "");
    if (!tokenizer) return telemetry::warn("the tokenizer is not known, so the folder has none");
    write_text(fs::path(folder) / data::kTokenizerFile, tokenizer->to_json());
    const std::string& separator = tokenizer->parts().tokens[static_cast<size_t>(tokenizer->separator())];
    const Json about = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"eos_token", separator},
                        {"clean_up_tokenization_spaces", false},
                        {"model_max_length", context}};
    write_text(fs::path(folder) / "tokenizer_config.json", about.dump(2) + "\n");
    config["bos_token_id"] = config["eos_token_id"] = tokenizer->separator();  // a document begins after one
}

Outcome export_to(const ConvertArgs& args) {
    RecipeArgs checkpoint_args;
    checkpoint_args.path = args.in;
    const Stored stored = open_stored(checkpoint_args, {});
    const std::string dtype = file_dtype(args.dtype);
    const HuggingFaceModel model = {stored.recipe.text("model.name"), stored.recipe.model_shape(),
                                    stored.recipe.integer("training.seq_len")};
    Json config = models::to_hugging_face(model);
    const std::vector<StoredTensor> tensors = models::stored_tensors(built(model));
    const checkpoint::SafetensorsReader reader = checkpoint::open_file(stored.folder, stored.manifest, checkpoint::kModelFile);
    std::map<std::string, const StoredTensor*> by_name;
    std::vector<TensorSpec> specs;
    Outcome outcome{"export", args.out, model, static_cast<int64_t>(tensors.size()), 0};
    for (const StoredTensor& t : tensors) {
        by_name[t.name] = &t;
        specs.push_back({t.name, dtype, t.shape});
        for (const StoredTensor::Part& p : t.parts) {
            const TensorSpec& spec = reader.find(p.name).spec;
            if (spec.shape != p.shape || !checkpoint::is_float(spec.dtype))
                throw UserError("convert.shape", stored.folder,
                                fmt::format("{}: {} is {} [{}], but its recipe makes it [{}]", stored.folder, p.name, spec.dtype,
                                            fmt::join(spec.shape, ", "), fmt::join(p.shape, ", ")));
            outcome.parameters += reader.find(p.name).elements;
        }
    }
    refuse_existing(args.out);
    checkpoint::NewFolder folder(args.out);
    Copier copy;
    checkpoint::write_hugging_face_weights(
        folder.temporary(), specs, args.shard_bytes,
        [&](const checkpoint::TensorEntry& e, int64_t begin, int64_t count, char* to) {
            const StoredTensor& t = *by_name.at(e.spec.name);
            stretches_of_whole(t, begin, count, [&](int64_t part, int64_t there, int64_t here, int64_t n) {
                const std::string& name = t.parts[static_cast<size_t>(part)].name;
                copy([&](int64_t first, int64_t k, void* data) { reader.read(name, first, k, data); },
                     reader.find(name).spec.dtype, there, n, dtype, to + (here - begin) * checkpoint::dtype_bytes(dtype));
            });
        });
    config["torch_dtype"] = args.dtype;
    write_tokenizer(stored, folder.temporary(), config, model.context);
    write_text(fs::path(folder.temporary()) / checkpoint::kConfigFile, config.dump(2) + "\n");
    folder.publish();
    return outcome;
}

}  // namespace

int convert(const ConvertArgs& args) {
    const bool from_hugging_face = fs::exists(fs::path(args.in) / checkpoint::kConfigFile);
    const Outcome o = from_hugging_face ? import_from(args) : export_to(args);
    if (args.json) {
        fmt::print("{}\n", Json{{"direction", o.direction},
                                {"out", o.out},
                                {"model", o.model.name},
                                {"tensors", o.tensors},
                                {"parameters", o.parameters},
                                {"dtype", args.dtype}}
                               .dump());
        return kDone;
    }
    fmt::print("{}: {} with {} parameters in {} tensors of {}\n", o.out, o.model.name, o.parameters, o.tensors, args.dtype);
    return kDone;
}

}  // namespace lockstep::cli
