#include "job/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/build_info.h"
#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "compile/effective.h"
#include "compile/layout.h"
#include "data/prepared_data.h"
#include "kernels/cpu/isa.h"
#include "runtime/load_states.h"

namespace lockstep::job {
namespace {

using Json = nlohmann::json;

const std::string& value_in(const Facts& facts, const std::string& name) {
    static const std::string absent = "(absent)";
    const auto it = std::find_if(facts.begin(), facts.end(), [&](const auto& fact) { return fact.first == name; });
    return it == facts.end() ? absent : it->second;
}

}  // namespace

// All of the manifest but its sources: two folders with the same tokens agree, whatever files the text came from.
void add_data(Facts& facts, const std::string& folder) {
    const std::filesystem::path file = std::filesystem::path(folder) / data::kManifestFile;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) {
        facts.emplace_back(file.string(), "(not there)");
        return;
    }
    Json manifest = json_or_discarded<Json>(read_text_file(file, Pipes::Refused).text);
    if (!manifest.is_object()) {
        facts.emplace_back(file.string(), "(damaged)");
        return;
    }
    manifest.erase("sources");
    const Json flat = manifest.flatten();
    for (const auto& [path, value] : flat.items()) facts.emplace_back(file.string() + path, json_text(value));
}

std::string build_text() {
    const BuildInfo& b = build_info();
    const bool exact = !b.commit.starts_with("unknown") && !b.commit.ends_with("-dirty");
    const std::string program = exact ? "" : ", program " + hex_checksum(read_text_file("/proc/self/exe").text);
    return fmt::format("{} ({}, {}{})", b.version, b.commit, b.compiler, program);
}

Facts facts_of(const compile::Recipe& recipe) {
    Facts facts = compile::effective(recipe);
    const compile::Config config = compile::values_of(recipe);
    for (const auto* folders : {&config.training.dataset_path, &config.validation.dataset_path}) {
        if (config.training.dataset == compile::Dataset::Synthetic) break;
        for (const std::string& folder : *folders) add_data(facts, folder);
    }
    if (config.runtime.kernels == compile::Kernels::Cpu) facts.emplace_back(kInstructionSet, kernels::cpu::instruction_sets());
    return facts;
}

std::optional<Disagreement> disagreement(const std::vector<Facts>& of_processes) {
    for (size_t process = 1; process < of_processes.size(); ++process) {
        const Facts &first = of_processes[0], &other = of_processes[process];
        if (first == other) continue;
        for (const Facts* facts : {&first, &other}) {
            for (const auto& [name, value] : *facts) {
                const std::string &a = value_in(first, name), &b = value_in(other, name);
                if (a != b) return Disagreement{name, a, b, process};
            }
        }
    }
    return std::nullopt;
}

void require_agreement(const Facts& own, comm::ProcessGroup& group, int64_t ranks) {
    if (group.is_alone()) return;
    const std::string text = json_text(Json(own));
    if (dissenter(group.exchange(hex_checksum(text))) == 0) return;
    std::vector<Facts> all;
    for (const std::string& theirs : group.exchange(text)) all.push_back(parse_json<Json>(theirs).get<Facts>());
    const auto found = disagreement(all);
    ensure(found.has_value(), "require_agreement: texts differ, facts do not");
    const int64_t each = std::max<int64_t>(1, ranks / group.processes());
    const std::string who = ranks > 0 ? "rank" : "process";
    const char* advice = found->name == kInstructionSet
                             ? "their kernels compute other bits; set runtime.instruction_set to one that all machines have"
                         : found->name == kBuild ? "install one build on all hosts of the job"
                                                 : "all processes of a job must have the same recipe, flags and data";
    throw UserError("job.ranks_disagree", found->name == kInstructionSet ? "runtime.instruction_set" : found->name,
                    fmt::format("{} is {} on {} 0, but {} on {} {}: {}", found->name, found->first, who, found->other, who,
                                static_cast<int64_t>(found->process) * each, advice));
}

void require_same_job(const compile::Recipe& recipe, const Facts& flags, comm::ProcessGroup& group) {
    if (group.is_alone()) return;
    Facts facts = facts_of(recipe);
    facts.insert(facts.end(), flags.begin(), flags.end());
    require_agreement(facts, group, compile::layout_of(compile::config_of(recipe)).ranks);
}

size_t dissenter(const std::vector<std::string>& said) {
    const auto other = std::find_if(said.begin(), said.end(), [&](const std::string& s) { return s != said[0]; });
    return other == said.end() ? 0 : static_cast<size_t>(other - said.begin());
}

void require_same_programs(const compile::Compiled& compiled, comm::ProcessGroup& group) {
    const std::vector<std::string> hashes = group.exchange(group.is_alone() ? "" : runtime::program_hash(compiled.programs));
    const size_t other = dissenter(hashes);
    if (other == 0) return;
    const int64_t rank = static_cast<int64_t>(other) * std::max<int64_t>(1, compiled.layout.ranks / group.processes());
    throw UserError(
        "job.other_program", "cluster.file",
        fmt::format("rank {} has compiled another program than rank 0 from the same recipe: a file that the recipe names "
                    "(cluster.file, parallelism.pipeline_parallel_schedule_csv) has other contents where it runs; "
                    "give all hosts the same files",
                    rank));
}

}  // namespace lockstep::job
