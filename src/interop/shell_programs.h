// Programs that scripts call to rewrite text, computed here: basename, cut, dirname, expr, grep, head, sed, seq, sort, tail,
// tr, wc and the like. Each does what GNU's does for the options that it knows, and nothing for another.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::interop {

struct ProgramInputs {
    std::vector<std::string> arguments;
    std::optional<std::string> input;  // nothing: not known
    std::function<std::optional<std::string>(const std::string& name)> file;
};

struct ProgramOutput {
    std::string text = {};
    int status = 0;
    std::map<std::string, std::string> files = {};  // what sed -i makes of them
};

// Is it one of these?
bool is_shell_program(const std::string& name);
// May a part of its input or of its words be a value that is not known, which it leaves as it is?
bool keeps_unknown(const std::string& name);
// Nothing: an option or an input that is not known here, or a size that no script needs.
std::optional<ProgramOutput> run_program(const std::string& name, const ProgramInputs& in);

// Each of one name.
std::optional<ProgramOutput> run_sed(const ProgramInputs& in);
std::optional<ProgramOutput> run_expr(const ProgramInputs& in);

// Lines without their ends.
std::vector<std::string> lines_of(const std::string& text);

}  // namespace lockstep::interop
