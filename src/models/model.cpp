#include "models/model.h"

namespace lockstep::models {

const std::vector<ModelSpec>& all_models() {
    static const std::vector<ModelSpec> models = {llama3(), gpt2()};
    return models;
}

}  // namespace lockstep::models
