// The form of `--help`: lines end between words, at the terminal's width.
#pragma once

#include <memory>

namespace CLI {
class FormatterBase;
}

namespace lockstep::cli {

std::shared_ptr<CLI::FormatterBase> help_formatter(int columns);
// Columns of the terminal that standard output is; 80 where it is none.
int output_columns();

}  // namespace lockstep::cli
