// What a file is that was given where another one belongs: a recipe as --cluster, a cluster file as a recipe.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace lockstep::compile {

inline constexpr const char *kRecipeKind = "a recipe", *kClusterKind = "a cluster file", *kStackKind = "a stack's file";

// One of these, or "a DeepSpeed configuration" and the like; empty: it cannot be known.
std::string kind_of_file(std::string_view text);

// The error, and where the text is of another kind than `wanted`, what it is. `origin`: its name in messages.
UserError with_kind(const UserError& error, std::string_view text, const std::string& origin, const char* wanted);

}  // namespace lockstep::compile
