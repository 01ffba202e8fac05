#include "interop/reading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "compile/conversion.h"

namespace lockstep::interop {
namespace {

using compile::KeyStatus;
using compile::RecipeKey;

struct List {
    const char *name, *title;
    const std::vector<Item> Reading::*items;
};
constexpr List kLists[] = {{"mapped", "Mapped:", &Reading::mapped},
                           {"assumed", "Assumed, as the file does not say it:", &Reading::assumed},
                           {"left_out", "Left out, though the run has it:", &Reading::left_out},
                           {"unmapped", "Without a counterpart here:", &Reading::unmapped},
                           {"no_effect", "Without effect here:", &Reading::no_effect}};

// One line of a comment, whatever bytes are in it.
std::string one_line(const std::string& bytes) {
    const nlohmann::json json = bytes;
    std::string text = parse_json<nlohmann::json>(json_text(json));
    for (char& c : text) {
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = ' ';
    }
    return text;
}

// DeepSpeed's batch is microbatch x gradient_accumulation_steps x data ranks.
void require_batch(const Reading& r) {
    const compile::Recipe& recipe = r.recipe;
    const int64_t ranks = recipe.integer("cluster.ranks"), batch = recipe.integer("training.global_batch_size");
    if (r.accumulated == 0 || ranks <= 0 || batch <= 0) return;
    const double others = static_cast<double>(recipe.integer("parallelism.tensor_parallel_degree")) *
                          static_cast<double>(recipe.integer("parallelism.pipeline_parallel_degree"));
    const double data = static_cast<double>(ranks) / others,
                 micro = static_cast<double>(recipe.integer("training.local_batch_size"));
    if (data * micro * static_cast<double>(r.accumulated) == static_cast<double>(batch)) return;
    throw UserError(
        "recipe.contradiction", "cluster.ranks",
        fmt::format("{} sequences a step are not {} a microbatch x {} of gradient_accumulation_steps x {} data ranks, which "
                    "make {}: change one of them, or --ranks",
                    batch, micro, r.accumulated, data, data * micro * static_cast<double>(r.accumulated)));
}

}  // namespace

std::string_view name_of(Reading::Kind kind) {
    switch (kind) {
        case Reading::Kind::Recipe: return "recipe";
        case Reading::Kind::Transformers: return "transformers";
        case Reading::Kind::Torchtitan: return "torchtitan";
        case Reading::Kind::Megatron: return "Megatron-LM";
        case Reading::Kind::DeepSpeed: return "DeepSpeed";
        case Reading::Kind::Checkpoint: return "checkpoint";
        case Reading::Kind::Run: return "run";
    }
    return "";
}

std::string Item::text() const { return fmt::format("{}{}{}: {}", where, where.empty() ? "" : ": ", said, becomes); }

void Reading::map(const std::string& said, const std::string& where, const std::string& key, const compile::Value& value) {
    const RecipeKey* known = compile::find_key(key);
    const bool was_set = known && recipe.is_set(key);
    const compile::Value before = known ? recipe.value(key) : compile::Value();
    const std::string other = recipe.where(key);
    recipe.set(key, value, fmt::format("{}: {}", where, said));
    if (was_set && recipe.value(key) != before)
        throw UserError("recipe.contradiction", key,
                        fmt::format("{}: {}: makes {} = {}, but {}makes it {}: give both the same value", where, said, key,
                                    compile::text_of(value), other, compile::text_of(before)));
    mapped.push_back({said, where, fmt::format("{} = {}", key, compile::text_of(value))});
}

void Reading::assume(const std::string& said, const std::string& key, const compile::Value& value) {
    if (recipe.is_set(key)) return;
    recipe.set(key, value, fmt::format("{}'s default {}", name_of(kind), said));
    assumed.push_back({said, "", fmt::format("{} = {}", key, compile::text_of(value))});
}

bool Reading::asks(const std::string& key) const {
    return std::any_of(questions.begin(), questions.end(),
                       [&](const Question& q) { return std::find(q.keys.begin(), q.keys.end(), key) != q.keys.end(); });
}

void Reading::require_answers() const {
    std::vector<std::string> texts;
    std::string key;
    for (const Question& q : questions) {
        if (std::any_of(q.keys.begin(), q.keys.end(), [&](const std::string& k) { return recipe.is_set(k); })) continue;
        if (texts.empty()) key = q.keys.front();
        texts.push_back(q.text);
    }
    if (!texts.empty()) throw UserError("recipe.question", key, fmt::format("{}", fmt::join(texts, "\n  ")));
    require_batch(*this);
}

void Reading::leave_out_training() {
    const auto is_open = [&](const Question& q) {
        return q.of_training &&
               std::none_of(q.keys.begin(), q.keys.end(), [&](const std::string& k) { return recipe.is_set(k); });
    };
    for (const Question& q : questions) {
        if (is_open(q))
            left_out.push_back({q.text, "",
                                fmt::format("no plan depends on it; here it is Lockstep's default, {} = {}", q.keys.front(),
                                            compile::text_of(recipe.value(q.keys.front())))});
    }
    std::erase_if(questions, is_open);
}

void Reading::require_whole(const std::string& path) const {
    if (left_out.empty()) return;
    std::string list;
    for (const Item& item : left_out) list += "\n  " + item.text();
    throw UserError(
        "recipe.left_out", path,
        fmt::format("{}: a run of Lockstep is another one than this file's, as it lacks:{}\nTo train without it, write "
                    "the recipe (`lockstep recipe --from {} --out NAME.toml`) and train that",
                    path, list, path));
}

std::vector<std::string> Reading::to_be_set() const {
    std::vector<std::string> out;
    for (const Note& n : notes) out.push_back(n.key.empty() ? n.text : n.key + ": " + n.text);
    for (const Question& q : questions) out.push_back(q.text);
    return out;
}

nlohmann::ordered_json Reading::json() const {
    nlohmann::ordered_json out = {{"kind", name_of(kind)}};
    for (const List& list : kLists) {
        out[list.name] = nlohmann::ordered_json::array();
        for (const Item& item : this->*list.items)
            out[list.name].push_back({{"said", item.said}, {"where", item.where}, {"becomes", item.becomes}});
    }
    return out;
}

std::string Reading::toml(const std::string& path) const {
    std::string text = fmt::format("# Made by `lockstep recipe --from {}`.\n", path);
    const auto list = [&](const char* title, const std::vector<std::string>& lines) {
        if (lines.empty()) return;
        text += fmt::format("# {}\n", title);
        for (const std::string& line : lines) text += fmt::format("#   {}\n", one_line(line));
    };
    std::vector<std::string> missing, ignored;
    for (const compile::Missing& m : recipe.missing()) missing.push_back(m.text());
    compile::Recipe kept = recipe;
    for (const compile::Unavailable& u : compile::unavailable(compile::values_of(recipe))) kept.leave_out(u.key);
    for (const RecipeKey* k : kept.ignored()) ignored.push_back(fmt::format("{}: {}", k->name, compile::why_ignored(*k)));
    list("Still to be set:", to_be_set());
    list("Asked for, and not in this version of Lockstep:", missing);
    list("Left out, as it does nothing here:", ignored);
    for (const List& l : kLists) {
        std::vector<std::string> lines;
        for (const Item& item : this->*l.items) lines.push_back(item.text());
        list(l.title, lines);
    }
    for (const RecipeKey* k : kept.ignored()) kept.leave_out(k->name);
    return text + "\n" + kept.toml([](const RecipeKey& k) { return k.status == KeyStatus::Acts; });
}

void Refusals::add(const std::string& said, const std::string& where, const std::string& why) {
    all_.push_back({said, where, why});
}

void Refusals::require_none(const std::string& origin) const {
    if (all_.empty()) return;
    std::string list;
    for (const Item& item : all_) list += "\n  " + item.text();
    throw UserError("recipe.cannot_map", all_.front().said,
                    fmt::format("{}: asks for what no recipe of Lockstep can have, so that a plan would be of something else:{}",
                                origin, list));
}

}  // namespace lockstep::interop
