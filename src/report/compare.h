// Runs next to each other, for `lockstep report A B C`: what became of each, and the keys in which their recipes differ.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::report {

// {runs: [summary_of, ...], keys: [{key, values: [text or null, one a run]}], unread: [folder, ...]}. Of two recipes every key
// that acts is compared, with its default where it is not set; not job.dump_folder, which is the run's name. unread: runs whose
// recipe this version cannot read, which have null everywhere.
nlohmann::ordered_json comparison_of(const std::vector<nlohmann::ordered_json>& runs);
// The same for a person.
std::string comparison_text(const nlohmann::ordered_json& comparison);
// The same with the metrics of each run, for a page (Page::Compare).
nlohmann::ordered_json comparison_page(const std::vector<nlohmann::ordered_json>& runs);

}  // namespace lockstep::report
