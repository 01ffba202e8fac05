// Writing and reading a trainer's states as a checkpoint of global tensors under Hugging Face names: model.safetensors holds the
// weights, optimizer.safetensors the moments as exp_avg.NAME and exp_avg_sq.NAME. Every rank writes and reads its own runs of
// elements, so a checkpoint belongs to no layout.
#pragma once

#include <string>

#include "checkpoint/folder.h"
#include "runtime/trainer.h"

namespace lockstep::runtime {

// Returns the checkpoint's folder. UserError checkpoint.* where it cannot be written; nothing half written remains.
std::string save(Trainer& trainer, const compile::Recipe& recipe, const std::string& root);

// Into the trainer's states and progress. UserError checkpoint.* where a file is damaged or a tensor has another shape.
checkpoint::Manifest load(Trainer& trainer, const std::string& folder);

// The weights alone, into ranks that run any program of the same model.
void load_weights(Ranks& ranks, const std::string& folder);

// A hash of the program's text: equal hashes compute equal bits on one machine.
std::string program_hash(const ir::Program& program);

}  // namespace lockstep::runtime
