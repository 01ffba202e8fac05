#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/output_file.h"
#include "base/shipped.h"
#include "cli/commands.h"
#include "cli/number_flags.h"
#include "cli/page_file.h"
#include "cli/terminal.h"
#include "cli/tune_page.h"
#include "cli/tune_training.h"
#include "job/stopping.h"
#include "planning/refusal.h"
#include "planning/topology.h"
#include "telemetry/console.h"
#include "telemetry/wrap.h"
#include "tune/report.h"

namespace lockstep::cli {
namespace {

using Json = nlohmann::ordered_json;

struct TuneArgs {
    planning::RecipeArgs recipe;
    std::string cluster, out, html;
    int64_t top = 10;
    double minutes = 0;  // 0: until nothing else can win
    double memory_margin_percent = 2;
    TrainingArgs training;
    bool exhaustive = false, what_if = false, json = false;
};

// What the command searches, and for whom.
struct Asked {
    interop::Reading reading;
    compile::Config config;
    std::string cluster_file;
    sim::Cluster cluster;
    int64_t ranks = 1, global_batch = 1;
};

std::string cluster_file_of(const TuneArgs& args, const compile::Config& config) {
    if (!args.cluster.empty()) return args.cluster;
    if (!config.cluster.file.empty()) return config.cluster.file;
    throw UserError(
        "tune.no_cluster", "--cluster",
        "tune needs to know the machine: give --cluster FILE (`lockstep clusters` lists names, and `lockstep bench` writes one "
        "for this machine), or set cluster.file in the recipe");
}

// The recipe's own layout on the number of ranks that is asked for, which may be another than its degrees make.
compile::Config own_layout(compile::Config config) {
    const auto layout = compile::layout_of(config, compile::dims_of(config));
    const UserError* refusal = compile::refusal_of(layout);
    if (refusal && refusal->id() == "recipe.ranks") config.parallelism.data_parallel_shard_degree = -1;
    return config;
}

Asked asked(const TuneArgs& args) {
    Asked a;
    a.reading = planning::announced(args.recipe);
    a.cluster_file = cluster_file_of(args, compile::config_of(a.reading.recipe));
    planning::set_levels(a.reading.recipe, a.cluster_file, nullptr, true);
    a.config = compile::config_of(a.reading.recipe);
    a.cluster = sim::read_cluster(a.cluster_file, args.cluster.empty() ? "cluster.file" : "--cluster", a.config.cluster.stack);
    const auto own = compile::layout_of(own_layout(a.config), compile::dims_of(a.config));
    const UserError* refusal = compile::refusal_of(own);
    a.ranks = refusal ? a.config.cluster.ranks : std::get<compile::Layout>(own).ranks;
    a.global_batch = refusal ? a.config.training.global_batch_size : std::get<compile::Layout>(own).global_batch;
    if (refusal && (a.ranks <= 0 || a.global_batch <= 0)) throw *refusal;
    planning::require_links_of_devices(a.cluster, a.cluster_file, a.ranks);
    if (!args.out.empty() && std::filesystem::exists(args.out))
        throw UserError("tune.out_exists", "--out",
                        fmt::format("--out {}: is there already; choose another name, or remove it", args.out));
    return a;
}

tune::Problem problem_of(const TuneArgs& args, const Asked& a, int64_t ranks) {
    return tune::problem_of(a.config, a.cluster, a.cluster_file, ranks, a.global_batch, args.memory_margin_percent / 100);
}

// For which software the layouts are the fastest.
std::string software_of(const Asked& a) { return a.cluster.stack.name.empty() ? "Lockstep" : a.cluster.stack.name; }

using Clock = std::chrono::steady_clock;

// What ends the search before its end: a signal, or the time that it may take from now on.
std::function<bool()> stop_of(const TuneArgs& args) {
    const auto limit = std::chrono::duration<double>(60 * args.minutes);
    return [begin = Clock::now(), limit, is_limited = args.minutes > 0] {
        return job::remembered_signal() != 0 || (is_limited && Clock::now() - begin >= limit);
    };
}

tune::Options options_of(const TuneArgs& args, telemetry::ProgressBar& bar) {
    tune::Options options;
    options.top = args.top, options.prune = !args.exhaustive;
    options.stop = stop_of(args);
    options.progress = [&bar, begin = Clock::now(), last = Clock::time_point(),
                        lines = tune::LinesSoFar()](const tune::Progress& p) mutable {
        constexpr auto kPause = std::chrono::milliseconds(100);
        if (Clock::now() - last < kPause) return;
        last = Clock::now();
        if (const std::string line = lines.line_at(std::chrono::duration<double>(last - begin).count(), p); !line.empty()) {
            bar.clear();
            telemetry::info(line);
        }
        bar.show(
            static_cast<int64_t>(100 * p.share), 100,
            fmt::format("% searched, {} planned{}", p.compiled, p.best_s > 0 ? fmt::format(", best {:.4g} s", p.best_s) : ""));
    };
    return options;
}

// A search that was stopped says so; one that has nothing is refused.
void say_stopped(const TuneArgs& args, const tune::Found& found) {
    if (!found.was_stopped) return;
    const int signal = job::remembered_signal();
    const std::string by = signal != 0 ? job::signal_name(signal) : fmt::format("--minutes {:g}", args.minutes);
    if (found.best.empty())
        throw UserError("tune.stopped", "--minutes",
                        fmt::format("{} ended the search before a layout was planned that fits; give it longer, or hold keys "
                                    "that you know (such as --parallelism.tensor_parallel_degree 8)",
                                    by));
    const std::string left = found.not_reached > 0
                                 ? fmt::format("{} of {} layouts were not reached, and a faster one may be among them",
                                               telemetry::grouped(found.not_reached), telemetry::grouped(found.layouts))
                                 : "every layout was planned or ruled out; recompute of the best within bytes, and the front of "
                                   "memory and time, are left out";
    telemetry::warn(fmt::format("{} ended the search: {}", by, left));
}

[[noreturn]] void refuse_nothing_fits(const Asked& a, const tune::Problem& problem, const tune::Found& found) {
    const int64_t has = problem.machine.capacity.bytes.value_or(0);
    if (!found.closest)
        throw UserError("tune.nothing_fits", "--ranks",
                        fmt::format("none of {} layouts can be compiled on {} ranks: change --ranks", found.layouts, a.ranks));
    const int64_t needs = found.closest->bytes;
    throw UserError("tune.nothing_fits", "--ranks",
                    fmt::format("none of {} layouts of {} ranks fits: a rank has {} ({}). The closest, {}, needs at least {}: {} "
                                "more. More ranks or devices with more memory would make it fit, or a shorter training.seq_len",
                                found.layouts, a.ranks, telemetry::gib(has), problem.machine.capacity.of,
                                tune::text_of(found.closest->choice), telemetry::gib(needs), telemetry::gib(needs - has)));
}

// The recipe with the keys of the layout.
compile::Recipe recipe_of(const Asked& a, const tune::Problem& problem, const tune::Choice& choice) {
    compile::Recipe recipe = a.reading.recipe;
    for (const auto& [key, value] : tune::settings_of(problem.config(choice))) recipe.set(key, value);
    const bool is_name = file_or_shipped(Shipped::Clusters, a.cluster_file) != a.cluster_file;
    recipe.set("cluster.file", is_name ? a.cluster_file : std::filesystem::absolute(a.cluster_file).lexically_normal().string());
    return recipe;
}

// Proves the winner, and writes it.
void write_winner(const TuneArgs& args, const Asked& a, const tune::Problem& problem, const tune::Choice& choice) {
    const compile::Recipe recipe = recipe_of(a, problem, choice);
    const compile::Config config = compile::config_of(recipe);
    compile::CompileOptions options = problem.machine.options;
    options.verify = true;
    const auto compiled = compile::or_throw(problem.compiled(config, options));
    planning::require_runnable(config, options, compiled, problem.machine.capacity);
    if (args.out.empty()) return;
    write_whole_file(args.out, recipe.toml());
}

// What another GiB, or another network port of a host, would buy.
struct WhatIf {
    std::string what;
    double step_s = 0;
    tune::Choice choice;
};

std::vector<WhatIf> what_if(const tune::Problem& problem, tune::Options options) {
    std::vector<std::pair<std::string, tune::Problem>> tries;
    if (problem.machine.capacity.bytes) {
        tune::Problem more = problem;
        *more.machine.capacity.bytes += int64_t{1} << 30;
        tries.emplace_back("1 GiB more a rank", std::move(more));
    }
    if (problem.cluster().devices && !problem.cluster().links.empty() && problem.cluster().links.back().ports > 0) {
        tune::Problem more = problem;
        ++more.machine.cluster->links.back().ports;
        tries.emplace_back(fmt::format("{} network ports of a host in place of {}", more.cluster().links.back().ports,
                                       problem.cluster().links.back().ports),
                           std::move(more));
    }
    options.top = 1;
    std::vector<WhatIf> out;
    for (const auto& [what, more] : tries) {
        const tune::Found found = tune::search(more, options);
        if (!found.best.empty()) out.push_back({what, found.best.front().step_s, found.best.front().choice});
    }
    return out;
}

// The recipe's own layout in the order of the table.
struct Own {
    std::optional<tune::Row> row;
    std::string place;  // "3", "behind the first 10", "refused: ..."
};

Own own_of(const Asked& a, const tune::Problem& problem, const std::vector<tune::Row>& rows) {
    const compile::Config config = own_layout(a.config);
    const auto layout = compile::layout_of(config, problem.space.dims);
    if (const UserError* refusal = compile::refusal_of(layout)) return {std::nullopt, fmt::format("none: {}", refusal->what())};
    Own own;
    own.row = tune::row_of(problem, config, tune::choice_of(config, std::get<compile::Layout>(layout)));
    own.row->why = tune::difference_text(rows.front().causes, own.row->causes);
    const auto faster = std::count_if(rows.begin(), rows.end(), [&](const tune::Row& r) { return r.step_s < own.row->step_s; });
    own.place = faster < std::ssize(rows) ? fmt::format("{}", faster + 1) : fmt::format("behind the first {}", faster);
    const std::optional<int64_t>& capacity = problem.machine.capacity.bytes;
    if (capacity && own.row->bytes > *capacity)
        own.place +=
            own.row->bytes > *capacity + problem.margin_bytes ? ", and does not fit" : ", and leaves less than the margin";
    return own;
}

Json json_of(const tune::Row& r, const tune::Problem& problem) {
    Json causes = Json::object(), settings = Json::object();
    for (const tune::Cause c : tune::kCauses) causes[std::string(tune::text_of(c))] = r.causes[c];
    for (const auto& [key, value] : tune::settings_of(problem.config(r.choice))) settings[key] = value;
    Json slower = Json::array();
    for (const planning::SlowerKernel& k : r.slower)
        slower.push_back({{"kernel", k.kernel}, {"faster", k.faster}, {"why", k.why}});
    return {{"layout", tune::text_of(r.choice)},
            {"step_time_s", r.step_s},
            {"slower_kernels", slower},
            {"band_s", {r.band.low_s, r.band.high_s}},
            {"tokens_per_s", r.tokens_per_s},
            {"mfu", r.mfu},
            {"bytes", r.bytes},
            {"exposed_communication_s", r.exposed_communication_s},
            {"bubble_fraction", r.bubble_s / r.step_s},
            {"causes_s", causes},
            {"why", r.why},
            {"keys", settings}};
}

Json json_of(const tune::Planned& p) {
    return {{"layout", tune::text_of(p.choice)}, {"step_time_s", p.step_s}, {"bytes", p.bytes}};
}

void print_row(const std::string& place, const tune::Row& r) {
    fmt::print("{:>4} {:>10.5g} {:>10.4g} to {:<9.4g} {:>10} {:>6.1f} {:>8.1f} {:>7.1f}  {}\n", place, r.step_s, r.band.low_s,
               r.band.high_s, telemetry::gib(r.bytes), 100 * r.mfu, 100 * r.exposed_communication_s / r.step_s,
               100 * r.bubble_s / r.step_s, tune::text_of(r.choice));
    if (!r.why.empty()) fmt::print("     against the first: {}\n", r.why);
    for (const planning::SlowerKernel& k : r.slower) fmt::print("     slower kernel: {}\n", planning::text_of(k));
}

void print_cuts(const tune::Problem& problem, const tune::Found& found) {
    fmt::print("not planned\n");
    for (const tune::Cut& c : found.cuts) {
        const std::string least =
            c.limit == tune::Limit::Memory ? telemetry::gib(static_cast<int64_t>(c.bound_s)) : fmt::format("{:.5g} s", c.bound_s);
        fmt::print("  {:>9} layouts: {}. The least is {} of {}\n", telemetry::grouped(c.layouts), tune::text_of(c.limit), least,
                   tune::text_of(c.nearest));
    }
    for (const tune::Excluded& e : problem.space.excluded) fmt::print("  {} pairs of degrees: {}\n", e.families, e.reason);
    if (found.refused > 0) fmt::print("  {:>9} layouts: the compiler refuses them\n", telemetry::grouped(found.refused));
}

struct Result {
    std::vector<tune::Row> rows;
    Own own;
    std::vector<tune::Planned> front;
    std::vector<WhatIf> what_if;
    TrainingResult training;
    std::vector<tune::InSoftware> winner_in;
};

void print(const TuneArgs& args, const Asked& a, const tune::Problem& problem, const tune::Found& found, const Result& r) {
    fmt::print("{}: {}; {} ranks, {} sequences a step\n", a.cluster.name, a.cluster.description, a.ranks, a.global_batch);
    if (a.cluster.declared) fmt::print("Estimate: this cluster file contains published rates, not measurements\n");
    fmt::print(
        "for {}{}\n",
        a.cluster.stack.name.empty() ? "Lockstep's own program (--cluster.stack NAME: for other software)"
                                     : "the software " + a.cluster.stack.name,
        problem.margin_bytes > 0 ? fmt::format("; {} of a rank's memory stay free", telemetry::gib(problem.margin_bytes)) : "");
    fmt::print("{} layouts of {} families; {} planned in {:.1f} s ({:.1f} /s){}\n", telemetry::grouped(found.layouts),
               telemetry::grouped(found.families), telemetry::grouped(std::ssize(found.all)), found.wall_s,
               static_cast<double>(found.all.size()) / std::max(found.plan_s, 1e-9),
               found.was_stopped ? fmt::format("; stopped, {} not reached", telemetry::grouped(found.not_reached)) : "");
    fmt::print("     {:>10} {:>23} {:>11} {:>6} {:>8} {:>7}  layout\n", "step s", "band s", "memory", "MFU %", "exposed%",
               "bubble%");
    for (size_t i = 0; i < r.rows.size(); ++i) print_row(fmt::format("{}", i + 1), r.rows[i]);
    for (const tune::InSoftware& s : r.winner_in)
        fmt::print("the first as {}: {:.5g} s, {}{}\n", s.name == "Lockstep" ? "Lockstep's program" : s.name + " would run it",
                   s.step_s, telemetry::gib(s.bytes), s.fits ? "" : ", which does not fit");
    if (r.own.row) {
        fmt::print("the recipe's own layout, place: {}\n", r.own.place);
        print_row("", *r.own.row);
    } else {
        fmt::print("the recipe's own layout: {}\n", r.own.place);
    }
    print_cuts(problem, found);
    if (!r.front.empty()) fmt::print("memory and time, of the layouts that were planned\n");
    for (const tune::Planned& p : r.front)
        fmt::print("  {:>11} {:>10.5g} s  {}\n", telemetry::gib(p.bytes), p.step_s, tune::text_of(p.choice));
    for (const WhatIf& w : r.what_if)
        fmt::print("with {}: {:.5g} s ({:+.2f} %)  {}\n", w.what, w.step_s, 100 * (w.step_s / r.rows.front().step_s - 1),
                   tune::text_of(w.choice));
    print(args.training, r.training);
    if (!args.out.empty()) fmt::print("{}\n", args.out);
}

Json to_json(const TuneArgs& args, const Asked& a, const tune::Problem& problem, const tune::Found& found, const Result& r) {
    Json rows = Json::array(), cuts = Json::array(), excluded = Json::array(), front = Json::array(), what_if = Json::array();
    for (const tune::Row& row : r.rows) rows.push_back(json_of(row, problem));
    for (const tune::Cut& c : found.cuts)
        cuts.push_back(
            {{"layouts", c.layouts}, {"why", tune::text_of(c.limit)}, {"least", c.bound_s}, {"of", tune::text_of(c.nearest)}});
    for (const tune::Excluded& e : problem.space.excluded) excluded.push_back({{"degrees", e.families}, {"why", e.reason}});
    for (const tune::Planned& p : r.front) front.push_back(json_of(p));
    for (const WhatIf& w : r.what_if)
        what_if.push_back({{"with", w.what}, {"step_time_s", w.step_s}, {"layout", tune::text_of(w.choice)}});
    Json winner_in = Json::array();
    for (const tune::InSoftware& s : r.winner_in)
        winner_in.push_back({{"software", s.name}, {"step_time_s", s.step_s}, {"bytes", s.bytes}, {"fits", s.fits}});
    Json own = {{"place", r.own.place}};
    if (r.own.row) own["plan"] = json_of(*r.own.row, problem);
    Json out = {{"cluster", a.cluster.name},
                {"declared", a.cluster.declared},
                {"ranks", a.ranks},
                {"global_batch_size", a.global_batch},
                {"software", software_of(a)},
                {"memory_margin_bytes", problem.margin_bytes},
                {"layouts", found.layouts},
                {"planned", found.all.size()},
                {"stopped", found.was_stopped},
                {"not_reached", found.not_reached},
                {"wall_s", found.wall_s},
                {"best", rows},
                {"winner_in", winner_in},
                {"own", own},
                {"not_planned", cuts},
                {"excluded", excluded},
                {"pareto", front},
                {"what_if", what_if},
                {"out", args.out}};
    out.update(json_of(args.training, r.training));
    return with_source(out, a.reading);
}

// Days, hours and price of the fastest layout, and over numbers of devices.
TrainingResult training_result(const TuneArgs& args, const Asked& a, const tune::Planned& best, const tune::Options& options) {
    TrainingResult r;
    if (!args.training.is_asked()) return r;
    r.training = training_of(args.training, a.config, a.global_batch, a.cluster_file);
    r.fastest.devices = a.ranks, r.fastest.best = best;
    r.fastest.tokens_per_s = static_cast<double>(a.global_batch * a.config.training.seq_len) / best.step_s;
    add_cost(r.fastest, r.training);
    tune::Options best_alone = options;
    best_alone.top = 1;
    const auto problem = [&](int64_t n) { return problem_of(args, a, n); };
    if (!args.training.devices.empty()) r.devices = tune::over_devices(args.training.devices, problem, r.training, best_alone);
    if (args.training.days > 0)
        r.days = tune::within_days(args.training.days, r.fastest.tokens_per_s / static_cast<double>(a.ranks),
                                   tune::usual_counts(a.cluster.ranks_of_host()), problem, r.training, best_alone);
    return r;
}

int tune(const TuneArgs& args) {
    if (const std::string objection = args.training.objection(); !objection.empty()) {
        telemetry::error(objection);
        return kUsage;
    }
    PageFile page(args.html, report::Page::Tune);
    const Asked a = asked(args);
    const tune::Problem problem = problem_of(args, a, a.ranks);
    telemetry::info(fmt::format("{} families of layouts", telemetry::grouped(std::ssize(problem.space.families))));
    telemetry::ProgressBar bar;
    tune::Options options = options_of(args, bar);
    options.keep_budgets = true;
    const tune::Found found = tune::search(problem, options);
    options.keep_budgets = false;
    bar.clear();
    say_stopped(args, found);
    if (found.best.empty()) refuse_nothing_fits(a, problem, found);
    Result r;
    r.rows = tune::rows_of(problem, found);
    r.own = own_of(a, problem, r.rows);
    r.winner_in = tune::in_both(problem, r.rows.front().choice);
    if (!found.was_stopped) r.front = tune::pareto_front(found.all);
    if (args.what_if && !found.was_stopped) r.what_if = what_if(problem, options);
    r.training = training_result(args, a, found.best.front(), options);
    bar.clear();
    write_winner(args, a, problem, r.rows.front().choice);
    const Json json = args.json || page ? to_json(args, a, problem, found, r) : Json();
    if (page) {
        const std::string recipe = recipe_of(a, problem, r.rows.front().choice).toml();
        page.write(tune_page_data(problem, found, args.recipe.path, recipe, json));
    }
    if (args.json) print_json(json);
    else at_terminal_width([&] { print(args, a, problem, found, r); });
    return job::remembered_signal() != 0 ? kStopped : kDone;
}

}  // namespace

Command add_tune(CLI::App& app) {
    const auto args = std::make_shared<TuneArgs>();
    CLI::App* command =
        app.add_subcommand("tune", "search the layouts of a recipe for those that fit a machine and take the least time");
    add_recipe_flags(*command, args->recipe);
    command->add_option("--cluster", args->cluster,
                        "name that `lockstep clusters` lists, or a cluster file such as `lockstep bench` writes, in place of "
                        "cluster.file");
    command->add_option("--out", args->out, "write the fastest layout as a recipe to this file");
    command->add_option("--html", args->html, "write a page that shows the search to this file");
    command->add_option("--top", args->top, "how many layouts are listed (default: 10)")->check(positive_number());
    command
        ->add_option("--memory-margin", args->memory_margin_percent,
                     "percent of a rank's memory that layouts leave free: what comes closer does not win (default: 2)")
        ->check(number_flag([](double x) { return x >= 0 && x < 100; }, "number from 0 to below 100", "PERCENT"));
    command
        ->add_option("--minutes", args->minutes,
                     "end the search after so many minutes, with what it has (Ctrl-C does so at any time, with exit code 4)")
        ->check(positive_number());
    add_training_flags(*command, args->training);
    command->add_flag("--what-if", args->what_if, "also search with one GiB more a rank, and with one network port more a host");
    command->add_flag("--exhaustive", args->exhaustive, "plan every layout, also those that cannot win");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Keys given as flags are held: only layouts with that value are searched. The layouts are for Lockstep; "
        "--cluster.stack NAME searches for the software of that name (`lockstep clusters`). Example: lockstep tune "
        "llama3_8b_torchtitan --cluster h100 --ranks 64 --out best.toml\n         lockstep tune llama3_8b --cluster h100 --days "
        "30 "
        "--tokens 1e12 --price 2 --currency EUR");
    return {.app = command,
            .run = [args](comm::ProcessGroup&) { return tune(*args); },
            .recipe = &args->recipe,
            .catches_signals = true};
}

}  // namespace lockstep::cli
