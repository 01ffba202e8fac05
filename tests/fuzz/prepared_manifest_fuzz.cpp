// The manifest of a folder of prepared data.
#include "data/prepared_data.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    return fuzz::accepts_or_refuses([&] {
        const fuzz::MemoryFile file(fuzz::text_of(data, size));
        data::Manifest::load(file.path());
    });
}
