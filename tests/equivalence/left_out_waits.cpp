#include "tests/equivalence/left_out_waits.h"

#include <fmt/format.h>

namespace lockstep::testing {
namespace {

struct Wait {  // of a call, which one
    size_t call, wait;
};
// Of calls of the other stream.
std::vector<Wait> waits_of(const ir::Program& p, const LeavingOut& how) {
    const std::vector<ir::Call>& calls = p.entry(ir::EntryKind::Train)->calls;
    const auto routine = [&](const ir::Call& c) -> const ir::Routine& { return p.routines[static_cast<size_t>(c.routine)]; };
    std::vector<Wait> waits;
    for (size_t c = 0; c < calls.size(); ++c) {
        for (size_t w = 0; w < calls[c].waits.size(); ++w) {
            const ir::Call& other = calls[static_cast<size_t>(calls[c].waits[w])];
            if (other.queue == calls[c].queue) continue;
            if (!how.between || how.between(routine(calls[c]), routine(other))) waits.push_back({c, w});
        }
    }
    return waits;
}

}  // namespace

LeftOutWaits leave_out_waits(const LeavingOut& how) {
    LeftOutWaits result;
    int programs = 0;
    for (uint64_t seed = 1; programs < how.programs; ++seed) {
        const std::optional<Draw> d = how.draw(seed);
        if (!d || (d->compiled.layout.data_ranks == 1 && !how.between) || d->compiled.programs.size() > 1) continue;
        const std::vector<ir::Call>& calls = d->compiled.programs[0].entry(ir::EntryKind::Train)->calls;
        const std::vector<Wait> waits = waits_of(d->compiled.programs[0], how);
        if (waits.empty()) continue;
        ++programs;
        const Outcome right = how.run(d->recipe, d->compiled, 0);
        const size_t count = std::min<size_t>(static_cast<size_t>(how.waits), waits.size());
        for (size_t k = 0; k < count; ++k) {
            const Wait left = waits[waits.size() * k / count];
            compile::Compiled defect = d->compiled;
            for (ir::Entry& e : defect.programs[0].entries) {
                if (e.kind == ir::EntryKind::Train)
                    e.calls[left.call].waits.erase(e.calls[left.call].waits.begin() + static_cast<long>(left.wait));
            }
            if (refusal(defect).empty()) continue;  // another wait says the same
            ++result.needed;
            bool shows = false;
            for (uint64_t order = 1; order <= how.orders && !shows; ++order) shows = right != how.run(d->recipe, defect, order);
            result.seen += shows ? 1 : 0;
            const auto name = [&](const ir::Call& call) {
                return defect.programs[0].routines[static_cast<size_t>(call.routine)].name;
            };
            const auto waited = static_cast<size_t>(calls[left.call].waits[left.wait]);
            if (!shows)
                result.missed += fmt::format("seed {}, call {} {}, wait {} {}\n", seed, left.call, name(calls[left.call]), waited,
                                             name(calls[waited]));
        }
    }
    fmt::print("{} of {} waits that are needed and were left out showed\n{}", result.seen, result.needed, result.missed);
    return result;
}

}  // namespace lockstep::testing
