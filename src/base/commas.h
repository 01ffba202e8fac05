// Words between commas, as flags and texts of recipes have lists. Blanks stay; a comma at the end begins no word.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace lockstep {

inline std::vector<std::string> split_at_commas(const std::string& text) {
    std::vector<std::string> words;
    std::istringstream in(text);
    for (std::string word; std::getline(in, word, ',');) words.push_back(word);
    return words;
}

}  // namespace lockstep
