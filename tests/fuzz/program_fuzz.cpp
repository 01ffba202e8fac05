// Program text, and the verifier behind it.
#include "ir/text.h"
#include "ops/verify.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    return fuzz::accepts_or_refuses([&] {
        const ir::Program program = ir::parse(fuzz::text_of(data, size));
        ir::print(program);
        ops::verify(program);
    });
}
