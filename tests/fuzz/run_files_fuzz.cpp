// The metrics of a run, as `lockstep report` reads them.
#include "tests/fuzz/command.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    static const fuzz::MemoryFolder folder;
    folder.write("metrics.jsonl", fuzz::text_of(data, size));
    folder.write("recipe.toml", "[model]\nname = \"llama3\"\n");
    fuzz::expect_done_or_refused({"report", folder.path()});
    return 0;
}
