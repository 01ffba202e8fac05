// The manifest of a checkpoint.
#include "checkpoint/folder.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    static const fuzz::MemoryFolder folder;
    folder.write("manifest.json", fuzz::text_of(data, size));
    return fuzz::accepts_or_refuses([&] { checkpoint::read_manifest(folder.path()); });
}
