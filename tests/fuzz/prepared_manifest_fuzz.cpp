// The manifest of a folder of prepared data.
#include "data/prepared_data.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_prepared_manifest("prepared_manifest", [](std::string_view bytes) {
    const fuzz::MemoryFile file(bytes);
    data::Manifest::load(file.path());
});

}  // namespace
