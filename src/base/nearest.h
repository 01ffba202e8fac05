// The known name that a misspelt one probably meant: for keys, words, subcommands and flags.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

// Levenshtein distance: letters to insert, remove or change.
size_t edit_distance(std::string_view a, std::string_view b);

// The known name with the least distance; `known` is not empty.
const std::string& nearest(std::string_view word, const std::vector<std::string>& known);
// The same, or empty where even that one has little in common with the word.
std::string nearest_if_close(std::string_view word, const std::vector<std::string>& known);

// For dotted keys: what comes after the last dot counts most, and there words in another order or left out count little.
// "lr" finds "optimizer.lr", "lr_scheduler.lr_min" finds "lr_scheduler.min_lr_factor".
const std::string& nearest_key(std::string_view key, const std::vector<std::string>& known);

}  // namespace lockstep
