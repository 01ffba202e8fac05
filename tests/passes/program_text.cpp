#include "tests/passes/program_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "ir/text.h"

namespace lockstep::testing {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> out;
    for (std::string line; std::getline(stream, line);) out.push_back(line);
    return out;
}

std::string printed(const ir::Program& program, const std::string& routine) {
    const ir::Routine* r = program.routine(routine);
    return r ? ir::print(program, *r) : "";
}

}  // namespace

std::vector<std::string> op_lines(const ir::Program& program, const std::string& routine) {
    std::vector<std::string> out;
    for (const std::string& line : lines_of(printed(program, routine))) {
        if (!line.starts_with("  ") || line.starts_with("   ") || line.starts_with("  port ") || line.starts_with("  dims "))
            continue;
        std::string op = line.substr(2, line.find("  # ") - 2);
        if (const size_t at = op.find(" workspace "); at != std::string::npos) op.resize(at);
        out.push_back(op);
    }
    return out;
}

std::string op_line(const ir::Program& program, const std::string& routine, const std::string& result) {
    for (const std::string& line : op_lines(program, routine)) {
        for (std::string made = line.substr(0, line.find(" = ")); !made.empty();) {
            const size_t end = std::min(made.find("; "), made.size());
            std::string name = made.substr(0, std::min(made.find(':'), end));
            if (name.starts_with("+")) name.erase(0, 1);
            if (name == result) return line;
            made.erase(0, std::min(end + 2, made.size()));
        }
    }
    return "";
}

std::vector<std::string> collectives(const ir::Program& program, const std::string& routine) {
    std::vector<std::string> out;
    const ir::Routine& r = *program.routine(routine);
    for (const ir::Op& op : r.ops) {
        if (!mesh::collective_named(op.kind)) continue;
        out.push_back(fmt::format("{}({}) over {}", op.kind, r.tensors[op.in[0]].name, program.mesh.text(op.group)));
    }
    return out;
}

std::string type_of(const ir::Program& program, const std::string& routine, const std::string& tensor) {
    const std::string key = tensor + ": ";
    for (const std::string& line : lines_of(printed(program, routine))) {
        size_t at = line.find(key);
        if (at == std::string::npos || (at > 0 && line[at - 1] != ' ')) continue;
        std::string type = line.substr(at + key.size());
        for (const char* end : {" from ", " = ", ";", " &", " view "}) type = type.substr(0, type.find(end));
        return type;
    }
    return "";
}

std::vector<std::string> calls(const ir::Program& program, ir::EntryKind entry) {
    std::vector<std::string> out;
    for (const ir::Call& c : program.entry(entry)->calls) {
        const ir::Routine& r = program.routines[c.routine];
        out.push_back(
            fmt::format("{}[{}]@{}{}", r.name, c.instance, c.microbatch, r.chunks > 1 ? fmt::format("#{}", c.chunk) : ""));
    }
    return out;
}

int position(const ir::Program& program, ir::EntryKind entry, const std::string& call, int from) {
    const std::vector<std::string> all = calls(program, entry);
    const auto at = std::find(all.begin() + from, all.end(), call);
    return at == all.end() ? -1 : static_cast<int>(at - all.begin());
}

std::vector<std::string> split_words(const std::string& text) {
    std::istringstream stream(text);
    std::vector<std::string> out;
    for (std::string word; stream >> word;) out.push_back(word);
    return out;
}

}  // namespace lockstep::testing
