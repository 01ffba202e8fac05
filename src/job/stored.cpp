#include "job/stored.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/checksum.h"
#include "base/error.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_folder.h"
#include "compile/config.h"
#include "data/prepared_data.h"
#include "interop/transformers.h"
#include "job/carried.h"

namespace lockstep::job {

namespace fs = std::filesystem;

namespace {

bool stands_at(const fs::path& path) {
    std::error_code cannot_be;  // as a name that is too long
    return fs::exists(path, cannot_be);
}

// A folder of transformers that no run of ours has written.
bool is_foreign(const std::string& path) {
    return checkpoint::HuggingFaceFolder::is_at(path) && !stands_at(fs::path(path) / "manifest.json");
}

Stored of_hugging_face(const std::string& folder) {
    const checkpoint::HuggingFaceFolder source(folder);
    Stored s;
    s.folder = folder;
    s.manifest.dtype = "F32";
    s.manifest.tokenizer = tokenizer_sum(folder + "/" + data::kTokenizerFile);
    s.recipe = converted_recipe(source.model());
    s.manifest.recipe = s.recipe.toml();
    s.notes = source.notes();
    return s;
}

}  // namespace

compile::Recipe converted_recipe(const models::HuggingFaceModel& model) {
    compile::Recipe recipe = interop::recipe_of(model);
    recipe.set("training.mixed_precision_param", "float32");  // `eval` and `sample` round nothing
    return recipe;
}

std::string find_checkpoint(const std::string& path) {
    if (stands_at(fs::path(path) / data::kTrainFile))
        throw UserError("checkpoint.is_data", path,
                        fmt::format("{} is a folder of tokens that `data prepare` wrote, not a checkpoint", path));
    if (stands_at(fs::path(path) / "manifest.json")) return path;
    if (stands_at(fs::path(path) / "adapter_config.json"))
        throw UserError("checkpoint.is_adapter", path,
                        fmt::format("{} is an adapter and no whole model: merge it into its base (peft: merge_and_unload, then "
                                    "save_pretrained), and give that folder",
                                    path));
    if (stands_at(fs::path(path) / checkpoint::kConfigFile))
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
    Stored s = is_foreign(args.path) ? of_hugging_face(args.path) : stored_at(find_checkpoint(args.path));
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
        if (!folder.empty() && stands_at(folder / data::kTokenizerFile)) return (folder / data::kTokenizerFile).string();
    }
    return "";
}

std::vector<int32_t> end_tokens(const Stored& stored, const std::optional<data::Tokenizer>& tokenizer) {
    std::vector<int32_t> ids = checkpoint::end_tokens(checkpoint::read_serving_files(stored.folder));
    if (tokenizer) ids.push_back(tokenizer->separator());
    return ids;
}

models::HuggingFaceModel hugging_face_model(const compile::Recipe& recipe) {
    return {recipe.text("model.name"), recipe.model_shape(), recipe.integer("training.seq_len")};
}

}  // namespace lockstep::job
