// A flight record, as `lockstep report` reads it.
#include "tests/fuzz/command.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    static const fuzz::MemoryFolder folder;
    folder.write("rank0.json", fuzz::text_of(data, size));
    fuzz::expect_done_or_refused({"report", folder.path()});
    fuzz::expect_done_or_refused({"report", folder.path(), "--json"});
    return 0;
}
