#include "tests/ops/interpreter.h"

#include <cstring>

#include "base/elements.h"
#include "base/round.h"

namespace lockstep::testing {
namespace {

char* aligned(std::vector<std::byte>& bytes, int64_t size) {
    bytes.assign(static_cast<size_t>(size + kAlignmentBytes), std::byte{0xff});  // NaN until written
    return reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(bytes.data()), kAlignmentBytes));
}

}  // namespace

Interpreter::Interpreter(const mesh::Mesh& mesh, const ir::Routine& routine, int64_t rank, int threads)
    : mesh_(mesh),
      routine_(routine),
      pool_(threads),
      queue_(QueueName::Compute, &pool_),
      bytes_(routine.tensors.size()),
      workspaces_(routine.ops.size()) {
    for (size_t t = 0; t < routine.tensors.size(); ++t)
        data_.push_back(aligned(bytes_[t], ir::local_bytes(mesh, routine, routine.tensors[t])));
    for (const ir::Op& op : routine.ops) kernels_.push_back(kernels::make_kernel({mesh, routine, op, rank, threads}));
}

void Interpreter::set(const std::string& tensor, const std::vector<double>& values) {
    const ir::TensorId t = routine_.find(tensor);
    const Dtype type = routine_.tensors[t].dtype;
    if (is_float(type)) return convert("F64", values.data(), file_type(type), data_[t], static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) set_element(data_[t], type, static_cast<int64_t>(i), values[i]);
}

std::vector<double> Interpreter::get(const std::string& tensor) const {
    const ir::TensorId t = routine_.find(tensor);
    std::vector<double> out(static_cast<size_t>(ir::local_elements(mesh_, routine_, routine_.tensors[t])));
    for (size_t i = 0; i < out.size(); ++i) out[i] = element(data_[t], routine_.tensors[t].dtype, static_cast<int64_t>(i));
    return out;
}

void Interpreter::run(bool fresh, int64_t instance) {
    for (size_t k = 0; k < kernels_.size(); ++k) {
        const ir::Op& op = routine_.ops[k];
        std::vector<void*> in, out;
        for (ir::TensorId t : op.in) in.push_back(data_[t]);
        for (ir::TensorId t : op.out) out.push_back(data_[t]);
        char* workspace = aligned(workspaces_[k], op.workspace_bytes);
        kernels_[k]->run({in.data(), out.data(), fresh, workspace, queue_, instance});
    }
}

}  // namespace lockstep::testing
