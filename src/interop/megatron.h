// A Megatron-LM or Megatron-DeepSpeed run as a recipe: the script that starts it, or its arguments as a text file. Facts about
// arguments and their defaults are those of Megatron-LM's arguments.py (core_r0.15).
#pragma once

#include <string>

#include "interop/read_options.h"
#include "interop/reading.h"

namespace lockstep::interop {

// Does the text hold arguments, and is no TOML?
bool is_megatron(const std::string& text);
// UserError recipe.script, recipe.argument_*, recipe.unknown_argument, recipe.cannot_map, recipe.contradiction.
Reading read_megatron(const std::string& text, const std::string& path, const ReadOptions& options = {});

}  // namespace lockstep::interop
