// libFuzzer's entry: the one target that this program was linked with.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    fuzz::accepts_or_refuses([&] { fuzz::targets().at(0).parse({reinterpret_cast<const char*>(data), size}); });
    return 0;
}
