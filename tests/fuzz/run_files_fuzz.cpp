// The files of a run, as `lockstep report` reads them for text, page and picture.
#include <nlohmann/json.hpp>

#include "job/run_files.h"
#include "telemetry/run_page.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare target("run_files", [](std::string_view bytes) {
    static const fuzz::MemoryFolder folder;
    folder.write_all(bytes, {"metrics.jsonl", "events.jsonl", "samples.jsonl", "recipe.toml"});
    const nlohmann::ordered_json run = job::read_run(folder.path()), summary = job::summary_of(run);
    telemetry::run_page(run);
    job::loss_picture(run);
    job::summary_text(summary);
    summary.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
});

}  // namespace
