// A recipe from a file in any of the formats that are known: Lockstep's and torchtitan's TOML, the JSON that torchtitan prints,
// a model of transformers, a Megatron-LM run, a DeepSpeed configuration. What a file is, its content says, not its name.
#pragma once

#include <string>

#include "interop/read_options.h"
#include "interop/reading.h"

namespace lockstep::interop {

// `path`: a file, or a folder of transformers. UserError recipe.unreadable, and of the format's reader.
Reading read(const std::string& path, const ReadOptions& options = {});

}  // namespace lockstep::interop
