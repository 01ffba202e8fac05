#include "job/recipe_from.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "checkpoint/hugging_face_folder.h"
#include "data/prepared_data.h"
#include "interop/read.h"
#include "interop/transformers.h"
#include "job/stored.h"
#include "models/model.h"

namespace lockstep::job {
namespace {

namespace fs = std::filesystem;
using interop::Reading;

void note_data(Reading& r, const std::string& folder) {
    constexpr const char* kDataPath = "training.dataset_path";
    if (!r.recipe.list(kDataPath).empty() || r.recipe.text("training.dataset") == "synthetic") return;
    const auto is_noted = [](const interop::Note& note) { return note.key == kDataPath; };
    if (std::any_of(r.notes.begin(), r.notes.end(), is_noted)) return;
    r.notes.push_back({kDataPath, "the folder that `lockstep data prepare` makes of your text"});
    const fs::path tokenizer = fs::path(folder) / data::kTokenizerFile;
    if (!folder.empty() && fs::exists(tokenizer))
        r.notes.back().text += fmt::format(" (with --tokenizer {}, which the weights were trained with)", tokenizer.string());
}

Reading of_checkpoint(const std::string& path) {
    planning::RecipeArgs args;
    args.path = path;
    const Stored stored = open_stored(args, {});
    Reading r;
    r.kind = Reading::Kind::Checkpoint;
    r.recipe = stored.recipe;
    // `lockstep convert` makes checkpoints that no run has written: a run starts from their weights, in types of its own.
    if (!r.recipe.is_set("checkpoint.enable")) {
        r.recipe = interop::recipe_of(hugging_face_model(stored.recipe));
        r.recipe.set("checkpoint.enable", "true");
        r.recipe.set("checkpoint.initial_load_path", fs::absolute(stored.folder).lexically_normal().string());
        interop::assume_fine_tuning(r);
    }
    note_data(r, stored.folder);
    return r;
}

bool is_checkpoint(const std::string& path) {
    try {
        find_checkpoint(path);
        return true;
    } catch (const UserError&) {
        return false;
    }
}

Reading of_file(const std::string& path, const interop::ReadOptions& options = {}) {
    Reading r = interop::read(path, options);
    note_data(r, r.recipe.text("checkpoint.initial_load_path"));
    return r;
}

Reading of_path(const std::string& path, const interop::ReadOptions& options) {
    if (!fs::exists(path)) throw UserError("recipe.from", path, fmt::format("{}: there is no such file or folder", path));
    if (!fs::is_directory(path) || checkpoint::HuggingFaceFolder::is_at(path)) return of_file(path, options);
    if (is_checkpoint(path)) return of_checkpoint(path);
    const std::string recipe = (fs::path(path) / "recipe.toml").string();
    if (!fs::exists(recipe))
        throw UserError(
            "recipe.from", path,
            fmt::format("{}: holds no config.json of transformers, no complete checkpoint and no recipe.toml of a run", path));
    Reading r = of_file(recipe);
    r.kind = Reading::Kind::Run;
    return r;
}

}  // namespace

Reading recipe_from(const std::string& path, const interop::ReadOptions& options) {
    Reading r = of_path(path, options);
    const auto is = [&](const models::AbsentModel& m) {
        return m.name == r.recipe.text("model.name") && (m.flavor.empty() || m.flavor == r.recipe.text("model.flavor"));
    };
    if (std::any_of(models::absent_models().begin(), models::absent_models().end(), is)) r.recipe.require_available();
    r.recipe.model_shape();  // refuses an unknown model or flavor
    return r;
}

}  // namespace lockstep::job
