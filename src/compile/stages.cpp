#include "compile/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <sstream>

#include "base/commas.h"
#include "base/error.h"
#include "base/round.h"
#include "base/text_file.h"
#include "compile/cut.h"
#include "ops/rule.h"
#include "schedules/csv.h"
#include "schedules/schedules.h"

namespace lockstep::compile {
namespace {

using ir::BlockInstance;

const char* const kCsv = "parallelism.pipeline_parallel_schedule_csv";
const char* const kParts = "parallelism.module_fqns_per_model_part";
const char* const kLayers = "parallelism.pipeline_parallel_layers_per_stage";
const char* const kFirstLess = "parallelism.pipeline_parallel_first_stage_less_layers";
const char* const kLastLess = "parallelism.pipeline_parallel_last_stage_less_layers";
const char* const kDegree = "parallelism.pipeline_parallel_degree";

using Cut = StageBlocks;

// FLOPs that one rank executes for a block in one microbatch: in its forwards (with the loss), and in its backwards.
struct Cost {
    double forward = 0, backward = 0;
    double both() const { return forward + backward; }
};

// What the blocks of a program cost, by block and instance.
class Costs {
public:
    explicit Costs(const ir::Program& p) {
        for (const ir::Routine& r : p.routines) {  // of the first entry, which is training if the program has it
            if (r.entry != p.routines.front().entry) continue;
            double flops = 0;
            for (const ir::Op& op : r.ops) flops += ops::flops_of(p.mesh, r, op).executed * static_cast<double>(r.chunks);
            if (ir::is_forward(r.kind)) of_block_[r.block].push_back({&r, {flops, 0}});
            if (ir::is_backward(r.kind)) of_block_[r.block].push_back({&r, {0, flops}});
        }
    }

    Cost of(const BlockInstance& b) const {
        Cost cost;
        const auto known = of_block_.find(b.block);
        if (known == of_block_.end()) return cost;
        for (const auto& [routine, c] : known->second) {
            if (routine->serves(b.instance)) cost.forward += c.forward, cost.backward += c.backward;
        }
        return cost;
    }

private:
    std::map<std::string, std::vector<std::pair<const ir::Routine*, Cost>>> of_block_;
};

// The cut into `n` stages of consecutive blocks whose costliest stage is cheapest; of several such cuts the one whose first
// stages are the longest.
Cut cut_by_cost(const Costs& costs, const std::vector<BlockInstance>& blocks, size_t n) {
    const size_t count = blocks.size();
    std::vector<double> before(count + 1, 0);
    for (size_t i = 0; i < count; ++i) before[i + 1] = before[i] + costs.of(blocks[i]).both();
    // least[s][i]: the costliest stage of the best cut of blocks i.. into s stages; ends[s][i]: where its first stage ends.
    const double never = std::numeric_limits<double>::infinity();
    std::vector<std::vector<double>> least(n + 1, std::vector<double>(count + 1, never));
    std::vector<std::vector<size_t>> ends(n + 1, std::vector<size_t>(count + 1, count));
    least[0][count] = 0;
    for (size_t s = 1; s <= n; ++s) {
        for (size_t i = 0; i < count; ++i) {
            for (size_t end = i + 1; end <= count; ++end) {
                const double most = std::max(before[end] - before[i], least[s - 1][end]);
                if (most <= least[s][i]) least[s][i] = most, ends[s][i] = end;
            }
        }
    }
    Cut cut;
    for (size_t s = n, i = 0; s > 0; i = ends[s][i], --s)
        cut.emplace_back(blocks.begin() + static_cast<long>(i), blocks.begin() + static_cast<long>(ends[s][i]));
    return cut;
}

// TorchTitan's rule (its pipeline_parallel.py). The embedding counts as `first_less` layers and the head as `last_less`. Every
// stage has the same number of layers; the first stages have one more each if a remainder is left.
OrRefusal<Cut> cut_by_layers(const std::vector<BlockInstance>& blocks, int64_t n, int64_t first_less, int64_t last_less) {
    const auto layers = static_cast<int64_t>(blocks.size()) - 2, effective = layers + first_less + last_less;
    const int64_t each = effective / n, more = effective % n;
    if (each == 0 || first_less > each || last_less > each) {
        return UserError(
            "pipeline.less_layers",
            first_less > each  ? kFirstLess
            : last_less > each ? kLastLess
                               : kDegree,
            fmt::format("{} layers, with {} fewer in the first stage and {} fewer in the last, do not fill {} stages of {}: "
                        "lower {} or {}, or have fewer stages",
                        layers, first_less, last_less, n, each, kFirstLess, kLastLess));
    }
    Cut cut;
    auto at = blocks.begin();
    for (int64_t s = 0; s < n; ++s) {
        int64_t take = each + (s < more ? 1 : 0);
        if (s == 0) take += 1 - first_less;     // the embedding
        if (s == n - 1) take += 1 - last_less;  // the head
        cut.emplace_back(at, at + take);
        at += take;
    }
    return cut;
}

// TorchTitan's names of a block's modules. Its norm and output are one block here, the head.
std::vector<std::string> names_of(const std::vector<BlockInstance>& blocks, const BlockInstance& b) {
    if (b == blocks.front()) return {"tok_embeddings"};
    if (b == blocks.back()) return {"norm", "output"};
    return {fmt::format("layers.{}", b.instance)};
}

OrRefusal<Cut> cut_by_names(const std::vector<BlockInstance>& blocks, const std::vector<std::string>& parts) {
    const auto refuse = [](const std::string& what) {
        return UserError("pipeline.model_part", kParts, fmt::format("{}: {}", kParts, what));
    };
    Cut cut;
    size_t block = 0, name = 0;  // the next expected
    for (const std::string& part : parts) {
        cut.emplace_back();
        for (std::string word : split_at_commas(part)) {
            word.erase(0, word.find_first_not_of(' '));
            word.erase(word.find_last_not_of(' ') + 1);
            if (block == blocks.size())
                return refuse(fmt::format("\"{}\" comes after the whole model; give each module once", word));
            const std::vector<std::string> names = names_of(blocks, blocks[block]);
            if (word != names[name])
                return refuse(fmt::format("\"{}\" is where {} comes next; give each module once, in the order of the model", word,
                                          names[name]));
            if (name == 0) cut.back().push_back(blocks[block]);
            if (++name == names.size()) ++block, name = 0;
        }
        if (name != 0) return refuse("norm and output are one block: put both into the same part");
        if (cut.back().empty()) return refuse("a part is empty");
    }
    if (block < blocks.size()) return refuse(fmt::format("{} is in no part", names_of(blocks, blocks[block])[0]));
    return cut;
}

schedules::Table read_csv_file(const std::string& path, const Layout& layout) {
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("pipeline.csv_unreadable", kCsv,
                        fmt::format("{} = \"{}\": cannot be read ({}); give the path of a CSV file", kCsv, path, file.reason));
    return schedules::read_csv(file.text, {path, layout.mesh.degree(mesh::Axis::pp), layout.microbatches});
}

// How many layers fewer the first or last stage has, by the key; TorchTitan's default is 1.
int64_t fewer(int64_t key) { return key < 0 ? 1 : key; }

// All blocks but embedding and head.
int64_t layers_of(const std::vector<ir::Block>& blocks) {
    int64_t out = -2;
    for (const ir::Block& b : blocks) out += std::ssize(b.instances());
    return out;
}

// How many stages the cut has: as the keys say; else one or two stages a rank, as TorchTitan has it for the schedule.
int64_t stage_count(const Config::Parallelism& p, const Layout& layout, int64_t layers, const schedules::Schedule& schedule) {
    const int64_t ranks = layout.mesh.degree(mesh::Axis::pp);
    if (const auto& parts = p.module_fqns_per_model_part; !parts.empty()) return static_cast<int64_t>(parts.size());
    const int64_t each = p.pipeline_parallel_layers_per_stage;
    if (each == 0) return ranks * std::min<int64_t>(schedule.max_stages_per_rank, 2);
    return ceil_div(
        layers + fewer(p.pipeline_parallel_first_stage_less_layers) + fewer(p.pipeline_parallel_last_stage_less_layers), each);
}

OrRefusal<schedules::Table> table_of(const Config::Parallelism& p, const Layout& layout, int64_t layers) {
    if (const std::string& csv = p.pipeline_parallel_schedule_csv; !csv.empty()) {
        try {  // no search reads files
            return read_csv_file(csv, layout);
        } catch (const UserError& e) {
            return e;
        }
    }
    const int64_t ranks = layout.mesh.degree(mesh::Axis::pp);
    const schedules::Schedule& schedule = schedules::find_schedule(p.pipeline_parallel_schedule);
    const int64_t n = stage_count(p, layout, layers, schedule);
    if (n % ranks != 0) {
        return UserError("pipeline.stages_divide", p.module_fqns_per_model_part.empty() ? kLayers : kParts,
                         fmt::format("{} stages cannot be divided evenly over {} = {} ranks: change the cut or the degree", n,
                                     kDegree, ranks));
    }
    const schedules::Shape shape{ranks, n / ranks, layout.microbatches};
    if (const auto no = schedules::objection(schedule.name, shape)) return *no;
    return schedules::make_schedule(schedule.name, shape);
}

// Nothing: it is cut by cost.
OrRefusal<std::optional<Cut>> cut_of(const Config::Parallelism& p, const std::vector<BlockInstance>& blocks, int64_t n) {
    const auto by_key = [](OrRefusal<Cut> cut) -> OrRefusal<std::optional<Cut>> {
        if (const UserError* refusal = refusal_of(cut)) return *refusal;
        return std::optional(std::get<Cut>(std::move(cut)));
    };
    if (const auto& parts = p.module_fqns_per_model_part; !parts.empty()) return by_key(cut_by_names(blocks, parts));
    if (n > static_cast<int64_t>(blocks.size())) {
        return UserError(
            "pipeline.too_many_stages", kDegree,
            fmt::format("{} stages, but the model has {} blocks (embedding, layers and head): lower {}, or have more layers a "
                        "stage",
                        n, blocks.size(), kDegree));
    }
    const int64_t first = p.pipeline_parallel_first_stage_less_layers, last = p.pipeline_parallel_last_stage_less_layers;
    if (first < 0 && last < 0 && p.pipeline_parallel_layers_per_stage == 0) return std::optional<Cut>();
    return by_key(cut_by_layers(blocks, n, fewer(first), fewer(last)));
}

schedules::Table forwards_alone(schedules::Table table) {
    for (schedules::Row& row : table.rows)
        std::erase_if(row, [](const schedules::Action& a) { return a.work != schedules::Work::Forward; });
    return table;
}

}  // namespace

OrRefusal<StagePlan> plan_stages(const Config& config, const Layout& layout, const std::vector<ir::Block>& blocks) {
    if (layout.mesh.degree(mesh::Axis::pp) == 1) return StagePlan{};
    std::vector<BlockInstance> instances;
    for (const ir::Block& b : blocks) {
        for (int64_t i : b.instances()) instances.push_back({b.name, i});
    }
    OrRefusal<schedules::Table> table = table_of(config.parallelism, layout, layers_of(blocks));
    if (const UserError* refusal = refusal_of(table)) return *refusal;
    StagePlan plan{std::get<schedules::Table>(std::move(table)), {}};
    auto cut = cut_of(config.parallelism, instances, plan.table.stages);
    if (const UserError* refusal = refusal_of(cut)) return *refusal;
    plan.cut = std::get<std::optional<Cut>>(std::move(cut));
    if (plan.cut && static_cast<int64_t>(plan.cut->size()) != plan.table.stages) {
        return UserError("pipeline.model_part", kParts,
                         fmt::format("{} has {} parts, but the schedule {} stages", kParts, plan.cut->size(), plan.table.stages));
    }
    return plan;
}

namespace {

passes::Cut cut_of(const StagePlan& plan, const std::vector<BlockInstance>& blocks, const Costs& of_blocks) {
    if (plan.table.rows.empty()) return {{blocks}, {0}};
    passes::Cut out{plan.cut ? *plan.cut : cut_by_cost(of_blocks, blocks, static_cast<size_t>(plan.table.stages)), {}};
    out.rank_of.resize(out.stages.size());
    for (size_t rank = 0; rank < plan.table.rows.size(); ++rank) {
        for (const schedules::Action& a : plan.table.rows[rank]) {
            if (a.work != schedules::Work::Idle) out.rank_of[static_cast<size_t>(a.stage)] = static_cast<int64_t>(rank);
        }
    }
    return out;
}

}  // namespace

passes::Cut cut_of(const StagePlan& plan, const ir::Program& whole) {
    return cut_of(plan, whole.block_instances(), Costs(whole));
}

Stages stages_of(const StagePlan& plan, const ir::Program& whole) {
    Stages out;
    const Costs of_blocks(whole);
    out.cut = cut_of(plan, whole.block_instances(), of_blocks);
    if (plan.table.rows.empty()) return out;
    out.table = plan.table;
    std::vector<Cost> costs;
    for (const std::vector<BlockInstance>& stage : out.cut.stages) {
        costs.emplace_back();
        for (const BlockInstance& b : stage) {
            const Cost c = of_blocks.of(b);
            costs.back().forward += c.forward, costs.back().backward += c.backward;
        }
    }
    const auto cost = [&](const schedules::Action& a) {
        if (a.work == schedules::Work::Idle) return 0.0;
        const Cost& c = costs[static_cast<size_t>(a.stage)];
        const double flops = a.work == schedules::Work::Forward    ? c.forward
                             : a.work == schedules::Work::Backward ? c.backward
                                                                   : c.backward / 2;
        return std::max(flops, 1.0);
    };
    const auto train = schedules::with_transfers(out.table, cost),
               eval = schedules::with_transfers(forwards_alone(out.table), cost);
    for (size_t rank = 0; rank < train.size(); ++rank)
        out.rows.push_back({{ir::EntryKind::Train, train[rank]}, {ir::EntryKind::Eval, eval[rank]}});
    return out;
}

int64_t count_of(Microbatches which, const Config& config, const Layout& layout, const std::vector<ir::Block>& blocks) {
    const int64_t ranks = layout.mesh.degree(mesh::Axis::pp), all = layout.microbatches;
    if (which == Microbatches::All) return all;
    const int64_t ahead = std::max<int64_t>(config.parallelism.prefetch - 1, 0);  // that gathers run, in microbatches
    if (ranks == 1) return std::min(1 + 16 + ahead, all);                         // a forward and its backward at a time
    if (!config.parallelism.pipeline_parallel_schedule_csv.empty()) return all;
    const schedules::Schedule& schedule = schedules::find_schedule(config.parallelism.pipeline_parallel_schedule);
    const int64_t stages = stage_count(config.parallelism, layout, layers_of(blocks), schedule), each = stages / ranks;
    // A round in which the pipeline fills, microbatches of the steady state, and two rounds in which ranks run out of forwards.
    // Schedules for several stages a rank send microbatches through it in rounds of one a rank.
    const bool in_rounds = schedule.max_stages_per_rank > 1;
    const int64_t few = 3 * ranks + (in_rounds ? round_up(8 + ahead, ranks) : 16 + ahead);
    if (few >= all || stages % ranks != 0 || (in_rounds && all % ranks != 0)) return all;
    if (schedule.settles_late && which == Microbatches::Steady) return all;
    const auto held = [&](int64_t microbatches) {
        return schedules::in_flight(schedules::make_schedule(schedule.name, {ranks, each, microbatches}));
    };
    const schedules::InFlight a = held(few), b = held(few + ranks);
    return a.of_stage == b.of_stage && a.of_rank == b.of_rank ? few : all;
}

Backwards backwards_of(const schedules::Table& table) {
    if (table.rows.empty()) return {};
    Backwards out{false, false};
    for (const schedules::Row& row : table.rows) {
        for (const schedules::Action& a : row) {
            out.whole = out.whole || a.work == schedules::Work::Backward;
            out.in_parts = out.in_parts || a.work == schedules::Work::BackwardInput;
        }
    }
    return out;
}

}  // namespace lockstep::compile
