// What a run has left in its dump folder, put together for `lockstep report`. Lines that are damaged are left out.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace lockstep::report {

// Does the folder hold metrics.jsonl or events.jsonl?
bool is_run(const std::string& folder);
// As report/page.h describes it. A step that was done again after a resume counts as it was done last.
nlohmann::ordered_json read_run(const std::string& folder);

// Is the job that holds the folder (base/output_file.h, FolderLock) still there, as far as this host can know?
bool may_still_run(const std::string& folder);

// The lines of a file that has one a step; a step that was done again counts as it was done last. None without the file. What
// `is_line` does not take, a warning names with its file and line.
std::vector<nlohmann::ordered_json> step_lines(const std::string& file,
                                               const std::function<bool(const nlohmann::ordered_json& line)>& is_line);

// metrics.jsonl by column, a value a step; NaN where a line lacks it. `path`: the file or its folder. UserError
// metrics.cannot_read.
std::map<std::string, std::vector<double>> metrics_columns(const std::string& path);

// {folder, status, steps, of_steps, final_loss, best_heldout_loss, best_heldout_step, last_heldout_loss_of
//  {data set: loss} of a mixture, tokens_seen, tokens_per_s, step_time_s,
//  mfu_percent, planned_step_time_s, bytes_planned, bytes_resident (of all processes, once the run has ended),
//  bytes_resident_first_process, starts, not_counted, checkpoints}; null where nothing is known.
nlohmann::ordered_json summary_of(const nlohmann::ordered_json& run);
// Has the last start come to its end?
bool has_end(const nlohmann::ordered_json& summary);
// "step 120 of 1000  loss 2.3456  12.3k tokens/s"
std::string progress_text(const nlohmann::ordered_json& summary);
// All of it for a person.
std::string summary_text(const nlohmann::ordered_json& summary);

// The loss over the steps as an SVG picture, of a light and a dark page.
std::string loss_picture(const nlohmann::ordered_json& run);
// The training loss of several over each other.
std::string loss_picture(const std::vector<nlohmann::ordered_json>& runs);

}  // namespace lockstep::report
