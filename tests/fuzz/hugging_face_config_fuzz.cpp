// The config.json of a folder of transformers. What is accepted has tensors, and a config of its own that is accepted.
#include "models/hugging_face.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lockstep;
    const nlohmann::json config = nlohmann::json::parse(fuzz::text_of(data, size), nullptr, false);
    if (config.is_discarded()) return 0;
    return fuzz::accepts_or_refuses([&] {
        const models::HuggingFaceModel model = models::from_hugging_face(config, "input");
        if (std::get<int64_t>(model.shape.at("n_layers")) > 1000) return;
        models::stored_tensors(model);
        models::from_hugging_face(models::to_hugging_face(model), "written");
    });
}
