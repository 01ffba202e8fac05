#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/stage_json.h"
#include "planning/program.h"
#include "schedules/csv.h"
#include "schedules/timeline.h"

namespace lockstep::cli {
namespace {

struct ShowArgs {
    planning::RecipeArgs recipe;
    std::string after, against;
    std::vector<std::string> skip;
    bool passes = false, schedule = false, json = false;
};

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

// Lines that only one side has, in order, with the section that they are in. Sections are compared by their first line's name,
// so that one added line does not shift all others.
std::string differences(const std::string& a, const std::string& b) {
    const auto sections = [](const std::string& text) {
        std::vector<std::pair<std::string, std::vector<std::string>>> out;
        for (const std::string& line : lines_of(text)) {
            if (line[0] != ' ' || out.empty())
                out.emplace_back(line.substr(0, line.find(' ', line.find(' ') + 1)), std::vector<std::string>{});
            out.back().second.push_back(line);
        }
        return out;
    };
    const auto left = sections(a), right = sections(b);
    std::map<std::string, std::vector<std::string>> by_name;
    for (const auto& [name, lines] : right) by_name[name].insert(by_name[name].end(), lines.begin(), lines.end());
    std::map<std::string, bool> seen;
    std::string out;
    const auto compare = [&](const std::string& name, const std::vector<std::string>& x, const std::vector<std::string>& y) {
        std::map<std::string, int> count;
        for (const std::string& l : x) ++count[l];
        for (const std::string& l : y) --count[l];
        std::string body;
        for (const std::string& l : x) {
            if (count[l] > 0) body += "- " + l + "\n", --count[l];
        }
        for (const std::string& l : y) {
            if (count[l] < 0) body += "+ " + l + "\n", ++count[l];
        }
        if (!body.empty()) out += "@ " + name + "\n" + body;
    };
    std::map<std::string, std::vector<std::string>> joined;
    for (const auto& [name, lines] : left) joined[name].insert(joined[name].end(), lines.begin(), lines.end());
    for (const auto& [name, lines] : left) {
        if (std::exchange(seen[name], true)) continue;
        compare(name, joined[name], by_name[name]);
    }
    for (const auto& [name, lines] : right) {
        if (!std::exchange(seen[name], true)) compare(name, {}, by_name[name]);
    }
    return out;
}

// Which blocks a stage has, of repeated ones the first and the last: "embed, layer 0-2".
std::string blocks_text(const ir::Program& p, const std::vector<ir::BlockInstance>& blocks) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < blocks.size();) {
        size_t end = i + 1;
        while (end < blocks.size() && blocks[end].block == blocks[i].block) ++end;
        std::string part = blocks[i].block;
        if (p.block(part)->count > 1) part += fmt::format(" {}", blocks[i].instance);
        if (end - i > 1) part += fmt::format("-{}", blocks[end - 1].instance);
        parts.push_back(part);
        i = end;
    }
    return fmt::format("{}", fmt::join(parts, ", "));
}

int show_schedule(const compile::Compiled& compiled, bool json) {
    const auto& [cut, table, rows] = compiled.stages;
    if (json) {
        nlohmann::ordered_json stages = nlohmann::ordered_json::array();
        for (size_t s = 0; s < cut.stages.size(); ++s) {
            nlohmann::ordered_json blocks = nlohmann::ordered_json::array();
            for (const ir::BlockInstance& b : cut.stages[s]) {
                const bool one = compiled.programs[0].block(b.block)->count == 1;
                blocks.push_back(one ? b.block : fmt::format("{}[{}]", b.block, b.instance));
            }
            stages.push_back({{"stage", s}, {"rank", cut.rank_of[s]}, {"blocks", blocks}});
        }
        print_json(nlohmann::ordered_json{{"stages", stages}, {"rows", rows_json(table)}});
        return kDone;
    }
    for (size_t s = 0; s < cut.stages.size(); ++s)
        fmt::print("stage {:<3} on pipeline rank {:<3} {}\n", s, cut.rank_of[s],
                   blocks_text(compiled.programs[0], cut.stages[s]));
    if (table.rows.empty()) fmt::print("one stage, no pipeline: its forwards and backwards run microbatch by microbatch\n");
    else fmt::print("{}", schedules::draw(schedules::with_waits(table)));
    return kDone;
}

nlohmann::ordered_json passes_json(const std::vector<compile::PassReport>& passes) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    for (const compile::PassReport& p : passes)
        out.push_back({{"name", p.name},
                       {"time_s", p.time_s},
                       {"changed", p.changed},
                       {"skipped", p.skipped},
                       {"ops", p.after.ops},
                       {"ops_change", p.after.ops - p.before.ops},
                       {"bytes", p.after.bytes},
                       {"bytes_change", p.after.bytes - p.before.bytes},
                       {"flops", p.after.flops},
                       {"flops_change", p.after.flops - p.before.flops},
                       {"arena_bytes", p.after.arena_bytes}});
    return out;
}

void print_passes(const std::vector<compile::PassReport>& passes) {
    for (const compile::PassReport& p : passes) {
        const compile::Work &a = p.before, &b = p.after;
        fmt::print("{:<22} {:>9.3f} ms {:>6} ops {:>+6} {:>11.4g} bytes {:>+11.3g} {:>11.4g} FLOPs {:>+11.3g}  {}\n", p.name,
                   p.time_s * 1e3, b.ops, b.ops - a.ops, b.bytes, b.bytes - a.bytes, b.flops, b.flops - a.flops,
                   p.skipped   ? "switched off"
                   : p.changed ? ""
                               : "unchanged");
    }
}

int show(const ShowArgs& args) {
    const planning::ProgramOptions options{args.schedule ? "assign_stages" : args.after, args.skip, args.passes || args.json};
    planning::require_passes(options);
    const auto compiled_from = [&](const planning::RecipeArgs& source) {
        return planning::program_of(planning::announced(source).recipe, options);
    };
    const auto [machine, compiled] = compiled_from(args.recipe);
    if (args.schedule) return show_schedule(compiled, args.json);
    std::string text = args.passes && !args.json ? "" : planning::text_of(compiled);
    std::string first = "# machine: " + planning::machine_text(machine) + "\n";
    if (!args.against.empty()) {
        planning::RecipeArgs other = args.recipe;
        other.path = args.against;
        const auto [other_machine, other_compiled] = compiled_from(other);
        text = differences(text, planning::text_of(other_compiled));
        if (planning::machine_text(other_machine) != planning::machine_text(machine))
            first += "# machine of the other: " + planning::machine_text(other_machine) + "\n";
    }
    if (args.json) {
        print_json(nlohmann::ordered_json{
            {"machine", planning::machine_json(machine)}, {"passes", passes_json(compiled.passes)}, {"text", text}});
        return kDone;
    }
    fmt::print("{}", first);
    if (args.passes) {
        print_passes(compiled.passes);
        return kDone;
    }
    fmt::print("{}", text);
    return kDone;
}

}  // namespace

Command add_show(CLI::App& app) {
    const auto args = std::make_shared<ShowArgs>();
    CLI::App* command = app.add_subcommand("show", "print the program of a recipe as text");
    add_recipe_flags(*command, args->recipe);
    auto* after_option = command->add_option("--after", args->after, "stop after this pass");
    auto* against_option =
        command->add_option("--against", args->against, "another recipe; print the lines that only one of the two programs has");
    command->add_option(
        "--skip", args->skip,
        "leave out a pass: pack_products, keep_preactivations, float8_products, mark_one_document, pack_attention, fuse_loss, "
        "recompute or overlap; may be given several times");
    auto* passes_option =
        command->add_flag("--passes", args->passes, "print the passes with their times, instead of the program");
    command
        ->add_flag("--schedule", args->schedule,
                   "print the pipeline schedule and the blocks of each stage, instead of the program")
        ->excludes(after_option)
        ->excludes(against_option)
        ->excludes(passes_option);
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep show recipes/demo.toml --after shard");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return show(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
