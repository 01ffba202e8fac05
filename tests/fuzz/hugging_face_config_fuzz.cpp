// The config.json of a folder of transformers. What is accepted has tensors, and a config of its own that is accepted.
#include "models/hugging_face_config.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

const fuzz::Declare declare_hugging_face_config("hugging_face_config", [](std::string_view bytes) {
    const nlohmann::json config = nlohmann::json::parse(bytes, nullptr, false);
    if (config.is_discarded()) return;
    const models::HuggingFaceModel model = models::from_hugging_face(config, "input");
    if (std::get<int64_t>(model.shape.at("n_layers")) > 1000) return;
    models::stored_tensors(model);
    models::from_hugging_face(models::to_hugging_face(model), "written");
});

}  // namespace
