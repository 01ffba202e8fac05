#include "job/carried.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/text_file.h"
#include "compile/effective.h"
#include "data/data_sets.h"

namespace lockstep::job {

namespace fs = std::filesystem;

void require_same_model(const models::HuggingFaceModel& held, const std::string& origin, const compile::Recipe& recipe) {
    const auto d = models::difference(held, hugging_face_model(recipe));
    if (!d) return;
    if (d->key == "model.vocab_size")
        throw UserError(
            kOtherArchitecture, d->key,
            fmt::format("{} holds a model with model.vocab_size = {}, but the recipe has {}. A vocabulary grows only where a "
                        "run begins with such weights (checkpoint.initial_load_path), and never shrinks: prepare the "
                        "data with the model's own tokenizer (`lockstep data prepare --tokenizer`) and set "
                        "model.vocab_size = {}",
                        origin, d->a, d->b, d->a));
    const bool stated = recipe.is_set(d->key) || recipe.is_set("model.flavor");
    throw UserError(kOtherArchitecture, d->key,
                    fmt::format("{} holds a model with {} = {}, but the recipe {} {}: with it the weights are another model. Set "
                                "{} = {}, or take all of [model] from it (`lockstep recipe --from {}`)",
                                origin, d->key, d->a, stated ? "has" : "has the default", d->b, d->key, d->a, origin));
}

namespace {

// The checkpoint's own tokenizer.json, if it still exists.
std::optional<std::string> file_of(const Stored& stored, const std::string& sum) {
    for (const fs::path folder : tokenizer_folders(stored)) {
        const fs::path file = folder / data::kTokenizerFile;
        if (tokenizer_sum(file.string()) == sum) return file.string();
    }
    return std::nullopt;
}

}  // namespace

bool is_extended_tokenizer(const std::string& known, const std::string& larger) {
    try {
        const data::Tokenizer a = data::Tokenizer::load(known), b = data::Tokenizer::load(larger);
        const auto begins_with = [](const auto& all, const auto& first) {
            return all.size() >= first.size() && std::equal(first.begin(), first.end(), all.begin());
        };
        return begins_with(b.parts().tokens, a.parts().tokens) && begins_with(b.parts().merges, a.parts().merges);
    } catch (const UserError&) {
        return false;
    }
}

bool extends_tokenizer(const Stored& stored, const UsedTokenizer& used) {
    const auto own = file_of(stored, stored.manifest.tokenizer);
    return own && is_extended_tokenizer(*own, used.file);
}

void require_same_tokenizer(const Stored& stored, const UsedTokenizer& used) {
    const std::string& known = stored.manifest.tokenizer;
    if (known.empty()) return;
    const std::string given = tokenizer_sum(used.file);
    if (given == known) return;
    if (const TextFile text = read_text_file(used.file, Pipes::Refused); !text.is_readable())
        throw UserError(kOtherTokenizer, used.key, fmt::format("{} {}: cannot be read ({})", used.key, used.file, text.reason));
    const auto own = file_of(stored, known);
    if (own && data::is_same_tokenizer(*own, used.file)) return;
    throw UserError(
        kOtherTokenizer, used.key,
        fmt::format("{} is not the tokenizer of {} (checksum {}, the checkpoint's has {}): its tokens mean something "
                    "else to the model. Use {}{}",
                    used.file, stored.folder, given, known,
                    own ? "the checkpoint's, " + *own : "the tokenizer that the model was trained with", used.advice));
}

bool is_known_other_tokenizer(const Stored& stored, const std::string& file) {
    if (stored.manifest.tokenizer.empty())
        return stored.manifest.steps > 0 && stored.recipe.text("training.dataset") == "synthetic";
    const UsedTokenizer used{file, "--tokenizer", ""};
    try {
        require_same_tokenizer(stored, used);
        return false;
    } catch (const UserError&) {
        return !extends_tokenizer(stored, used);
    }
}

std::vector<std::string> changes(const compile::Recipe& before, const compile::Recipe& now) {
    const auto old = compile::effective(before);
    const std::map<std::string, std::string> was(old.begin(), old.end());
    std::vector<std::string> out;
    for (const auto& [key, value] : compile::effective(now)) {
        const auto it = was.find(key);
        const bool is_of_model = key.starts_with("model.") && key != "model.converters";
        if (it != was.end() && it->second != value && !is_of_model)
            out.push_back(fmt::format("{} {} -> {}", key, it->second, value));
    }
    return out;
}

}  // namespace lockstep::job
