#include "schedules/schedules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "schedules/timeline.h"

namespace lockstep::schedules {
namespace {

// What a schedule may ask when it writes the row of a rank.
struct RowShape {
    int64_t ranks, chunks, microbatches, rank;

    int64_t calls() const { return chunks * microbatches; }  // forwards of the rank, and as many backwards
    int64_t hops() const { return ranks - 1 - rank; }        // to the last rank
    // Microbatches go through a chunk in rounds of about as many as there are ranks before the rank turns to its next chunk.
    int64_t rounds() const { return std::max<int64_t>(1, microbatches / ranks); }
    int64_t round() const { return microbatches / rounds(); }
    // Forwards before the first backward, where a microbatch takes `slots` for each hop to the last rank and back.
    int64_t warmup(int64_t slots) const { return std::min((chunks - 1) * round() + slots * hops(), calls()); }
};

// `cells`, repeated `times` times (a negative number: none). A cell is a letter of Work, for the next microbatch whose turn it
// is;
// a digit behind it names the rank's chunk, without one chunks take turns.
struct Phase {
    int64_t times;
    std::string_view cells;
};
using Phases = std::vector<Phase>;

Phases gpipe(const RowShape& p) { return {{p.calls(), "F"}, {p.calls(), "B"}}; }

Phases one_forward_one_backward(const RowShape& p) {
    const int64_t warmup = p.warmup(1);
    return {{warmup, "F"}, {p.calls() - warmup, "FB"}, {warmup, "B"}};
}

Phases looped_breadth_first(const RowShape& p) {
    return {{p.rank, "."}, {p.calls(), "F"}, {2 * p.hops(), "."}, {p.calls(), "B"}};
}

Phases interleaved(const RowShape& p) {
    const int64_t warmup = p.warmup(2);
    const int64_t first_backward = p.chunks * p.ranks + 2 * p.hops();
    return {{p.rank, "."},
            {warmup, "F"},
            {warmup > 0 ? first_backward - warmup - p.rank : 0, "."},
            {p.calls() - warmup, "FB"},
            {warmup, ".B"}};
}

// A rank puts off as many W as there are ranks before it: they fill the end of the step, where it would wait for gradients.
Phases zero_bubble(const RowShape& p) {
    const int64_t warmup = p.warmup(1), steady = p.calls() - warmup;
    const int64_t put_off = std::min(p.rank, p.calls()), without = std::min(steady, put_off);
    return {{p.rank, "."},
            {warmup, "F"},
            {warmup > 0 ? p.hops() : 0, "."},
            {without, "FI"},
            {steady - without, "FIW"},
            {put_off - without, "I"},
            {warmup - (put_off - without), "IW"},
            {put_off, "W"}};
}

// Chunk 1 of a rank is as far from the loss as chunk 0 is from the input. Written for as many microbatches as fill the
// pipeline; cells of those that do not exist stay idle.
Phases zero_bubble_v(const RowShape& p) {
    const int64_t microbatches = std::max(2 * p.ranks - 1, p.microbatches);
    return {{p.rank, "."},
            {2 * p.hops() + 1, "F0"},
            {p.rank, "F1F0"},
            {p.ranks - p.rank, "F1I1W1"},
            {microbatches - (2 * p.ranks - p.rank - 1), "F0I0W0F1I1W1"},
            {p.hops(), "I0W0F1I1W1"},
            {p.rank, "I0I1"},
            {p.ranks - p.rank, "I0W0"},
            {p.rank, "W1"},
            {p.rank, "W0"}};
}

struct Recipe {
    Schedule schedule;
    Phases (*phases)(const RowShape&);
    bool in_rounds = false;      // microbatches must divide into equal rounds
    bool breadth_first = false;  // all microbatches go through a chunk before the next; backwards come newest first
    bool v_shaped = false;       // every second chunk lies on the ranks in reverse
    bool forwards_wait = false;  // idle cells where the forward before has not ended
};

constexpr int64_t kAny = std::numeric_limits<int64_t>::max();

const std::vector<Recipe>& recipes() {
    static const std::vector<Recipe> all = {
        {{"GPipe", "all forwards, then all backwards"}, gpipe},
        {{"1F1B", "a backward after each forward as soon as there is one"}, one_forward_one_backward},
        {{"Interleaved1F1B", "1F1B over several stages a rank, oldest microbatch first", 1, kAny}, interleaved, true},
        {{"LoopedBFS", "GPipe over several stages a rank, earliest stage first", 1, kAny}, looped_breadth_first, false, true},
        {{"ZB-H1", "1F1B with gradients of weights put off into the wait at the end", 1, 1, true},
         zero_bubble,
         false,
         false,
         false,
         true},
        {{"InterleavedZeroBubble", "ZB-H1 over several stages a rank", 1, kAny, true, true},
         zero_bubble,
         true,
         false,
         false,
         true},
        {{"ZBVZeroBubble",
          "two stages a rank, the first and the last on the same one; nothing waits where F, I and W take equally long", 2, 2,
          true, true},
         zero_bubble_v,
         false,
         false,
         true},
    };
    return all;
}

bool same_name(std::string_view a, std::string_view b) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

const Recipe& find_recipe(std::string_view name) {
    std::vector<std::string_view> names;
    for (const Recipe& r : recipes()) {
        if (same_name(r.schedule.name, name)) return r;
        names.push_back(r.schedule.name);
    }
    throw UserError("pipeline.unknown_schedule", "parallelism.pipeline_parallel_schedule",
                    fmt::format("there is no pipeline schedule '{}': choose one of {}", name, fmt::join(names, ", ")));
}

// The row of one rank: hands each cell the next microbatch of the chunk whose turn it is.
class RowWriter {
public:
    RowWriter(const Recipe& recipe, const RowShape& place) : recipe_(recipe), place_(place) {
        for (auto& next : next_) next.assign(place.chunks, 0);
    }

    Row write() && {
        for (const Phase& phase : recipe_.phases(place_)) {
            for (int64_t i = 0; i < phase.times; ++i) append(phase.cells);
        }
        return std::move(row_);
    }

private:
    void append(std::string_view cells) {
        for (size_t i = 0; i < cells.size(); ++i) {
            const auto work = static_cast<Work>(cells[i]);
            if (work == Work::Idle) {
                row_.push_back({});
                continue;
            }
            const bool named = i + 1 < cells.size() && cells[i + 1] >= '0' && cells[i + 1] <= '9';
            append(work, named ? cells[++i] - '0' : whose_turn(work));
        }
    }

    void append(Work work, int64_t chunk) {
        int64_t microbatch = next_[line(work)][chunk]++;
        if (microbatch >= place_.microbatches) return row_.push_back({});
        if (recipe_.breadth_first && work != Work::Forward) microbatch = place_.microbatches - 1 - microbatch;
        row_.push_back({work, stage(chunk), microbatch});
    }

    int64_t whose_turn(Work work) {
        const int64_t round = recipe_.breadth_first ? place_.microbatches : place_.round();
        const int64_t chunk = turn_[line(work)]++ / round % place_.chunks;
        return work == Work::Forward ? chunk : place_.chunks - 1 - chunk;
    }

    int64_t stage(int64_t chunk) const {
        const bool reversed = recipe_.v_shaped && chunk % 2 == 1;
        return chunk * place_.ranks + (reversed ? place_.hops() : place_.rank);
    }

    static size_t line(Work work) { return work == Work::Forward ? 0 : is_backward(work) ? 1 : 2; }

    const Recipe& recipe_;
    const RowShape& place_;
    Row row_;
    std::array<int64_t, 3> turn_ = {};          // forwards, backwards, gradients of weights written so far
    std::array<std::vector<int64_t>, 3> next_;  // microbatch, per chunk
};

}  // namespace

const std::vector<Schedule>& schedules() {
    static const std::vector<Schedule> all = [] {
        std::vector<Schedule> out;
        for (const Recipe& r : recipes()) out.push_back(r.schedule);
        return out;
    }();
    return all;
}

const Schedule& find_schedule(std::string_view name) { return find_recipe(name).schedule; }

std::optional<UserError> objection(std::string_view name, const Shape& shape) {
    const Recipe& recipe = find_recipe(name);
    const Schedule& s = recipe.schedule;
    if (shape.stages_per_rank < s.min_stages_per_rank || shape.stages_per_rank > s.max_stages_per_rank) {
        return UserError(
            "pipeline.stages_per_rank", "parallelism.pipeline_parallel_layers_per_stage",
            fmt::format("the schedule {} runs {} a rank, the cut makes {}: change the layers per stage or the schedule", s.name,
                        s.max_stages_per_rank == 1 ? "one stage" : fmt::format("{} stages", s.max_stages_per_rank),
                        shape.stages_per_rank));
    }
    const RowShape place{shape.ranks, shape.stages_per_rank, shape.microbatches, 0};
    if (recipe.in_rounds && shape.microbatches % place.rounds() != 0) {
        const int64_t fewer = shape.microbatches / shape.ranks * shape.ranks;
        return UserError(
            "pipeline.rounds", "training.global_batch_size",
            fmt::format("the schedule {} sends microbatches through {} ranks in equal rounds, and {} do not divide into "
                        "{}: choose a batch of {} or {} microbatches, or another schedule",
                        s.name, shape.ranks, shape.microbatches, place.rounds(), fewer, fewer + shape.ranks));
    }
    return std::nullopt;
}

Table make_schedule(std::string_view name, const Shape& shape) {
    const Recipe& recipe = find_recipe(name);
    if (const auto no = objection(name, shape)) throw *no;
    Table table{shape.ranks * shape.stages_per_rank, shape.microbatches, {}};
    for (int64_t rank = 0; rank < shape.ranks; ++rank) {
        const RowShape place{shape.ranks, shape.stages_per_rank, shape.microbatches, rank};
        table.rows.push_back(RowWriter(recipe, place).write());
    }
    return recipe.forwards_wait ? wait_for_forwards(table) : table;
}

}  // namespace lockstep::schedules
