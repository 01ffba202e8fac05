#include "runtime/state_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/elements.h"
#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "runtime/snapshot.h"

namespace lockstep::runtime {

StateTensors::StateTensors(Ranks& ranks, StateBytes bytes) {
    const std::vector<ir::Program>& programs = ranks.programs();
    for (StateKind kind : kSavedStates) {
        const std::string type(file_type(place_of(programs[0].units.front(), kind).type));
        for_each_parameter(programs, [&](const ir::Parameter& param, int64_t i) {
            const std::string name = prefix_of(kind) + global_name(param, i);
            names_[kind].push_back(name);
            tensors_[name] = {{name, type, global_shape(param)}, {}};
        });
        for (const auto& e : ranks.here()) add_parts(*e, kind, bytes);
    }
    for (auto& [name, tensor] : tensors_)
        std::sort(tensor.parts.begin(), tensor.parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
}

void StateTensors::add_parts(Executor& executor, StateKind kind, StateBytes bytes) {
    const ir::Program& p = executor.program();
    for_each_state_run(executor, kind, bytes, [&](const Run& run, const char* data, Dtype) {
        if (!is_owner(p, *run.param, place_of(*run.unit, kind).split, executor.rank())) return;
        tensors_.find(prefix_of(kind) + global_name(*run.param, run.instance))
            ->second.parts.push_back({run.global_begin, run.count, data});
    });
}

std::vector<checkpoint::TensorSpec> StateTensors::specs(StateKind kind) const {
    std::vector<checkpoint::TensorSpec> out;
    for (const std::string& name : names_.at(kind)) out.push_back(spec(name));
    return out;
}

void StateTensors::for_each_here(const std::string& name, int64_t begin, int64_t count, checkpoint::OfStretch f) const {
    const std::vector<Part>& parts = tensors_.find(name)->second.parts;
    auto part = std::upper_bound(parts.begin(), parts.end(), begin, [](int64_t at, const Part& p) { return at < p.begin; });
    if (part != parts.begin()) --part;
    for (; part != parts.end() && part->begin < begin + count; ++part) {
        const int64_t from = std::max(begin, part->begin), to = std::min(begin + count, part->begin + part->count);
        if (from < to) f(from, to - from);
    }
}

void StateTensors::read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor&) const {
    const Tensor& tensor = tensors_.find(name)->second;
    const std::vector<Part>& parts = tensor.parts;
    const int64_t element_bytes = checkpoint::dtype_bytes(tensor.spec.dtype);
    auto* to = static_cast<char*>(data);
    auto part = std::upper_bound(parts.begin(), parts.end(), begin, [](int64_t at, const Part& p) { return at < p.begin; });
    ensure(part != parts.begin(), fmt::format("state_tensors: no rank here holds element {} of {}", begin, name));
    --part;
    for (const int64_t end = begin + count; begin < end; ++part) {
        ensure(part != parts.end() && part->begin <= begin && begin < part->begin + part->count,
               fmt::format("state_tensors: no rank here holds element {} of {}", begin, name));
        const int64_t n = std::min(end, part->begin + part->count) - begin;
        std::memcpy(to, part->data + (begin - part->begin) * element_bytes, static_cast<size_t>(n * element_bytes));
        begin += n;
        to += n * element_bytes;
    }
}

}  // namespace lockstep::runtime
