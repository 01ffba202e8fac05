#include "planning/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "planning/topology.h"

namespace lockstep::planning {
namespace {

// The recipe with the size of its job stated, so that another degree or microbatch is the same job cut otherwise, and with the
// levels of its machine, which other partitions name.
compile::Recipe with_stated_job(compile::Recipe recipe, const std::string& cluster_file, const compile::Layout& layout) {
    recipe.set("cluster.ranks", std::to_string(layout.ranks));
    if (layout.sync_steps <= 1) recipe.set("training.global_batch_size", std::to_string(layout.global_batch));
    set_levels(recipe, cluster_file, nullptr, true);
    return recipe;
}

struct Try {
    const compile::RecipeKey* key;
    compile::Value by_default, instead;
};

// In the order of the table.
std::vector<Try> tries_of(const compile::Recipe& opened, const compile::Recipe& stated) {
    std::vector<Try> out;
    for (const compile::RecipeKey& k : compile::recipe_keys()) {
        if (k.status != compile::KeyStatus::Acts || opened.is_set(k.name)) continue;
        const compile::Value& value = stated.value(k.name);
        for (compile::Value& other : compile::tried_values(k, value)) out.push_back({&k, value, std::move(other)});
    }
    return out;
}

// As a person reads it: without quotes.
std::string plain_text(const compile::Value& value) {
    const auto* text = std::get_if<std::string>(&value);
    if (!text) return compile::text_of(value);
    return text->empty() ? "empty" : *text;
}

bool is_larger(const Change& a, const Change& b) {
    const auto size = [](const Change& c) {
        return std::pair{std::round(1000 * std::abs(std::log1p(c.time))), std::abs(c.more_bytes)};
    };
    return size(a) > size(b);
}

}  // namespace

bool Change::is_notable() const { return std::abs(time) >= 0.0005 || std::abs(more_bytes) >= (int64_t{1} << 30) / 100; }

Sensitivity sensitivity_of(const compile::Recipe& opened, const std::string& cluster_file, const Plan& plan,
                           const std::function<void(int64_t done, int64_t total)>& progress) {
    const compile::Recipe stated = with_stated_job(opened, cluster_file, plan.compiled.layout);
    const compile::Config config = compile::config_of(opened);
    const double tokens = static_cast<double>(plan.compiled.layout.global_batch * plan.compiled.layout.seq_len);
    const double token_s = plan.step_s() / tokens;
    const std::vector<Try> tries = tries_of(opened, stated);
    Sensitivity out;
    for (size_t i = 0; i < tries.size(); ++i) {
        if (progress) progress(static_cast<int64_t>(i), std::ssize(tries));
        const auto& [key, by_default, instead] = tries[i];
        const std::string text = plain_text(instead);
        try {
            compile::Recipe recipe = stated;
            recipe.set(key->name, instead, "--sensitivity");
            const compile::Config other = compile::config_of(recipe);
            const Step step = step_of(other, machine_of(other, cluster_file), config, plan);
            Change c{key->name, plain_text(by_default), {text}};
            c.step_s = step.step_s, c.bytes = step.bytes, c.fits = step.fits;
            c.time = step.step_s / static_cast<double>(step.tokens) / token_s - 1, c.more_bytes = step.bytes - plan.needed.bytes;
            c.same_tokens = static_cast<double>(step.tokens) == tokens;
            if (std::abs(c.time) < 1e-9 && c.more_bytes == 0) {
                ++out.without_effect;
                continue;
            }
            const auto same = std::find_if(out.changes.begin(), out.changes.end(), [&](const Change& o) {
                return o.key == c.key && std::abs(o.time - c.time) < 1e-9 && o.bytes == c.bytes;
            });
            if (same == out.changes.end()) out.changes.push_back(std::move(c));
            else same->instead.push_back(text);
        } catch (const UserError& e) {
            out.refused.push_back({key->name, text, e.what()});
        }
    }
    std::stable_sort(out.changes.begin(), out.changes.end(), is_larger);
    return out;
}

}  // namespace lockstep::planning
