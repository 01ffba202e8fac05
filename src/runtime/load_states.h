// A trainer's states as a checkpoint's global tensors under Hugging Face names: model.safetensors holds the weights,
// optimizer.safetensors what the optimizer keeps, as exp_avg.NAME and so on. Every rank reads its own runs of elements, so a
// checkpoint belongs to no layout. Writing: saver.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/error.h"
#include "checkpoint/folder.h"
#include "runtime/trainer.h"

namespace lockstep::runtime {

// A whole checkpoint, but not of this run.
inline constexpr ErrorId kOtherModel{"checkpoint.other_model"};
inline constexpr ErrorId kOtherOptimizer{"checkpoint.other_optimizer"};

// What is taken from a checkpoint apart from the weights; what is left out stays as it is.
struct LoadParts {
    bool optimizer = true;    // moments and the number of updates
    bool dataloader = true;   // where in the data training is
    bool train_state = true;  // the step, and with it the learning rate
};
// A model may have a larger vocabulary than the weights that it begins with: what they lack stays as it is.
enum class Vocabulary { Same, MayBeLarger };

// Every process of the trainer's process group loads at the same time, and all get the first error of any. UserError
// checkpoint.* where a file is damaged or of another model; the trainer may then load another one.
checkpoint::Manifest load(Trainer& trainer, const std::string& folder, const LoadParts& parts = {},
                          Vocabulary vocabulary = Vocabulary::Same);
// Only the weights, into ranks that run any program of the same model: from a checkpoint with this manifest, from a folder of
// transformers with or without one, or from another source, which messages call `origin`.
void load_weights(Ranks& ranks, const std::string& folder, const checkpoint::Manifest& manifest);
void load_weights(Ranks& ranks, const checkpoint::TensorSource& source, const std::string& origin,
                  Vocabulary vocabulary = Vocabulary::Same);
// A checkpoint's weights under the names here, whether its own files or transformers' (checkpoint.last_save_in_hf) hold them.
std::unique_ptr<checkpoint::TensorSource> open_weights(const std::string& folder, const checkpoint::Manifest& manifest);

// A hash of the programs' text: equal hashes compute equal bits on one machine.
std::string program_hash(const std::vector<ir::Program>& programs);

}  // namespace lockstep::runtime
