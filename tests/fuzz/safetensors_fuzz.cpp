// A safetensors file, its header and the ends of its tensors.
#include <vector>

#include "checkpoint/safetensors.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_safetensors("safetensors", [](std::string_view bytes) {
    const fuzz::MemoryFile file(bytes);
    const checkpoint::SafetensorsReader reader(file.path());
    for (const checkpoint::TensorEntry& t : reader.tensors()) {
        if (t.elements == 0) continue;
        std::vector<char> element(static_cast<size_t>(checkpoint::dtype_bytes(t.spec.dtype)));
        reader.read(t.spec.name, 0, 1, element.data());
        reader.read(t.spec.name, t.elements - 1, 1, element.data());
    }
});

}  // namespace
