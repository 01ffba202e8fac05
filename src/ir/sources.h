// Which parameters a tensor of a port of parameters or gradients holds: one, or several of one shape that lie side by side in
// their unit and are read as one matrix (passes/pack_products). The source of the latter names them in the order of their
// bytes, with '+' between them, as in "w1+w3".
#pragma once

#include <string_view>
#include <vector>

#include "ir/program.h"

namespace lockstep::ir {

inline std::vector<std::string_view> sources_of(std::string_view source) {
    std::vector<std::string_view> out;
    std::string_view rest = source;
    for (size_t at = rest.find('+'); at != std::string_view::npos; at = rest.find('+')) {
        out.push_back(rest.substr(0, at));
        rest.remove_prefix(at + 1);
    }
    out.push_back(rest);
    return out;
}
inline std::vector<std::string_view> sources_of(const Tensor& tensor) { return sources_of(tensor.source); }

}  // namespace lockstep::ir
