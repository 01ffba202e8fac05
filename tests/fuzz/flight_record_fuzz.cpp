// A flight record, as `lockstep report` prints it.
#include "cli/commands.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    static const fuzz::MemoryFolder folder;
    folder.write("rank.json", fuzz::text_of(data, size));
    cli::ReportArgs args;
    args.folder = folder.path();
    for (const bool json : {false, true}) {
        args.json = json;
        fuzz::accepts_or_refuses([&] { cli::report(args); });
    }
    return 0;
}
