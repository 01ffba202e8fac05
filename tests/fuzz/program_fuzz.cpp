// Program text, and the verifier behind it.
#include "ir/text.h"
#include "ops/verify.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_program("program", [](std::string_view bytes) {
    const ir::Program program = ir::parse(bytes);
    ir::print(program);
    ops::verify(program);
});

}  // namespace
