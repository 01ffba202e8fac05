// Ways to look at a program's text in the tests of passes.
#pragma once

#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::testing {

// The ops of a routine as printed, without notes and kernels' workspaces, in order.
std::vector<std::string> op_lines(const ir::Program& program, const std::string& routine);
// The op that makes `result`, as op_lines prints it; empty where none does.
std::string op_line(const ir::Program& program, const std::string& routine, const std::string& result);
// "all_gather(n1) over tp", in order; of several operands the first.
std::vector<std::string> collectives(const ir::Program& program, const std::string& routine);
// "f32[batch/dp_shard, seq] partial sum tp" of a tensor.
std::string type_of(const ir::Program& program, const std::string& routine, const std::string& tensor);
// The calls of an entry: "layer.forward[1]@0", chunks as "head.loss[0]@0#1".
std::vector<std::string> calls(const ir::Program& program, ir::EntryKind entry);
// The first position at or behind `from` where the call stands, or -1.
int position(const ir::Program& program, ir::EntryKind entry, const std::string& call, int from = 0);

std::vector<std::string> split_words(const std::string& text);

}  // namespace lockstep::testing
