#include "compile/save_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"

namespace lockstep::compile {
namespace {

using passes::Saved;
using passes::SaveList;

struct Choices {
    std::string block;
    int64_t count = 0;
    std::vector<Saved> hull;
};

// One instance of a block going from one choice to the next.
struct Move {
    size_t block = 0;
    double won_s_per_byte = 0;
};

// Best first; of one block all instances make a move before any makes the one after it.
std::vector<Move> moves_of(const std::vector<Choices>& blocks) {
    std::vector<Move> out;
    for (size_t b = 0; b < blocks.size(); ++b) {
        for (size_t k = 1; k < blocks[b].hull.size(); ++k) {
            const Saved &from = blocks[b].hull[k - 1], &to = blocks[b].hull[k];
            const double gain = (from.time_s - to.time_s) / static_cast<double>(std::max<int64_t>(to.bytes - from.bytes, 1));
            out.insert(out.end(), static_cast<size_t>(blocks[b].count), Move{b, gain});
        }
    }
    std::stable_sort(out.begin(), out.end(), [](const Move& a, const Move& b) { return a.won_s_per_byte > b.won_s_per_byte; });
    return out;
}

// The lists after the first `n` moves. Instances whose every value is saved need none.
std::vector<SaveList> lists_after(const std::vector<Choices>& blocks, const std::vector<Move>& moves, size_t n) {
    std::vector<int64_t> done(blocks.size());
    for (size_t k = 0; k < n; ++k) ++done[moves[k].block];
    std::vector<SaveList> out;
    for (size_t b = 0; b < blocks.size(); ++b) {
        std::map<size_t, std::vector<int64_t>> at;  // choice -> instances
        for (int64_t i = 0; i < blocks[b].count; ++i)
            at[static_cast<size_t>(done[b] / blocks[b].count + (i < done[b] % blocks[b].count))].push_back(i);
        for (auto& [choice, instances] : at) {
            if (choice + 1 < blocks[b].hull.size())
                out.push_back({blocks[b].block, std::move(instances), blocks[b].hull[choice].values});
        }
    }
    return out;
}

// n of activation_checkpoint.selective_ac_option = "n", or 0.
int64_t every_nth(const std::string& option) {
    int64_t n = 0;
    const auto [end, error] = std::from_chars(option.data(), option.data() + option.size(), n);
    return error == std::errc() && end == option.data() + option.size() ? n : 0;
}

void check_keys(const Recipe& recipe) {
    const std::string &mode = recipe.text("activation_checkpoint.mode"),
                      &option = recipe.text("activation_checkpoint.selective_ac_option");
    const auto refuse = [](const char* id, const char* key, const std::string& text) {
        throw UserError(id, std::string("activation_checkpoint.") + key, text);
    };
    static const std::vector<std::string> modes = {"none", "full", "selective", "budget", "memory_budget"};
    if (std::find(modes.begin(), modes.end(), mode) == modes.end()) {
        refuse("recipe.activation_checkpoint", "mode",
               fmt::format("activation_checkpoint.mode = \"{}\": choose one of {}", mode, fmt::join(modes, ", ")));
    }
    if (mode == "selective" && option != "op" && every_nth(option) < 1) {
        refuse(
            "recipe.selective_ac_option", "selective_ac_option",
            fmt::format("activation_checkpoint.selective_ac_option = \"{}\": give \"op\", or n of \"every n-th layer is computed "
                        "again\", 1 or more",
                        option));
    }
    const double share = recipe.number("activation_checkpoint.memory_budget");
    if (mode == "memory_budget" && !(share >= 0 && share <= 1)) {
        refuse(
            "recipe.memory_budget", "memory_budget",
            fmt::format("activation_checkpoint.memory_budget = {}: give the share of activation memory that may be used, from 0 "
                        "(all is computed again) to 1 (nothing is)",
                        share));
    }
    if (mode == "budget" && recipe.integer("activation_checkpoint.budget_bytes") <= 0) {
        refuse(
            "recipe.budget_bytes", "budget_bytes",
            "activation_checkpoint.mode = \"budget\" needs activation_checkpoint.budget_bytes, the bytes that a rank's arena may "
            "have");
    }
}

}  // namespace

std::vector<SaveList> fit_save_lists(const ir::Program& placed, int64_t budget_bytes, const TotalBytes& total_bytes,
                                     const passes::Rates& rates) {
    std::vector<Choices> blocks;
    for (const SaveList& list : passes::save_nothing(placed)) {
        const auto block =
            std::find_if(placed.blocks.begin(), placed.blocks.end(), [&](const ir::Block& b) { return b.name == list.block; });
        blocks.push_back(
            {list.block, block->count, passes::least_time_choices(placed.mesh, *placed.routine(list.block + ".forward"), rates)});
    }
    const std::vector<Move> moves = moves_of(blocks);
    const auto fits = [&](size_t n) { return total_bytes(lists_after(blocks, moves, n)) <= budget_bytes; };
    if (fits(moves.size())) return {};
    if (!fits(0)) {
        const double gib = static_cast<double>(1 << 30);
        throw UserError(
            "recipe.recompute_budget", "activation_checkpoint.budget_bytes",
            fmt::format("{:.3f} GiB a rank are allowed, and with every layer computed again (activation_checkpoint.mode "
                        "= \"full\") the plan still needs {:.3f} GiB: allow more, or make the batch smaller or the "
                        "layout wider",
                        static_cast<double>(budget_bytes) / gib,
                        static_cast<double>(total_bytes(lists_after(blocks, moves, 0))) / gib));
    }
    size_t fitting = 0, too_many = moves.size();  // the plan grows with every move
    while (too_many - fitting > 1) {
        const size_t middle = (fitting + too_many) / 2;
        (fits(middle) ? fitting : too_many) = middle;
    }
    return lists_after(blocks, moves, fitting);
}

std::vector<SaveList> save_lists(const Recipe& recipe, const ir::Program& placed, const TotalBytes& total_bytes) {
    const std::string &mode = recipe.text("activation_checkpoint.mode"),
                      &option = recipe.text("activation_checkpoint.selective_ac_option");
    check_keys(recipe);
    if (mode == "none" || passes::save_nothing(placed).empty()) return {};
    if (mode == "full") return passes::save_nothing(placed);
    if (mode == "selective" && option == "op") return passes::save_costly_ops(placed);
    if (mode == "selective") return passes::recompute_every(placed, every_nth(option));
    if (mode == "budget") return fit_save_lists(placed, recipe.integer("activation_checkpoint.budget_bytes"), total_bytes);
    const double most = static_cast<double>(total_bytes({})),
                 least = static_cast<double>(total_bytes(passes::save_nothing(placed)));
    const double budget = least + recipe.number("activation_checkpoint.memory_budget") * (most - least);
    return fit_save_lists(placed, static_cast<int64_t>(budget), total_bytes);
}

}  // namespace lockstep::compile
