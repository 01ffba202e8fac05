#include "tests/ops/device_interpreter.h"

#include <algorithm>

#include "base/elements.h"
#include "base/error.h"
#include "base/round.h"

namespace lockstep::testing {

DeviceArena::DeviceArena(std::unique_ptr<device::Machine> machine)
    : machine_(std::move(machine)), device_(machine_->device({})), memory_(device_->allocate(kBytes, Place::Device)) {
    ensure(memory_, "no memory for the arena of a test");
}

DeviceInterpreter::DeviceInterpreter(DeviceArena& arena, const mesh::Mesh& mesh, const ir::Routine& routine, int64_t rank)
    : mesh_(mesh), routine_(routine), device_(arena.device()) {
    int64_t used = 0, workspace = 0;
    const auto take = [&](int64_t bytes) {
        char* const at = arena.memory() + used;
        used += round_up(std::max<int64_t>(bytes, 1), kAlignmentBytes);
        return at;
    };
    for (size_t t = 0; t < routine.tensors.size(); ++t) data_.push_back(take(bytes_of_tensor(static_cast<ir::TensorId>(t))));
    for (const ir::Op& op : routine.ops) {
        kernels_.push_back(kernels::make_kernel({mesh, routine, op, rank, 1}));
        workspace = std::max(workspace, op.workspace_bytes);
    }
    workspace_ = take(workspace);
    ensure(used <= DeviceArena::kBytes, "an op case is larger than the arena");
    device_.fill(queue(), arena.memory(), 0xff, used);  // NaN until written
}

void DeviceInterpreter::set(const std::string& tensor, const std::vector<double>& values) {
    const ir::TensorId t = routine_.find(tensor);
    const Dtype type = routine_.tensors[t].dtype;
    device_.write(queue(), data_[t], bytes_of_tensor(t), [&](char* to) {
        if (is_float(type)) return convert("F64", values.data(), file_type(type), to, static_cast<int64_t>(values.size()));
        for (size_t i = 0; i < values.size(); ++i) set_element(to, type, static_cast<int64_t>(i), values[i]);
    });
}

std::vector<double> DeviceInterpreter::get(const std::string& tensor) {
    const ir::TensorId t = routine_.find(tensor);
    std::vector<double> out(static_cast<size_t>(ir::local_elements(mesh_, routine_, routine_.tensors[t])));
    device_.read(queue(), data_[t], bytes_of_tensor(t), [&](const char* from) {
        for (size_t i = 0; i < out.size(); ++i) out[i] = element(from, routine_.tensors[t].dtype, static_cast<int64_t>(i));
    });
    return out;
}

void DeviceInterpreter::run(bool fresh) {
    for (size_t k = 0; k < kernels_.size(); ++k) {
        const ir::Op& op = routine_.ops[k];
        std::vector<void*> addresses;
        for (ir::TensorId t : op.in) addresses.push_back(data_[t]);
        for (ir::TensorId t : op.out) addresses.push_back(data_[t]);
        device_.fill(queue(), workspace_, 0xff, op.workspace_bytes);
        device_.launch(queue(), addresses, [&, in = op.in.size(), workspace = workspace_](void* const* at) {
            kernels_[k]->run({at, at + in, fresh, workspace, queue()});
        });
    }
    device_.finish(queue());
}

}  // namespace lockstep::testing
