#include "job/recipe_from.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_folder.h"
#include "data/prepared_data.h"
#include "job/stored.h"
#include "models/model.h"

namespace lockstep::job {
namespace {

namespace fs = std::filesystem;
using compile::KeyStatus;
using compile::Recipe;
using compile::RecipeKey;

const char* const kDataNote = "training.dataset_path: the folder that `lockstep data prepare` makes of your text";

std::string read(const std::string& path) {
    const TextFile file = read_text_file(path);
    if (!file.is_readable()) throw UserError("recipe.from", path, fmt::format("{}: cannot be read ({})", path, file.reason));
    return file.text;
}

void note_data(RecipeFrom& r, const std::string& folder) {
    if (!r.recipe.list("training.dataset_path").empty() || r.recipe.text("training.dataset") == "synthetic") return;
    r.notes.emplace_back(kDataNote);
    const fs::path tokenizer = fs::path(folder) / data::kTokenizerFile;
    if (!folder.empty() && fs::exists(tokenizer))
        r.notes.back() += fmt::format(" (with --tokenizer {}, which the weights were trained with)", tokenizer.string());
}

void start_from(Recipe& recipe, const std::string& folder) {
    recipe.set("checkpoint.enable", "true");
    recipe.set("checkpoint.initial_load_path", fs::absolute(folder).lexically_normal().string());
}

RecipeFrom of_transformers(const std::string& config) {
    const nlohmann::json json = checkpoint::read_config(config);
    RecipeFrom r{"transformers", recipe_of(models::from_hugging_face(json, config)), {}};
    const std::string folder = fs::path(config).parent_path().string();
    start_from(r.recipe, folder.empty() ? "." : folder);
    r.recipe.set("checkpoint.initial_load_in_hf", "true");
    r.notes.push_back(
        fmt::format("training.seq_len: {} is the longest that the model was made for; shorter ones need less memory",
                    r.recipe.integer("training.seq_len")));
    note_data(r, folder);
    return r;
}

RecipeFrom of_checkpoint(const std::string& path) {
    planning::RecipeArgs args;
    args.path = path;
    const Stored stored = open_stored(args, {});
    RecipeFrom r{"checkpoint", stored.recipe, {}};
    // `lockstep convert` makes checkpoints that no run has written: a run starts from their weights, in types of its own.
    if (!r.recipe.is_set("checkpoint.enable")) {
        r.recipe = recipe_of(hugging_face_model(stored.recipe));
        start_from(r.recipe, stored.folder);
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

// Without what torchrun puts before each line: "[rank0]:".
std::string without_ranks(const std::string& log) {
    std::string out;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
        const size_t end = line.find("]:");
        out += (line.starts_with("[rank") && end != std::string::npos ? line.substr(end + 2) : line) + "\n";
    }
    return out;
}

// A TOML file, or the JSON of torchtitan's job.print_config and job.save_config_file: a log may stand around it.
RecipeFrom of_file(const std::string& path) {
    const std::string whole = read(path), begin = "Running with configs: ";
    const bool prints = whole.find(begin + "{") != std::string::npos;
    const std::string text = prints ? without_ranks(whole) : whole;
    const size_t brace = text.find('{', prints ? text.find(begin) : 0);
    if (brace == std::string::npos || (!prints && text.find_first_not_of(" \t\r\n") != brace)) {
        RecipeFrom r{"recipe", Recipe::from_text(text, path), {}};
        note_data(r, "");
        return r;
    }
    const std::string json = prints ? text.substr(brace, text.rfind("\n}") + 2 - brace) : text;
    if (nlohmann::json::parse(json, is_shallow<nlohmann::json>, false).contains("model_type")) return of_transformers(path);
    RecipeFrom r{"recipe", Recipe::from_json(json, path), {}};
    note_data(r, "");
    return r;
}

RecipeFrom of_path(const std::string& path) {
    if (!fs::exists(path)) throw UserError("recipe.from", path, fmt::format("{}: there is no such file or folder", path));
    if (!fs::is_directory(path)) return of_file(path);
    if (checkpoint::HuggingFaceFolder::is_at(path)) return of_transformers((fs::path(path) / "config.json").string());
    if (is_checkpoint(path)) return of_checkpoint(path);
    const std::string recipe = (fs::path(path) / "recipe.toml").string();
    if (!fs::exists(recipe))
        throw UserError(
            "recipe.from", path,
            fmt::format("{}: holds no config.json of transformers, no complete checkpoint and no recipe.toml of a run", path));
    RecipeFrom r = of_file(recipe);
    r.kind = "run";
    return r;
}

}  // namespace

RecipeFrom recipe_from(const std::string& path) {
    RecipeFrom r = of_path(path);
    const auto is = [&](const models::AbsentModel& m) {
        return m.name == r.recipe.text("model.name") && (m.flavor.empty() || m.flavor == r.recipe.text("model.flavor"));
    };
    if (std::any_of(models::absent_models().begin(), models::absent_models().end(), is)) r.recipe.require_available();
    r.recipe.model_shape();  // refuses an unknown model or flavor
    return r;
}

std::string RecipeFrom::toml(const std::string& path) const {
    std::string text = fmt::format("# Made by `lockstep recipe --from {}`.\n", path);
    const auto list = [&](const char* title, const std::vector<std::string>& lines) {
        if (lines.empty()) return;
        text += fmt::format("# {}\n", title);
        for (const std::string& line : lines) text += fmt::format("#   {}\n", line);
    };
    list("Still to be set:", notes);
    std::vector<std::string> missing, ignored;
    for (const compile::Missing& m : recipe.missing()) missing.push_back(m.text());
    for (const RecipeKey* k : recipe.ignored()) ignored.push_back(fmt::format("{}: {}", k->name, k->help));
    list("Asked for, and not in this version of Lockstep:", missing);
    list("Left out, as it does nothing here:", ignored);
    return text + "\n" + recipe.toml([](const RecipeKey& k) { return k.status == KeyStatus::Acts; });
}

}  // namespace lockstep::job
