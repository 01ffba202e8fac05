// HTML pages that need no network: the shell and scripts of src/report/page, Chart.js (third_party/chart.js) and the data are
// all in them. Text of the data is only ever shown as text.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::report {

enum class Page { Run, Compare, Plan, Tune };

// Of a run, `data` is what report/run_files.h reads:
//   folder, made (time), every (n: the metrics are every n-th logged step), recipe (TOML of the last start)
//   metrics: {step, loss, heldout, grad_norm, lr, tokens, tokens_per_s, step_time, mfu, resident}, arrays of equal length;
//     numbers or null; resident in GiB. And heldout_of: by data set of a mixture [[step, loss]]
//   float8: report/float8_shares.h, or null
//   events: lines of events.jsonl; checkpoints: [{step, folder, bytes, has_optimizer}]; samples: lines of samples.jsonl
// Of several runs: report/compare.h. Of a plan and a search: cli/plan_page.h, cli/tune_page.h.
std::string page_of(Page page, const nlohmann::ordered_json& data);

}  // namespace lockstep::report
