#include "tests/ops/interpreter.h"

#include <cstring>

#include "base/bfloat16.h"
#include "base/round.h"

namespace lockstep::testing {
namespace {

char* aligned(std::vector<std::byte>& bytes, int64_t size) {
    bytes.assign(static_cast<size_t>(size + kAlignmentBytes), std::byte{0xff});  // NaN until written
    return reinterpret_cast<char*>(round_up(reinterpret_cast<int64_t>(bytes.data()), kAlignmentBytes));
}

}  // namespace

Interpreter::Interpreter(const mesh::Mesh& mesh, const ir::Routine& routine, int64_t rank, int threads)
    : mesh_(mesh), routine_(routine), pool_(threads), bytes_(routine.tensors.size()), workspaces_(routine.ops.size()) {
    for (size_t t = 0; t < routine.tensors.size(); ++t)
        data_.push_back(aligned(bytes_[t], ir::local_bytes(mesh, routine, routine.tensors[t])));
    for (const ir::Op& op : routine.ops) kernels_.push_back(kernels::make_kernel({mesh, routine, op, rank, threads}));
}

void Interpreter::set(const std::string& tensor, const std::vector<double>& values) {
    const ir::TensorId t = routine_.find(tensor);
    for (size_t i = 0; i < values.size(); ++i) {
        switch (routine_.tensors[t].dtype) {
            case Dtype::F32: reinterpret_cast<float*>(data_[t])[i] = static_cast<float>(values[i]); break;
            case Dtype::F64: reinterpret_cast<double*>(data_[t])[i] = values[i]; break;
            case Dtype::BF16: reinterpret_cast<Bf16*>(data_[t])[i] = Bf16(values[i]); break;
            case Dtype::I32: reinterpret_cast<int32_t*>(data_[t])[i] = static_cast<int32_t>(values[i]); break;
        }
    }
}

std::vector<double> Interpreter::get(const std::string& tensor) const {
    const ir::TensorId t = routine_.find(tensor);
    std::vector<double> out(static_cast<size_t>(ir::local_elements(mesh_, routine_, routine_.tensors[t])));
    for (size_t i = 0; i < out.size(); ++i) {
        switch (routine_.tensors[t].dtype) {
            case Dtype::F32: out[i] = reinterpret_cast<const float*>(data_[t])[i]; break;
            case Dtype::F64: out[i] = reinterpret_cast<const double*>(data_[t])[i]; break;
            case Dtype::BF16: out[i] = reinterpret_cast<const Bf16*>(data_[t])[i]; break;
            case Dtype::I32: out[i] = reinterpret_cast<const int32_t*>(data_[t])[i]; break;
        }
    }
    return out;
}

void Interpreter::run(bool fresh, int64_t instance) {
    for (size_t k = 0; k < kernels_.size(); ++k) {
        const ir::Op& op = routine_.ops[k];
        std::vector<void*> in, out;
        for (ir::TensorId t : op.in) in.push_back(data_[t]);
        for (ir::TensorId t : op.out) out.push_back(data_[t]);
        char* workspace = aligned(workspaces_[k], op.workspace_bytes);
        kernels_[k]->run({in.data(), out.data(), fresh, workspace, pool_, instance});
    }
}

}  // namespace lockstep::testing
