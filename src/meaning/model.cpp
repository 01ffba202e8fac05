#include "meaning/model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "ops/dropout.h"

namespace lockstep::meaning {
namespace {

ir::Routine small_routine(ir::Routine routine, const Small& small, bool drops) {
    if (!drops) ops::remove_dropout(routine);
    return small.plain(routine);
}

ir::TensorId in_port(const ir::Routine& r, ir::PortRole role) {
    const int port = r.port(role);
    return port < 0 ? -1 : r.port_tensors(port).at(0);
}

}  // namespace

ModelBlock::ModelBlock(const ir::Routine& routine, const Small& small, bool drops)
    : logits_(in_port(routine, ir::PortRole::Logits)),
      result_(logits_ >= 0 ? logits_ : in_port(routine, ir::PortRole::Y)),
      machine_(mesh::Mesh::build(mesh::kNoAxes, {}), small_routine(routine, small, drops)) {
    ensure(result_ >= 0, "meaning: the block " + routine.name + " has no result");
}

Array ModelBlock::run(const Given& given, int64_t instance) {
    const ir::Routine& r = machine_.routine();
    for (size_t t = 0; t < r.tensors.size(); ++t) {
        const ir::Tensor& tensor = r.tensors[t];
        if (tensor.port < 0) continue;
        const ir::Port& port = r.ports[static_cast<size_t>(tensor.port)];
        if (port.access != ir::Access::Read) continue;
        const Array& array = port.kind == ir::PortKind::Params ? given.params.at(tensor.source) : given.inputs.at(port.role);
        machine_.set(static_cast<ir::TensorId>(t), 0, array.values);
    }
    machine_.run(instance, std::vector<bool>(r.ports.size(), true));
    return {sizes_of(r, r.tensors[static_cast<size_t>(result_)]), machine_.get(result_, 0)};
}

Loss loss_of(const Array& logits, const Array& targets) {
    Loss loss;
    const auto vocab = static_cast<size_t>(logits.sizes.back());
    for (size_t i = 0; i < targets.values.size(); ++i) {
        if (targets.values[i] < 0) continue;
        const double* const row = logits.values.data() + i * vocab;
        const double most = *std::max_element(row, row + vocab);
        double sum = 0;
        for (size_t k = 0; k < vocab; ++k) sum += std::exp(row[k] - most);
        loss.sum += most + std::log(sum) - row[static_cast<size_t>(targets.values[i])];
        ++loss.count;
    }
    return loss;
}

}  // namespace lockstep::meaning
