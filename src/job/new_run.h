// The start of a first run: data prepared from texts, this machine measured, and a recipe of a model that learns something from
// them here in the time that is given. Everything is written into a new folder.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/progress.h"

namespace lockstep::job {

struct NewRunOptions {
    std::string folder;              // to be made
    std::vector<std::string> texts;  // files and folders, as `data prepare` takes them
    std::string field = "text";      // of JSON Lines and Parquet
    std::string model = "gpt2";      // or llama3
    std::string cluster;             // a file that describes this machine; empty: it is measured
    double minutes = 10;             // of training
    data::Progress preparing = {};
    std::function<void(const std::string& what, double share_done)> measuring = {};
};

struct NewRun {
    std::string recipe, data, machine, dump_folder;  // paths
    std::string model;                               // its name
    int64_t dim = 0, layers = 0, heads = 0, parameters = 0;
    int vocabulary = 0;
    int64_t train_tokens = 0, ranks = 0, steps = 0, tokens_per_step = 0;
    double step_s = 0;  // planned
    double epochs() const { return static_cast<double>(steps * tokens_per_step) / static_cast<double>(train_tokens); }
    double minutes() const { return static_cast<double>(steps) * step_s / 60; }
};

// UserError new.exists, new.too_little_text, new.not_this_machine, and those of data::prepare, cluster.* and file.cannot_write.
NewRun new_run(const NewRunOptions& options);

}  // namespace lockstep::job
