#include "checkpoint/serving_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.h"
#include "base/output_file.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_weights.h"
#include "data/prepared_data.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

const std::string kGenerationFile = "generation_config.json";
// In the order of the table of transformers' names (tokenization_utils_base, generation). Chat templates that have names are in
// a folder of their own.
const std::vector<std::string> kServingNames = {
    "added_tokens.json",       "chat_template.jinja", "chat_template.json", kGenerationFile,         "merges.txt",
    "special_tokens_map.json", "spiece.model",        "tokenizer.model",    "tokenizer_config.json", "vocab.json"};
const std::string kTemplates = "additional_chat_templates";
constexpr size_t kMostTemplates = 1000, kMostServingBytes = size_t{256} << 20, kMostJsonBytes = size_t{16} << 20;

std::vector<std::string> template_names(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code ignored;
    for (const fs::directory_entry& e : fs::directory_iterator(fs::path(folder) / kTemplates, ignored)) {
        if (e.path().extension() == ".jinja" && names.size() < kMostTemplates)
            names.push_back(kTemplates + "/" + e.path().filename().string());
    }
    return names;
}

bool is_weights(const std::string& name) {
    for (const char* end : {".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth", ".gguf", ".h5",
                            ".msgpack", ".onnx"}) {
        if (name.ends_with(end)) return true;
    }
    return false;
}

}  // namespace

ServingFiles read_serving_files(const std::string& folder) {
    ServingFiles files;
    const auto take = [&](const std::string& name, const std::string& as) {
        const fs::path path = fs::path(folder) / name;
        std::error_code ignored;
        if (!fs::is_regular_file(path, ignored) || fs::file_size(path, ignored) > kMostServingBytes) return;
        if (TextFile file = read_text_file(path); file.is_readable()) files[as] = std::move(file.text);
    };
    for (const std::string& name : kServingNames) take(name, name);
    for (const std::string& name : template_names(folder)) take(name, name);
    take(kSourceConfigFile, kSourceConfigFile);
    take(kConfigFile, kSourceConfigFile);
    return files;
}

void write_serving_files(const std::string& folder, const ServingFiles& files, ServingFolder kind) {
    for (const auto& [name, bytes] : files) {
        if (kind == ServingFolder::Transformers && name == kSourceConfigFile) continue;
        const fs::path path = fs::path(folder) / name;
        if (path.parent_path() != fs::path(folder)) make_folder(path.parent_path().string());
        write_whole_file(path, bytes);
    }
}

std::vector<std::string> not_carried(const std::string& folder) {
    std::set<std::string> known(kServingNames.begin(), kServingNames.end());
    known.insert({kTemplates, kConfigFile, kSourceConfigFile, data::kTokenizerFile, "manifest.json"});
    std::vector<std::string> out;
    std::error_code ignored;
    for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) {
        const std::string name = e.path().filename().string();
        if (!known.contains(name) && !name.starts_with('.') && !is_weights(name)) out.push_back(name);
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::vector<int32_t> end_tokens(const nlohmann::json& config) {
    std::vector<int32_t> ids;
    if (!config.is_object() || !config.contains("eos_token_id")) return ids;
    const nlohmann::json& value = config.at("eos_token_id");
    for (const nlohmann::json& id : value.is_array() ? value : nlohmann::json::array({value})) {
        if (id.is_number_unsigned() && id.get<uint64_t>() <= INT32_MAX) ids.push_back(id.get<int32_t>());
    }
    std::sort(ids.begin(), ids.end());
    return ids;
}

std::vector<int32_t> end_tokens(const ServingFiles& files) {
    const std::vector<int32_t> ids = end_tokens(json_of(files, kGenerationFile));
    return ids.empty() ? end_tokens(json_of(files, kSourceConfigFile)) : ids;
}

nlohmann::json json_of(const ServingFiles& files, const std::string& name) {
    const auto found = files.find(name);
    if (found == files.end() || found->second.size() > kMostJsonBytes) return nullptr;
    nlohmann::json json = json_or_discarded<nlohmann::json>(found->second);
    if (json.is_discarded()) json = json_or_discarded<nlohmann::json>(without_nonfinite(found->second, "null"));
    return json.is_object() ? json : nlohmann::json();
}

}  // namespace lockstep::checkpoint
