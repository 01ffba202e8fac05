// A file of runtime.products. What is accepted prints, and what was printed is accepted.
#include "kernels/cuda/planned_products.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_products("products", [](std::string_view bytes) {
    const std::string printed = print(kernels::cuda::parse_chosen_products(std::string(bytes), "input"));
    try {
        kernels::cuda::parse_chosen_products(printed, "printed");
    } catch (const UserError& e) {
        throw InternalError(e.what());
    }
});

}  // namespace
