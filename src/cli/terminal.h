// Results on a terminal: lines that end between words at its width, and colors. Into a file or a pipe results go as they are.
#pragma once

#include <functional>
#include <string>

namespace lockstep::cli {

enum class Color { Green, Red };
// `text` in a color where standard output is a terminal and NO_COLOR is not set.
std::string colored(const std::string& text, Color color);

// What `print` writes to standard output, with lines that end between words at the terminal's width.
void at_terminal_width(const std::function<void()>& print);

// The first line of a result: what it comes to. Green or red.
void print_verdict(const std::string& text, bool is_good);

}  // namespace lockstep::cli
