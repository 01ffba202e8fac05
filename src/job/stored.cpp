#include "job/stored.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_weights.h"
#include "compile/config.h"
#include "data/prepared_data.h"
#include "job/carried.h"

namespace lockstep::job {

namespace fs = std::filesystem;

std::string find_checkpoint(const std::string& path) {
    if (fs::exists(fs::path(path) / data::kTrainFile))
        throw UserError("checkpoint.is_data", path,
                        fmt::format("{} is a folder of tokens that `data prepare` wrote, not a checkpoint", path));
    if (fs::exists(fs::path(path) / "manifest.json")) return path;
    if (fs::exists(fs::path(path) / checkpoint::kConfigFile))
        throw UserError("checkpoint.is_hugging_face", path,
                        fmt::format("{} is a folder of Hugging Face transformers: make a checkpoint of it with `lockstep convert "
                                    "{} OUT`, and give OUT",
                                    path, path));
    for (const std::string& root : {path, path + "/checkpoint"}) {
        const std::vector<int64_t> steps = checkpoint::complete_steps(root);
        if (!steps.empty()) return checkpoint::folder_of(root, steps.back());
    }
    throw UserError(
        "checkpoint.not_found", path,
        fmt::format("{} holds no complete checkpoint: give a folder step-NNNNNNNN with its manifest.json, a folder of "
                    "such, or the dump folder of a run with checkpoint.enable",
                    path));
}

Stored stored_at(const std::string& folder) {
    Stored s;
    s.folder = folder;
    s.manifest = checkpoint::read_manifest(folder);
    s.recipe = compile::Recipe::from_text(s.manifest.recipe, folder + "/manifest.json");
    return s;
}

Stored open_stored(const planning::RecipeArgs& args, const Settings& defaults) {
    Stored s = stored_at(find_checkpoint(args.path));
    const models::HuggingFaceModel held = hugging_face_model(s.recipe);
    for (const auto& [key, value] : defaults) s.recipe.set(key, value);
    for (const auto& [key, value] : args.settings) s.recipe.set(key, value);
    if (args.ranks > 0) s.recipe.set("cluster.ranks", std::to_string(args.ranks));
    require_same_model(held, s.folder, s.recipe);
    return s;
}

void keep_one_island(compile::Recipe& recipe) {
    if (!recipe.flag("fault_tolerance.enable")) return;
    const int64_t ranks = recipe.integer("cluster.ranks"), islands = recipe.integer("fault_tolerance.group_size");
    const bool is_one = recipe.integer("fault_tolerance.replica_id") >= 0;
    if (ranks > 0 && islands > 0 && !is_one) recipe.set("cluster.ranks", std::to_string(std::max<int64_t>(1, ranks / islands)));
    recipe.set("fault_tolerance.enable", "false");
}

std::string tokenizer_sum(const std::string& file) {
    const TextFile text = read_text_file(file, Pipes::Refused);
    return text.is_readable() ? hex_checksum(text.text) : "";
}

std::optional<data::Tokenizer> find_tokenizer(const Stored& stored, const std::string& given) {
    if (!given.empty()) return data::Tokenizer::load(given);
    return find_tokenizer(tokenizer_folders(stored));
}

std::vector<std::string> tokenizer_folders(const Stored& stored) {
    std::vector<std::string> folders = {stored.folder};
    const std::vector<std::string> data = compile::values_of(stored.recipe).training.dataset_path;
    folders.insert(folders.end(), data.begin(), data.end());
    return folders;
}

std::optional<data::Tokenizer> find_tokenizer(const std::vector<std::string>& folders) {
    const std::string file = tokenizer_file(folders);
    return file.empty() ? std::nullopt : std::optional(data::Tokenizer::load(file));
}

std::string tokenizer_file(const std::vector<std::string>& folders) {
    for (const fs::path folder : folders) {
        if (!folder.empty() && fs::exists(folder / data::kTokenizerFile)) return (folder / data::kTokenizerFile).string();
    }
    return "";
}

models::HuggingFaceModel hugging_face_model(const compile::Recipe& recipe) {
    return {recipe.text("model.name"), recipe.model_shape(), recipe.integer("training.seq_len")};
}

}  // namespace lockstep::job
