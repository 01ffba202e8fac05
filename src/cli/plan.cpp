#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

#include "calibration/band.h"
#include "cli/commands.h"
#include "cli/page_file.h"
#include "cli/plan_hints.h"
#include "cli/plan_page.h"
#include "cli/plan_sensitivity.h"
#include "cli/stage_json.h"
#include "cli/terminal.h"
#include "compile/breakdown.h"
#include "planning/float8_share.h"
#include "planning/plan.h"
#include "planning/slower_kernels.h"
#include "planning/their_stack.h"
#include "telemetry/console.h"
#include "telemetry/trace.h"
#include "telemetry/wrap.h"
#include "tune/explain.h"

namespace lockstep::cli {
namespace {

struct PlanArgs {
    planning::RecipeArgs recipe;
    std::string cluster, trace, against, html;
    bool json = false, sensitivity = false, hints = false;
    size_t costliest = 10;  // ops that are listed
};

using Json = nlohmann::ordered_json;

struct Costly {
    std::string name;
    compile::TimeSpent spent;
};
std::vector<Costly> costliest(const compile::Breakdown& b, size_t count) {
    std::vector<Costly> all;
    for (const auto* part : {&b.ops, &b.beside}) {
        for (const auto& [name, spent] : *part) all.push_back({name, spent});
    }
    std::stable_sort(all.begin(), all.end(), [](const Costly& a, const Costly& c) { return a.spent.time_s > c.spent.time_s; });
    all.resize(std::min(all.size(), count));
    return all;
}

// Every rank of the pipeline by itself; then the costliest ops of all together, as the mean over pipeline ranks.
compile::Breakdown all_of(const std::vector<compile::Breakdown>& parts) {
    compile::Breakdown all;
    const double share = 1 / static_cast<double>(parts.size());
    for (const compile::Breakdown& b : parts) {
        for (auto [to, from] : {std::pair{&all.ops, &b.ops}, std::pair{&all.beside, &b.beside}}) {
            for (const auto& [name, spent] : *from) {
                compile::TimeSpent& s = (*to)[name];
                s.time_s += share * spent.time_s, s.count += share * spent.count;
                s.flops += share * spent.flops, s.bytes += share * spent.bytes;
            }
        }
    }
    return all;
}

// "0.0123", "74600"
std::string three_digits(double value) {
    const std::string text = fmt::format("{:.3g}", value);
    return text.find("e+") == std::string::npos ? text : fmt::format("{:.0f}", std::stod(text));
}

Json stack_bytes_json(const planning::Plan& p) {
    Json out = Json::array();
    for (const sim::StackBytes& b : p.needed.of_stack)
        out.push_back({{"allocated", b.allocated()},
                       {"reserved", b.reserved(p.cluster.stack.memory)},
                       {"states", b.states},
                       {"gathered", b.gathered},
                       {"activations", b.activations},
                       {"working", b.working}});
    return out;
}

// What the band rests on: by part of a declared machine, the published runs that were compared with plans.
Json parts_json(const planning::Plan& p) {
    Json out = Json::array();
    for (const sim::Part& part : calibration::parts_behind(p))
        out.push_back({{"part", sim::name_of(part.kind)}, {"name", part.name}, {"runs", part.runs}, {"sources", part.sources}});
    return out;
}

Json slower_json(const planning::Plan& p) {
    Json out = Json::array();
    for (const planning::SlowerKernel& k : planning::slower_kernels(p))
        out.push_back({{"op", k.op}, {"kernel", k.kernel}, {"faster", k.faster}, {"why", k.why}});
    return out;
}

Json float8_json(const planning::Plan& p) {
    const auto share = planning::float8_share(p);
    return share ? Json{{"share_of_product_flops", share->flops}, {"casts_s", share->casts_s}, {"has_rate", share->has_rate}}
                 : Json(nullptr);
}

// Whether the rate of the op's kernel is one that nobody has measured.
bool is_assumed(const planning::Plan& p, const Costly& c) {
    return std::ranges::any_of(p.cluster.module.assumed,
                               [&](const auto& of) { return c.name.ends_with(fmt::format("({})", of.first)); });
}

// "gpu.adamw, gpu.rmsnorm"
std::string assumed_kernels(const planning::Plan& p) {
    std::set<std::string> kernels;
    for (const auto& [op, kernel] : p.cluster.module.assumed) kernels.insert(kernel);
    return fmt::format("{}", fmt::join(kernels, ", "));
}

Json to_json(const planning::Plan& p, size_t ops) {
    Json stages = Json::array();
    for (size_t k = 0; k < p.reports.size(); ++k) {
        Json costly = Json::array();
        for (const Costly& c : costliest(p.breakdowns[k], ops)) {
            costly.push_back({{"op", c.name},
                              {"count", c.spent.count},
                              {"time_s", c.spent.time_s},
                              {"flops_per_s", c.spent.flops / c.spent.time_s},
                              {"bytes_per_s", c.spent.bytes / c.spent.time_s},
                              {"assumed", is_assumed(p, c)}});
        }
        Json stage = stage_json(p.compiled.programs[k], p.reports[k], static_cast<int64_t>(p.cluster.reserve_bytes));
        stage["waiting_s"] = p.breakdowns[k].waiting_s;
        stage["costliest"] = costly;
        stages.push_back(stage);
    }
    const std::optional<calibration::Band> band = calibration::band_of(p);
    const auto limit = [&](double calibration::Band::*end) { return band ? Json((*band).*end) : Json(nullptr); };
    return {{"step_time_s", p.step_s()},
            {"step_time_low_s", limit(&calibration::Band::low_s)},
            {"step_time_high_s", limit(&calibration::Band::high_s)},
            {"parts", parts_json(p)},
            {"tokens_per_s", p.tokens_per_s()},
            {"mfu", p.utilization(compile::flops_model_of_a_rank(p.reports))},
            {"hfu", p.utilization(compile::flops_executed_of_a_rank(p.reports))},
            {"float8", float8_json(p)},
            {"bubble_fraction", p.simulated.bubble_s / p.step_s()},
            {"exposed_communication_s", p.simulated.exposed_communication_s},
            {"hidden_communication_s", p.simulated.hidden_communication_s},
            {"hidden_by_async_tensor_parallel_s", p.simulated.hidden_in_parts_s},
            {"meeting_s", p.meeting_s},
            {"sync_steps", p.compiled.layout.sync_steps},
            {"slower_kernels", slower_json(p)},
            {"fits", p.fits},
            {"needed_bytes", p.needed.bytes},
            {"stack_bytes", stack_bytes_json(p)},
            {"ranks", p.compiled.layout.ranks},
            {"cluster", p.cluster.name},
            {"machine", planning::machine_json(p.machine)},
            {"declared", p.cluster.declared},
            {"measured_share", p.simulated.measured_share},
            {"stages", stages}};
}

// Of the software that runs there: the fullest rank.
void print_stack_bytes(const planning::Plan& p) {
    const std::vector<sim::StackBytes>& all = p.needed.of_stack;
    if (all.empty()) return;
    const auto fullest = std::max_element(
        all.begin(), all.end(), [](const sim::StackBytes& a, const sim::StackBytes& b) { return a.allocated() < b.allocated(); });
    const auto gib = [](double bytes) { return telemetry::gib(static_cast<int64_t>(bytes)); };
    fmt::print(
        "bytes of the stack's fullest rank (pipeline rank {}): {} allocated, {} reserved: states {}, gathered {}, activations "
        "{}, "
        "one backward {}\n",
        fullest - all.begin(), gib(fullest->allocated()), gib(static_cast<double>(p.needed.bytes)), gib(fullest->states),
        gib(fullest->gathered), gib(fullest->activations), gib(fullest->working));
}

void print(const planning::Plan& p, size_t ops) {
    const double step_s = p.step_s();
    fmt::print("{}: {}; {}\n", p.cluster.name, p.cluster.description, p.machine.kernels.text);
    if (!p.cluster.stack.name.empty()) fmt::print("stack        {}\n", p.cluster.stack.description);
    if (p.cluster.declared) fmt::print("Estimate: this cluster file contains published rates, not measurements\n");
    if (!p.cluster.module.assumed.empty()) fmt::print("Assumed, never measured: how fast {} are\n", assumed_kernels(p));
    fmt::print("ranks        {}{}\n", p.compiled.layout.ranks,
               p.cluster.devices ? ", a device each"
               : p.rank_threads.comm_thread
                   ? fmt::format(", {} computing and one communicating thread each", p.rank_threads.threads_per_rank)
                   : fmt::format(", {} threads each, communication inline", p.rank_threads.threads_per_rank));
    // An estimate has no more digits than its band leaves.
    const auto known = [&](double value) { return p.cluster.declared ? three_digits(value) : fmt::format("{:.6g}", value); };
    const std::optional<calibration::Band> band = calibration::band_of(p);
    fmt::print(
        "step time    {} s{}\n", known(step_s),
        band ? fmt::format(", between {} and {} s in four of five such plans", known(band->low_s), known(band->high_s)) : "");
    if (const std::string unseen = band ? calibration::text_of(calibration::parts_behind(p)) : ""; !unseen.empty())
        fmt::print("             {}\n", unseen);
    if (const std::string of_class = band ? calibration::text_of_class(p) : ""; !of_class.empty())
        fmt::print("             {}\n", of_class);
    if (p.compiled.microbatches_for_each() > 1)
        fmt::print("             from {} of {} microbatches: each further one takes {} s\n", p.compiled.programs[0].microbatches,
                   p.compiled.layout.microbatches, known(p.simulated.microbatch_s));
    fmt::print("tokens       {} /s, {} /s and rank\n", known(p.tokens_per_s()),
               known(p.tokens_per_s() / static_cast<double>(p.compiled.layout.ranks)));
    fmt::print("MFU, HFU     {:.1f} %, {:.1f} % of {:.4g} TFLOP/s a rank\n",
               100 * p.utilization(compile::flops_model_of_a_rank(p.reports)),
               100 * p.utilization(compile::flops_executed_of_a_rank(p.reports)), p.peak_flops_per_s / 1e12);
    if (const auto float8 = planning::float8_share(p))
        fmt::print("float8       {:.0f} % of the products' FLOPs{}; casts and scales take {:.1f} % of the step\n",
                   100 * float8->flops,
                   float8->has_rate ? "" : ", at the rate of bfloat16, as the machine has none of float8 (rates.flops_per_s.f8)",
                   100 * float8->casts_s / step_s);
    fmt::print("communication exposed {} s ({:.1f} %), including {:.1f} % of the step waiting for other pipeline ranks\n",
               known(p.simulated.exposed_communication_s), 100 * p.simulated.exposed_communication_s / step_s,
               100 * p.simulated.bubble_s / step_s);
    fmt::print("              hidden {} s behind computation{}\n", known(p.simulated.hidden_communication_s),
               p.simulated.hidden_in_parts_s > 0
                   ? fmt::format(", {} s of them by {}", known(p.simulated.hidden_in_parts_s),
                                 p.compiled.layout.context.ring ? "parts of layers" : "asynchronous tensor parallelism")
                   : "");
    if (p.meeting_s > 0)
        fmt::print("islands       meet for {} s every {} steps: {} s of a step\n", known(p.meeting_s),
                   p.compiled.layout.sync_steps, known(p.meeting_s / static_cast<double>(p.compiled.layout.sync_steps)));
    if (!p.hides_nothing.empty()) fmt::print("              {}\n", p.hides_nothing);
    for (const planning::SlowerKernel& k : planning::slower_kernels(p)) fmt::print("slower kernel {}\n", planning::text_of(k));
    if (!p.cluster.declared)
        fmt::print("{:.0f} % of the ops' time comes from measured kernels, the rest from the machine's rates\n",
                   100 * p.simulated.measured_share);
    print_bytes(p.compiled, p.reports, p.machine.capacity.bytes.value_or(0));
    print_stack_bytes(p);
    fmt::print("costliest ops                                          count          s      %    TFLOP/s      GB/s\n");
    for (const Costly& c : costliest(all_of(p.breakdowns), ops)) {
        const compile::TimeSpent& s = c.spent;
        fmt::print("  {:<50}{:>8.0f} {:>10.4g} {:>6.1f} {:>10.4g} {:>9.4g}{}\n", c.name, s.count, s.time_s,
                   100 * s.time_s / step_s, s.flops / s.time_s / 1e12, s.bytes / s.time_s / 1e9,
                   is_assumed(p, c) ? "  assumed" : "");
    }
}

// A file of another system's: the step in Lockstep and in the software that the file was written for.
void print_beside(const planning::Plan& own, const planning::TheirPlan& theirs) {
    const auto print_line = [](const std::string& as, const planning::Plan& p, const std::string& key) {
        fmt::print("as {:<22} {} s, {} tokens/s and rank, {} of the fullest rank{}\n", as, three_digits(p.step_s()),
                   three_digits(p.tokens_per_s() / static_cast<double>(p.compiled.layout.ranks)), telemetry::gib(p.needed.bytes),
                   key);
    };
    print_line("Lockstep", own, "");
    print_line(theirs.stack, theirs.plan, fmt::format(" (--cluster.stack {} shows it whole)", theirs.stack));
}

Json theirs_json(const planning::TheirPlan& theirs) {
    const planning::Plan& p = theirs.plan;
    return {{"stack", theirs.stack},
            {"step_time_s", p.step_s()},
            {"tokens_per_s", p.tokens_per_s()},
            {"needed_bytes", p.needed.bytes},
            {"fits", p.fits}};
}

// Both steps by cause.
Json against_json(const planning::Plan& p, const planning::Plan& other) {
    const tune::Causes own = tune::causes_of(p), of_other = tune::causes_of(other);
    Json causes = Json::object();
    for (const tune::Cause c : tune::kCauses)
        causes[std::string(tune::text_of(c))] = {{"time_s", own[c]}, {"against_s", of_other[c]}};
    return {{"step_time_s", other.step_s()}, {"causes", causes}};
}

void print_against(const planning::Plan& p, const planning::Plan& other, const std::string& name) {
    const tune::Causes own = tune::causes_of(p), of_other = tune::causes_of(other);
    fmt::print("against {}: {:.6g} s, {:+.4g} s ({:+.1f} %)\n", name, other.step_s(), p.step_s() - other.step_s(),
               100 * (p.step_s() / other.step_s() - 1));
    for (const tune::Cause c : tune::kCauses)
        fmt::print("  {:<23}{:>12.6g} s, against {:>12.6g} s: {:>+10.4g} s ({:+.1f} % of the step)\n", tune::text_of(c), own[c],
                   of_other[c], own[c] - of_other[c], 100 * (own[c] - of_other[c]) / other.step_s());
}

// The answer in one line.
std::string verdict_of(const planning::Plan& p) {
    const std::optional<int64_t>& has = p.machine.capacity.bytes;
    const auto known = [&](double value) { return p.cluster.declared ? three_digits(value) : fmt::format("{:.4g}", value); };
    return fmt::format("{}: {}{} a rank; step {} s, {} tokens/s, MFU {:.1f} %", p.fits ? "fits" : "does not fit",
                       telemetry::gib(p.needed.bytes), has ? " of " + telemetry::gib(*has) : "", known(p.step_s()),
                       telemetry::grouped(std::llround(std::stod(known(p.tokens_per_s())))),
                       100 * p.utilization(compile::flops_model_of_a_rank(p.reports)));
}

int plan(const PlanArgs& args) {
    PageFile page(args.html, report::Page::Plan);
    const interop::Reading reading = planning::announced(args.recipe);
    const compile::Recipe opened = planning::opened_for_plan(reading.recipe, args.cluster);
    const planning::Plan p = planning::plan_of_opened(opened, args.cluster);
    const std::optional<planning::TheirPlan> theirs = planning::plan_in_their_stack(reading, opened, args.cluster);
    std::optional<planning::Plan> other;
    if (!args.against.empty()) {
        planning::RecipeArgs recipe = args.recipe;
        recipe.path = args.against;
        other.emplace(planning::make_plan(planning::announced(recipe).recipe, args.cluster));
    }
    std::optional<planning::Sensitivity> sensitivity;
    if (args.sensitivity) sensitivity = sensitivity_with_progress(opened, args.cluster, p);
    std::optional<planning::Hints> hints;
    if (args.hints) hints = hints_with_progress(opened, args.cluster, p);
    if (!args.trace.empty()) telemetry::write_trace(args.trace, p.simulated.timelines);
    if (page) page.write(plan_page_data(p, args.recipe.path, reading.recipe.toml(), to_json(p, args.costliest)));
    if (args.json) {
        Json json = to_json(p, args.costliest);
        if (other) json["against"] = against_json(p, *other);
        if (sensitivity) json["sensitivity"] = sensitivity_json(*sensitivity);
        if (hints) json["hints"] = hints_json(*hints);
        if (theirs) json["in_their_stack"] = theirs_json(*theirs);
        print_json(with_source(json, reading));
    } else {
        print_verdict(verdict_of(p), p.fits);
        at_terminal_width([&] {
            print(p, args.costliest);
            if (theirs) print_beside(p, *theirs);
            if (sensitivity) print_sensitivity(*sensitivity);
            if (hints) print_hints(*hints);
            if (other) print_against(p, *other, args.against);
        });
    }
    if (p.fits) return kDone;
    telemetry::error(fmt::format("a rank needs {}{} and has {} ({}): {}", telemetry::gib(p.needed.bytes),
                                 p.needed.of_stack.empty() ? "" : " with " + p.cluster.stack.name,
                                 telemetry::gib(*p.machine.capacity.bytes), p.machine.capacity.of,
                                 p.needed.of_stack.empty()
                                     ? fmt::format("`lockstep check` with --cluster {} says which keys lower it", p.machine.file)
                                     : "`lockstep tune` with the same stack finds layouts that fit"));
    return kRefused;
}

}  // namespace

Command add_plan(CLI::App& app) {
    const auto args = std::make_shared<PlanArgs>();
    CLI::App* command =
        app.add_subcommand("plan", "estimate step time, utilization and memory of a recipe on a machine, without running it");
    add_recipe_flags(*command, args->recipe);
    command->add_option("--cluster", args->cluster,
                        "name that `lockstep clusters` lists, or a cluster file such as `lockstep bench` writes, in place of "
                        "cluster.file");
    command->add_option(
        "--trace", args->trace,
        "write the planned timeline of a step to this file: one rank of each pipeline rank, in the form of `train --trace`");
    command->add_option("--against", args->against, "another recipe; also print the difference of the two steps by cause");
    command->add_option("--costliest", args->costliest, "ops that are listed, the costliest first (10)");
    command->add_flag("--sensitivity", args->sensitivity,
                      "also plan with other values of each key that the recipe leaves at its default, and print what they change "
                      "of step time and memory, the largest first");
    command->add_flag(
        "--hints", args->hints,
        "also plan the job with linear layers in float8, and with 2, 4 and 8 context ranks, each in its fastest form, and "
        "where it does not fit, with as many as make it fit");
    command->add_option("--html", args->html, "write a page that shows the planned step to this file");
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer(
        "Example: lockstep plan recipes/llama3_8b.toml --cluster h100 --html plan.html\n         lockstep plan llama3_8b_torchtitan "
        "--cluster h100 --ranks 8 --sensitivity");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return plan(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
