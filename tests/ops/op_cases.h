// One table of op cases: what an op's operands look like. Kernels are compared on it, derivatives checked by differences on it.
#pragma once

#include <map>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "ops/builder.h"

namespace lockstep::testing {

// Places: of tokens in a cache, all different; -1 for some, which are written nowhere.
// Counted: positions of one document; its number is Zero. Later: positions behind all of those.
// E4M3 and E5M2: float8 of these types; E8M0: powers of two as scales. Dims called .g have an element for some of the dim before the dot (ir::Dim::of).
// LogSums and Outputs: of attention so far, of which some rows have seen nothing; NoLogSums and NoOutputs: none has.
enum class Fill {
    Normal,
    Positive,
    Ids,
    Targets,
    Positions,
    Counted,
    Later,
    Places,
    Documents,
    Zero,
    Noise,
    LogSums,
    Outputs,
    NoLogSums,
    NoOutputs,
    Control,
    Quantized,
    E4M3,
    E5M2,
    E8M0,
    Count
};

struct Operand {
    std::string dims;  // names, blank between them
    Fill fill = Fill::Normal;
    bool differentiable = true;
};

struct OpResult {
    std::string dims;
    int operand = -1;           // the result overwrites this operand
    bool has_cotangent = true;  // backward may be given one
    Dtype dtype = Dtype::F32;
};

struct OpCase {
    std::string name, kind;
    std::vector<Operand> in;
    std::vector<OpResult> out;
    ir::Attrs attrs;
    std::string split;                          // this dim is split over two ranks
    std::map<std::string, int64_t> sizes = {};  // of dims that are not drawn: a large case, which tests run a few times
};

inline void PrintTo(const OpCase& c, std::ostream* stream) { *stream << c.kind << " " << c.name; }

const std::vector<OpCase>& op_cases();

// Only what has no tokens, gradients of parameters and scalars, is ever added into a port.
inline bool may_accumulate(const std::string& dims) {
    return dims.find("seq") == std::string::npos && dims.find("int") == std::string::npos;
}

// A routine with one op, in0, in1, .. its operands, and sizes drawn at random; results in the ports out0, out1, .. Results that
// may not accumulate are written in any case.
enum class Results { Written, Accumulated };
ir::Routine make_routine(const OpCase& c, const mesh::Mesh& mesh, std::mt19937& random, Results results);

// Splits the case's dim in every tensor, as make_routine has done.
void place(const OpCase& c, const mesh::Mesh& mesh, ir::Routine& routine);

// Values for operand `position`, as its Fill says.
std::vector<double> values_for(const OpCase& c, const ir::Routine& routine, const mesh::Mesh& mesh, size_t position,
                               std::mt19937& random);

}  // namespace lockstep::testing
