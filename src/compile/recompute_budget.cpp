#include "compile/recompute_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>

namespace lockstep::compile {
namespace {

using passes::Saved;
using passes::SaveList;

struct Block {
    std::string name;
    int64_t first = 0, count = 0;  // as ir::Block's
    passes::Choices choices;
};

// One instance of a block going from one point of the hull to the next.
struct Move {
    size_t block = 0;
    double won_s_per_byte = 0;
};

// Best first; of one block all instances make a move before any makes the one after it.
std::vector<Move> moves_of(const std::vector<Block>& blocks) {
    std::vector<Move> out;
    for (size_t b = 0; b < blocks.size(); ++b) {
        const auto& [front, hull] = blocks[b].choices;
        for (size_t k = 1; k < hull.size(); ++k) {
            const Saved &from = front[hull[k - 1]], &to = front[hull[k]];
            const double gain = (from.time_s - to.time_s) / static_cast<double>(std::max<int64_t>(to.bytes - from.bytes, 1));
            out.insert(out.end(), static_cast<size_t>(blocks[b].count), Move{b, gain});
        }
    }
    std::stable_sort(out.begin(), out.end(), [](const Move& a, const Move& b) { return a.won_s_per_byte > b.won_s_per_byte; });
    return out;
}

// [block][instance]: its choice.
using State = std::vector<std::vector<size_t>>;

// After the first `n` moves. The last instances move first: what they save is needed for the shortest time, and is gone when
// the others compute theirs again.
State state_after(const std::vector<Block>& blocks, const std::vector<Move>& moves, size_t n) {
    std::vector<int64_t> done(blocks.size());
    for (size_t k = 0; k < n; ++k) ++done[moves[k].block];
    State out;
    for (size_t b = 0; b < blocks.size(); ++b) {
        const int64_t count = blocks[b].count;
        std::vector<size_t>& at = out.emplace_back();
        for (int64_t i = 0; i < count; ++i) {
            const int64_t steps = done[b] / count + (count - 1 - i < done[b] % count);
            at.push_back(blocks[b].choices.hull[static_cast<size_t>(steps)]);
        }
    }
    return out;
}

// Instances whose every value is saved need no list; a list for all of them names none.
std::vector<SaveList> lists_of(const std::vector<Block>& blocks, const State& state) {
    std::vector<SaveList> out;
    for (size_t b = 0; b < blocks.size(); ++b) {
        const std::vector<Saved>& front = blocks[b].choices.front;
        std::map<size_t, std::vector<int64_t>> instances;
        for (size_t i = 0; i < state[b].size(); ++i) instances[state[b][i]].push_back(blocks[b].first + static_cast<int64_t>(i));
        for (auto& [choice, which] : instances) {
            if (choice + 1 == front.size()) continue;
            if (instances.size() == 1) which.clear();
            out.push_back({blocks[b].name, std::move(which), front[choice].values});
        }
    }
    return out;
}

// The largest n in [from, to) that fits; `from` does, `to` does not. The plan grows with n.
size_t most_that_fits(size_t from, size_t to, const std::function<bool(size_t)>& fits) {
    while (to - from > 1) {
        const size_t middle = (from + to) / 2;
        (fits(middle) ? from : to) = middle;
    }
    return from;
}

// The same where the answer is most likely just below `to`, so that few programs are made.
size_t most_that_fits_near(size_t to, const std::function<bool(size_t)>& fits) {
    size_t step = 1;
    for (; step < to && !fits(to - step); step *= 2) to -= step;
    return most_that_fits(step < to ? to - step : 0, to, fits);
}

// Programs that were sized once are not sized again.
class Arenas {
public:
    explicit Arenas(const ArenaBytes& bytes) : bytes_(bytes) {}

    const std::vector<int64_t>& of(const std::vector<SaveList>& lists, const Sizing& sizing) {
        for (const Known& k : known_) {
            const bool tells_enough = !k.sizing.enough_bytes || k.sizing.enough_bytes == sizing.enough_bytes;
            if (k.lists == lists && k.sizing.pipeline_rank == sizing.pipeline_rank && k.sizing.exact == sizing.exact &&
                tells_enough)
                return k.bytes;
        }
        known_.push_back({lists, sizing, bytes_(lists, sizing)});
        return known_.back().bytes;
    }
    int64_t most(const std::vector<SaveList>& lists, const Sizing& sizing) {
        const std::vector<int64_t>& bytes = of(lists, sizing);
        return *std::max_element(bytes.begin(), bytes.end());
    }
    // The pipeline rank with the most.
    int64_t fullest(const std::vector<SaveList>& lists, const Sizing& sizing) {
        const std::vector<int64_t>& bytes = of(lists, sizing);
        return std::max_element(bytes.begin(), bytes.end()) - bytes.begin();
    }

private:
    struct Known {
        std::vector<SaveList> lists;
        Sizing sizing;
        std::vector<int64_t> bytes;
    };
    const ArenaBytes& bytes_;
    std::deque<Known> known_;
};

UserError does_not_fit(int64_t budget_bytes, int64_t least_bytes) {
    const double gib = static_cast<double>(1 << 30);
    return UserError("recipe.recompute_budget", "activation_checkpoint.budget_bytes",
                     fmt::format("activation_checkpoint.budget_bytes allows {:.3f} GiB per rank, but even full recompute "
                                 "needs {:.3f} GiB: raise the budget, lower the batch size, or use more ranks",
                                 static_cast<double>(budget_bytes) / gib, static_cast<double>(least_bytes) / gib));
}

OrRefusal<std::vector<SaveList>> fit_save_lists(const ir::Program& placed, int64_t budget_bytes, Arenas& arenas,
                                                const passes::OpSeconds& time_s) {
    std::vector<Block> blocks;
    for (const SaveList& list : passes::save_nothing(placed)) {
        const auto block =
            std::find_if(placed.blocks.begin(), placed.blocks.end(), [&](const ir::Block& b) { return b.name == list.block; });
        const ir::Routine& forward = *placed.routine(ir::RoutineKind::Forward, list.block);
        blocks.push_back({list.block, block->first, block->count, passes::least_time_choices(placed.mesh, forward, time_s)});
    }
    const std::vector<Move> moves = moves_of(blocks);
    const auto lists_after = [&](size_t n) { return lists_of(blocks, state_after(blocks, moves, n)); };
    const Sizing least{{}, false}, exact{}, exact_if_fits{{}, true, budget_bytes};
    const auto fits = [&](const std::vector<SaveList>& lists, const Sizing& sizing) {
        return arenas.most(lists, sizing) <= budget_bytes;
    };
    const std::vector<SaveList> all_saved = lists_after(moves.size());
    if (fits(all_saved, least) && fits(all_saved, exact_if_fits)) return std::vector<SaveList>{};
    if (moves.empty()) return does_not_fit(budget_bytes, arenas.most(all_saved, exact));
    // The least bytes of the fullest rank lead to the lists, then the bytes of each rank that exceeds the budget with them.
    std::vector<Sizing> sizings = {{arenas.fullest(all_saved, least), false}};
    const auto fits_so_far = [&](const std::vector<SaveList>& lists) {
        return std::all_of(sizings.begin(), sizings.end(), [&](const Sizing& s) { return fits(lists, s); });
    };
    size_t done = moves.size();  // with one more they do not fit
    while (true) {
        const auto fit_after = [&](size_t n) { return fits_so_far(lists_after(n)); };
        done = sizings.size() == 1 ? most_that_fits(0, done, fit_after) : most_that_fits_near(done + 1, fit_after);
        State state = state_after(blocks, moves, done);
        // The instance that moves next, as far as it goes.
        const State beyond = state_after(blocks, moves, done + 1);
        const size_t block = moves[done].block;
        const auto differs = std::mismatch(state[block].begin(), state[block].end(), beyond[block].begin());
        *differs.first = most_that_fits(*differs.first, *differs.second, [&](size_t choice) {
            *differs.first = choice;
            return fits_so_far(lists_of(blocks, state));
        });
        const std::vector<SaveList> lists = lists_of(blocks, state);
        if (fits(lists, exact_if_fits)) return lists;
        if (lists == lists_after(0)) return does_not_fit(budget_bytes, arenas.most(lists, exact));
        sizings.push_back({arenas.fullest(lists, exact_if_fits), true, budget_bytes});
    }
}

}  // namespace

OrRefusal<std::vector<SaveList>> save_lists(const Config::ActivationCheckpoint& config, const ir::Program& placed,
                                            const ArenaBytes& arena_bytes, const passes::OpSeconds& time_s) {
    const std::vector<SaveList> nothing_saved = passes::save_nothing(placed);
    if (nothing_saved.empty()) return nothing_saved;  // no block to compute again
    const int64_t every_nth = config.selective_ac_option.every_nth;
    Arenas arenas(arena_bytes);
    switch (config.mode) {
        case RecomputeMode::None: return std::vector<SaveList>{};
        case RecomputeMode::Full: return nothing_saved;
        case RecomputeMode::Selective:
            return every_nth == 0 ? passes::save_costly_ops(placed) : passes::recompute_every(placed, every_nth);
        case RecomputeMode::Budget: return fit_save_lists(placed, config.budget_bytes, arenas, time_s);
        case RecomputeMode::MemoryBudget: break;
    }
    const auto most = static_cast<double>(arenas.most({}, {})), least = static_cast<double>(arenas.most(nothing_saved, {}));
    return fit_save_lists(placed, static_cast<int64_t>(least + config.memory_budget * (most - least)), arenas, time_s);
}

}  // namespace lockstep::compile
