// A run as one HTML page that needs no network: the page of src/report/page, Chart.js (third_party/chart.js) and the data are
// all in it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace lockstep::report {

// `run`, as report/run_files.h reads it:
//   folder, made (time), every (n: the metrics are every n-th logged step), recipe (TOML of the last start)
//   metrics: {step, loss, heldout, grad_norm, lr, tokens, tokens_per_s, step_time, mfu, resident}, arrays of equal length;
//     numbers or null; resident in GiB. And heldout_of: by data set of a mixture [[step, loss]]
//   events: lines of events.jsonl; checkpoints: [{step, folder, bytes, has_optimizer}]; samples: lines of samples.jsonl
std::string run_page(const nlohmann::ordered_json& run);

}  // namespace lockstep::report
