// A folder of transformers: the first byte says whether the rest is its config.json or its index.
#include "checkpoint/hugging_face_folder.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_hugging_face_folder("hugging_face_folder", [](std::string_view bytes) {
    if (bytes.empty()) return;
    static const fuzz::MemoryFolder folder;
    const bool is_config = bytes[0] == 'c';
    const std::string_view rest = bytes.substr(1);
    folder.write(checkpoint::kConfigFile, is_config ? rest : R"({"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 4, "rope_scaling": null})");
    folder.write(checkpoint::kIndexFile, is_config ? R"({"weight_map": {"a": "one.safetensors"}})" : rest);
    constexpr std::string_view kHeader = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
    const uint64_t header_bytes = kHeader.size();
    folder.write("one.safetensors",
                 std::string(reinterpret_cast<const char*>(&header_bytes), 8) + std::string(kHeader) + std::string(4, '\0'));
    checkpoint::HuggingFaceFolder(folder.path());
});

}  // namespace
