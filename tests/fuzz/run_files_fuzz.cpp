// The files of a run, as `lockstep report` reads them for text, page and picture.
#include <nlohmann/json.hpp>

#include "report/page.h"
#include "report/run_files.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_run_files("run_files", [](std::string_view bytes) {
    static const fuzz::MemoryFolder folder;
    folder.write_all(bytes, {"metrics.jsonl", "events.jsonl", "samples.jsonl", "recipe.toml"});
    const nlohmann::ordered_json run = report::read_run(folder.path()), summary = report::summary_of(run);
    report::page_of(report::Page::Run, run);
    report::loss_picture(run);
    report::summary_text(summary);
    summary.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
});

}  // namespace
