#include "runtime/state_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/elements.h"
#include "base/error.h"
#include "checkpoint/folder.h"
#include "checkpoint/safetensors.h"

namespace lockstep::runtime {

StateTensors::StateTensors(Ranks& ranks, StateBytes bytes) {
    const std::vector<ir::Program>& programs = ranks.programs();
    for (int64_t island = 0; island < programs[0].mesh.islands(); ++island) {
        for_each_saved(programs, [&](const ir::State& state, const ir::Parameter& param, int64_t i) {
            if (island > 0 && state.is_of_all_islands()) return;
            const std::string name = saved_name(state, param, i, island);
            const bool of_model = state.is_weights() && island == 0;  // the others' weights are part of the state of training
            names_[of_model ? checkpoint::kModelFile : checkpoint::kOptimizerFile].push_back(name);
            tensors_[name] = {{name, std::string(file_type(state.dtype)), global_shape(param)}, {}};
        });
    }
    for (const auto& e : ranks.here()) add_parts(*e, bytes);
    for (auto& [name, tensor] : tensors_)
        std::sort(tensor.parts.begin(), tensor.parts.end(), [](const Part& a, const Part& b) { return a.begin < b.begin; });
}

void StateTensors::add_parts(Executor& executor, StateBytes bytes) {
    const ir::Program& p = executor.program();
    const int64_t island = p.mesh.island_of(executor.rank());
    const auto add = [&](const Run& run, const ir::State& state, int buffer) {
        if (!is_owner(p, *run.param, state.split, executor.rank()) || (island > 0 && state.is_of_all_islands())) return;
        tensors_.find(saved_name(state, *run.param, run.instance, island))
            ->second.parts.push_back({run.global_begin, run.count, &executor, buffer, run.local_begin});
    };
    for_each_state_run(
        executor, [](const ir::State& s) { return !s.saved.empty(); }, add, bytes);
}

std::vector<checkpoint::TensorSpec> StateTensors::specs(const std::string& file) const {
    std::vector<checkpoint::TensorSpec> out;
    const auto names = names_.find(file);  // an optimizer may remember nothing
    if (names == names_.end()) return out;
    for (const std::string& name : names->second) out.push_back(spec(name));
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
        const int64_t n = std::min(end, part->begin + part->count) - begin, bytes = n * element_bytes;
        part->executor->read(part->buffer, (part->local_begin + begin - part->begin) * element_bytes, bytes,
                             [&](const char* from) { std::memcpy(to, from, static_cast<size_t>(bytes)); });
        begin += n;
        to += n * element_bytes;
    }
}

}  // namespace lockstep::runtime
