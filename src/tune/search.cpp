#include "tune/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <queue>
#include <set>
#include <utility>

#include "base/error.h"
#include "planning/plan.h"
#include "schedules/schedules.h"

namespace lockstep::tune {
namespace {

using compile::Microbatches;
using compile::RecomputeMode;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// What is the same of all members of a family.
Choice family_of(Choice c) {
    c.set_replicate(1), c.partition = compile::PartitionPreset::None, c.prefetch = 1, c.budget_bytes = 0;
    return c;
}

// On devices no time depends on addresses.
bool are_placed(const Problem& problem, Bytes bytes) { return bytes == Bytes::Placed || !problem.cluster().devices; }

}  // namespace

compile::OrRefusal<Planned> plan_of(const Problem& problem, const Choice& choice, Bytes bytes,
                                    compile::Microbatches microbatches) {
    const compile::Config config = problem.config(choice);
    compile::CompileOptions options = problem.machine.options;
    options.microbatches = microbatches;
    options.place_buffers = are_placed(problem, bytes);
    const auto compiled = problem.compiled(config, options);
    if (const UserError* refusal = compile::refusal_of(compiled)) return *refusal;
    const auto& c = std::get<compile::Compiled>(compiled);
    Planned out{choice, 0, planning::needed_by(problem.machine, c).bytes};
    out.is_placed = options.place_buffers || problem.is_of_described_stack();
    out.fits = planning::has_room(problem.machine, out.bytes);
    if (!out.fits) return out;
    planning::Timing timing = planning::timing_of(config, c, problem.machine);
    out.is_least = microbatches == Microbatches::Fullest && c.microbatches_for_each() > 1;
    // Of two microbatches of the busiest part, one may run during more collectives than the other, which slow it down.
    if (out.is_least) timing.simulated.microbatch_s = 0.999 * timing.simulated.busiest_s;
    out.step_s = planning::step_s(c, timing);
    return out;
}

compile::OrRefusal<int64_t> bytes_of(const Problem& problem, const Choice& choice, Bytes bytes, int64_t pipeline_rank) {
    compile::CompileOptions options = problem.machine.options;
    options.only_pipeline_rank = pipeline_rank;
    options.microbatches = Microbatches::Fullest;
    options.place_buffers = are_placed(problem, bytes);
    const auto compiled = problem.compiled(problem.config(choice), options);
    if (const UserError* refusal = compile::refusal_of(compiled)) return *refusal;
    return planning::needed_by(problem.machine, std::get<compile::Compiled>(compiled)).bytes;
}

namespace {

struct Candidate {
    double bound_s = 0;
    Limit limit = Limit::None;
    int64_t number = 0;  // of the family, then of the member: what is equally fast comes in the order of the space
    bool is_member = false;
    Choice choice;
    bool has_first_rounds = false;  // bound_s is of a plan of the first microbatches
};
struct Later {
    bool operator()(const Candidate& a, const Candidate& b) const {
        return std::tie(a.bound_s, a.number) > std::tie(b.bound_s, b.number);
    }
};

class Search {
public:
    Search(const Problem& problem, const Options& options) : problem_(problem), options_(options), bounds_(problem) {}

    Found run() {
        const auto begin = Clock::now();
        found_.families = std::ssize(problem_.space.families);
        int64_t bounded = 0;
        for (const Choice& f : problem_.space.families) {
            const int64_t members = members_of(f);
            found_.layouts += members;
            if (is_stopped()) continue;
            ++bounded;
            report(kOfBounds * static_cast<double>(bounded) / static_cast<double>(found_.families));
            if (const int64_t bytes = bounds_.least_bytes(f); options_.prune && bytes > capacity()) {
                cut({0, Limit::Memory, 0, false, f}, bytes);
                continue;
            }
            const TimeBound bound = bounds_.coarse(f);
            push({bound.step_s, bound.limit, next_++, false, f});
        }
        for (explore(); !place_best(); explore()) {
            for (Candidate& c : std::exchange(beaten_, {})) push(std::move(c));  // what beat it may have gone
        }
        leave_queue();
        if (options_.solve_recompute && !is_stopped()) solve_recompute();
        while (!place_best()) {
        }
        if (!is_stopped()) place_front();
        rank();
        for (const Candidate& c : beaten_) cut(c);
        int64_t seen = found_.refused + std::ssize(found_.all);
        for (const auto& [limit, c] : cuts_) seen += c.layouts, found_.cuts.push_back(c);
        if (found_.was_stopped) found_.not_reached = std::max<int64_t>(0, found_.layouts - seen);
        else report(1);
        found_.wall_s = seconds_since(begin);
        return std::move(found_);
    }

private:
    void explore() {
        while (!queue_.empty() && !is_stopped()) {
            const Candidate c = queue_.top();
            report_explored(c.bound_s);
            if (options_.prune && c.bound_s >= worst_of_best()) break;
            queue_.pop();
            if (c.is_member && options_.prune && c.bound_s >= to_beat(c.choice)) beaten_.push_back(c);
            else if (c.is_member) plan(c);
            else expand(c.choice);
        }
    }

    bool is_stopped() {
        if (!found_.was_stopped && options_.stop && options_.stop()) found_.was_stopped = true, stopped_at_ = Clock::now();
        return found_.was_stopped;
    }
    // Once something that fits is placed, a search that was stopped places others only for a while.
    bool leaves_unplaced() {
        const auto is_placed = [](const Planned& p) { return p.fits && p.is_placed; };
        return is_stopped() && seconds_since(stopped_at_) > options_.placing_s && std::ranges::any_of(found_.all, is_placed);
    }

    void report(double share) {
        share_ = std::clamp(share, share_, 1.0);
        if (options_.progress)
            options_.progress({share_, std::ssize(found_.all), best_s_, best_s_ > 0 ? &best_choice_ : nullptr});
    }

    // Bounds rise from the first candidate's to the time that is to be beaten; where they tell nothing, layouts are counted.
    void report_explored(double bound_s) {
        if (!options_.progress) return;
        if (first_bound_s_ < 0) first_bound_s_ = bound_s;
        const double worst_s = worst_of_best(), planned = static_cast<double>(found_.all.size());
        const bool is_bounded = std::isfinite(worst_s) && worst_s > first_bound_s_ && bound_s > 0;
        const double explored = is_bounded ? (bound_s - first_bound_s_) / (worst_s - first_bound_s_)
                                           : planned / (planned + static_cast<double>(queue_.size()));
        report(kOfBounds + (1 - kOfBounds) * std::min(explored, 1.0));
    }

    // What is still in the queue at the end: it cannot win, or the search was stopped before it.
    void leave_queue() {
        for (; !queue_.empty(); queue_.pop()) {
            if (!found_.was_stopped || queue_.top().bound_s >= worst_of_best()) cut(queue_.top());
        }
    }

    void push(Candidate c) { queue_.push(std::move(c)); }

    int64_t capacity() const { return problem_.machine.capacity.bytes.value_or(std::numeric_limits<int64_t>::max()); }

    int64_t members_of(const Choice& f) {
        const auto [at, is_new] = members_.try_emplace({f.degrees, f.microbatches > 1}, 0);
        if (is_new) at->second = std::ssize(problem_.space.members(f));
        return at->second;
    }

    bool is_list_full() const { return std::ssize(best_) >= options_.top; }

    // The time that a layout must beat to be among the best.
    double worst_of_best() const {
        if (!is_list_full()) return std::numeric_limits<double>::infinity();
        std::vector<double> times;
        for (const auto& [family, planned] : best_) times.push_back(planned.step_s);
        std::nth_element(times.begin(), times.begin() + (options_.top - 1), times.end());
        return times[static_cast<size_t>(options_.top - 1)];
    }

    // The time that a layout must beat to be listed. The list has `top` layouts, and at most one of a family.
    double to_beat(const Choice& choice) const {
        const Choice family = family_of(choice);
        const auto at = std::ranges::find_if(best_, [&](const auto& b) { return b.first == family; });
        return std::min(worst_of_best(), at == best_.end() ? std::numeric_limits<double>::infinity() : at->second.step_s);
    }

    void cut(const Candidate& c, int64_t bytes = 0) {
        Cut& cut = cuts_[c.limit];
        const double bound = bytes > 0 ? static_cast<double>(bytes) : c.bound_s;
        if (cut.layouts == 0 || bound < cut.bound_s) cut.nearest = c.choice, cut.bound_s = bound;
        cut.limit = c.limit;
        cut.layouts += c.is_member ? 1 : members_of(c.choice);
    }

    void expand(const Choice& family) {
        if (!bounds_.refusal(family).empty()) {
            found_.refused += members_of(family);
            return;
        }
        const TimeBound of_all = bounds_.of_family(family);
        if (options_.prune && of_all.step_s >= worst_of_best()) {
            beaten_.push_back({of_all.step_s, of_all.limit, next_++, false, family});
            return;
        }
        for (const Choice& m : problem_.space.members(family)) {
            Candidate c{0, Limit::Memory, next_++, true, m};
            const int64_t bytes = bounds_.bytes(m);
            if (options_.prune && bytes > capacity()) {
                smallest(m, bytes);
                cut(c, bytes);
                continue;
            }
            const TimeBound bound = bounds_.of_member(m);
            c.bound_s = bound.step_s, c.limit = bound.limit;
            push(std::move(c));
        }
    }

    // Of those that do not fit, the one that needs least.
    void smallest(const Choice& c, int64_t bytes) {
        if (found_.closest && found_.closest->bytes <= bytes) return;
        Planned p;
        p.choice = c, p.bytes = bytes, p.fits = false;
        found_.closest = p;
    }

    void plan(const Candidate& c) {
        const Choice& choice = c.choice;
        const auto begin = Clock::now();
        auto result = c.has_first_rounds ? plan_of(problem_, choice, Bytes::Least) : plan_if_fullest_fits(choice);
        // Until the list is full there is nothing to beat, and a search that is stopped wants something to list.
        const auto* first = std::get_if<Planned>(&result);
        if (first && first->is_least && !is_list_full() && first->step_s < to_beat(choice))
            result = plan_of(problem_, choice, Bytes::Least);
        found_.plan_s += seconds_since(begin);
        if (compile::refusal_of(result)) {
            ++found_.refused;
            return;
        }
        const auto& planned = std::get<Planned>(result);
        // Others come first that may take less, after which it may not be worth to play all of its microbatches.
        if (planned.is_least) return push({std::max(c.bound_s, planned.step_s), Limit::Rounds, c.number, true, choice, true});
        found_.all.push_back(planned);
        if (planned.fits) keep(planned);
        else smallest(choice, planned.bytes);
    }

    // Outside of the search, whose queue is empty.
    void plan_alone(const Choice& choice) {
        plan({0, Limit::None, next_++, true, choice});
        explore();
        leave_queue();
    }

    std::vector<Planned>::iterator known(const Choice& c) {
        return std::find_if(found_.all.begin(), found_.all.end(), [&](const Planned& p) { return p.choice == c; });
    }

    // Gives these their offsets, or forgets them if it is too late. False: one had none; now it may not fit, and its budget may
    // save less, or be refused.
    bool place(const std::vector<Planned>& some) {
        bool were_placed = true;
        for (const Planned& p : some) {
            if (p.is_placed) continue;
            were_placed = false;
            if (leaves_unplaced()) {
                found_.all.erase(known(p.choice));
                continue;
            }
            const auto placed = placed_plan_of(p);
            Planned& now = *known(p.choice);
            if (compile::refusal_of(placed)) now.fits = false, now.is_placed = true;
            else now = std::get<Planned>(placed);
        }
        return were_placed;
    }

    compile::OrRefusal<Planned> placed_plan_of(const Planned& p) {
        if (p.choice.recompute == RecomputeMode::Budget) return placed_budget(p.choice);
        compile::CompileOptions options = problem_.machine.options;
        options.place_buffers = false;
        auto compiled = problem_.compiled(problem_.config(p.choice), options);
        if (const UserError* refusal = compile::refusal_of(compiled)) return *refusal;
        auto& c = std::get<compile::Compiled>(compiled);
        compile::place_fullest(c);
        Planned out = p;
        out.bytes = planning::needed_by(problem_.machine, c).bytes;
        out.fits = planning::has_room(problem_.machine, out.bytes), out.is_placed = true;
        return out;
    }

    // Gaps may change what it saves.
    compile::OrRefusal<Planned> placed_budget(const Choice& choice) {
        if (!options_.keep_budgets) return plan_of(problem_, choice);
        const compile::Config config = problem_.config(choice);
        auto compiled = problem_.compiled(config, problem_.machine.options);
        if (const UserError* refusal = compile::refusal_of(compiled)) return *refusal;
        const planning::Plan plan =
            planning::make_plan(config, problem_.machine, std::get<compile::Compiled>(std::move(compiled)));
        Planned out{choice, plan.fits ? plan.step_s() : 0, plan.needed.bytes, plan.fits};
        if (out.fits) found_.budgets.push_back(row_of(plan, choice, out.bytes));
        return out;
    }

    // The best so far. False: others may have taken the places of what does not fit.
    bool place_best() {
        rank();
        if (place(found_.best)) return true;
        best_.clear(), best_s_ = 0;
        for (const Planned& p : found_.all) {
            if (p.fits) keep(p);
        }
        return false;
    }

    // Until every layout that no other beats in both bytes and time has its offsets.
    void place_front() {
        while (!place(pareto_front(found_.all))) {
        }
    }

    // The ranks that may be the fullest tell of most layouts that do not fit.
    compile::OrRefusal<Planned> plan_if_fullest_fits(const Choice& choice) {
        constexpr int64_t kWorthIt = 8;  // pipeline ranks, from which on two are a small part of all
        if (!options_.prune) return plan_of(problem_, choice);
        if (choice.pipeline() == 1 || choice.recompute == RecomputeMode::Budget) return plan_of(problem_, choice, Bytes::Least);
        std::set<int64_t> ranks = {bounds_.fullest(choice).rank};
        if (choice.pipeline() >= kWorthIt) ranks.insert({0, choice.pipeline() - 1});
        for (const int64_t rank : ranks) {
            const auto bytes = bytes_of(problem_, choice, Bytes::Least, rank);
            if (const UserError* refusal = compile::refusal_of(bytes)) return *refusal;
            if (std::get<int64_t>(bytes) > capacity()) return Planned{choice, 0, std::get<int64_t>(bytes), false};
        }
        const bool settles_late = schedules::find_schedule(choice.schedule).settles_late;
        return plan_of(problem_, choice, Bytes::Least, settles_late ? Microbatches::Fullest : Microbatches::Steady);
    }

    void keep(const Planned& planned) {
        const Choice family = family_of(planned.choice);
        for (auto& [known, best] : best_) {
            if (!(known == family)) continue;
            if (planned.step_s < best.step_s) best = planned;
            return note_best(planned);
        }
        best_.emplace_back(family, planned);
        note_best(planned);
    }

    void note_best(const Planned& planned) {
        if (best_s_ > 0 && best_s_ <= planned.step_s) return;
        best_s_ = planned.step_s, best_choice_ = planned.choice;
    }

    // Where the best recompute something: as little as fits.
    void solve_recompute() {
        if (!problem_.machine.capacity.bytes || problem_.is_of_described_stack()) return;
        if (is_held(problem_.space.base, "activation_checkpoint.mode")) return;
        rank();
        for (const Planned& p : std::vector<Planned>(found_.best)) {
            if (p.choice.recompute == RecomputeMode::None) continue;
            Choice none = p.choice, solved = p.choice;
            none.recompute = RecomputeMode::None;
            solved.recompute = RecomputeMode::Budget, solved.budget_bytes = *problem_.machine.capacity.bytes;
            if (known(solved) != found_.all.end() || bounds_.of_member(none).step_s >= p.step_s) continue;
            if (known(none) == found_.all.end() && bounds_.bytes(none) <= capacity()) plan_alone(none);
            const auto saves_all = known(none);  // a budget would save no less
            if (saves_all == found_.all.end() || !saves_all->fits) plan_alone(solved);
        }
    }

    void rank() {
        found_.best.clear();
        for (const auto& [family, planned] : best_) found_.best.push_back(planned);
        std::stable_sort(found_.best.begin(), found_.best.end(),
                         [](const Planned& a, const Planned& b) { return a.step_s < b.step_s; });
        if (std::ssize(found_.best) > options_.top) found_.best.resize(static_cast<size_t>(options_.top));
    }

    const Problem& problem_;
    const Options& options_;
    Bounds bounds_;
    std::priority_queue<Candidate, std::vector<Candidate>, Later> queue_;
    std::vector<std::pair<Choice, Planned>> best_;  // by family
    std::vector<Candidate> beaten_;                 // by what was best when their turn came
    // By degrees, and whether there are several microbatches.
    std::map<std::pair<mesh::Degrees, bool>, int64_t> members_;
    std::map<Limit, Cut> cuts_;
    Found found_;
    int64_t next_ = 0;
    double best_s_ = 0;
    Choice best_choice_;                      // where best_s_ is above 0
    static constexpr double kOfBounds = 0.2;  // share of the progress that the first bounds of all families are
    double share_ = 0, first_bound_s_ = -1;
    Clock::time_point stopped_at_{};
};

}  // namespace

Found search(const Problem& problem, const Options& options) { return Search(problem, options).run(); }

std::vector<Planned> pareto_front(const std::vector<Planned>& all) {
    std::vector<Planned> sorted;
    std::copy_if(all.begin(), all.end(), std::back_inserter(sorted), [](const Planned& p) { return p.fits; });
    std::stable_sort(sorted.begin(), sorted.end(), [](const Planned& a, const Planned& b) {
        return a.bytes != b.bytes ? a.bytes < b.bytes : a.step_s < b.step_s;
    });
    std::vector<Planned> front;
    for (const Planned& p : sorted) {
        if (front.empty() || p.step_s < front.back().step_s) front.push_back(p);
    }
    return front;
}

}  // namespace lockstep::tune
