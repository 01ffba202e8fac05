#include "measure/op_bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bfloat16.h"
#include "base/error.h"
#include "base/random.h"
#include "base/round.h"
#include "measure/stopwatch.h"
#include "ops/rule.h"

namespace lockstep::measure {
namespace {

constexpr int64_t kAligned = 256;
// On a device a sample has as many runs, so that starting it and hearing that it has ended count for little; and no more than
// its queue takes before the host has to wait.
constexpr double kSampleS = 1e-3;
constexpr int64_t kMostRuns = 200;

// Of which input an operand's integers are: renames, gathers and slices pass them on.
ir::PortRole input_of(const ir::Routine& r, ir::TensorId t) {
    for (auto op = r.ops.rbegin(); op != r.ops.rend(); ++op) {
        const auto at = std::find(op->out.begin(), op->out.end(), t);
        if (at == op->out.end() || op->in.empty()) continue;
        t = op->in[op->in.size() == op->out.size() ? static_cast<size_t>(at - op->out.begin()) : 0];
    }
    const int port = r.tensors[t].port;
    return port < 0 ? ir::PortRole::None : r.ports[port].role;
}

// Is it this operand of a block of attention, counted from the queries on? Parts of a layer have it in a port of their own.
bool is_of_block(const ir::Op& op, ir::TensorId t, size_t first, size_t second) {
    if (op.kind != ir::kAttentionBlock && op.kind != ir::kAttentionBlockBackward) return false;
    const auto queries = static_cast<size_t>(ops::rule(op.kind).queries);
    return op.in[queries + first] == t || op.in[queries + second] == t;
}

// write(from, count, to): bytes [from, from + count), as many at once as a device takes.
template <class Write>
void write_pieces(device::Device& device, char* memory, int64_t bytes, Write write) {
    device::each_access(bytes, [&](int64_t from, int64_t count) {
        device.write(device.queue(QueueName::Compute), memory + from, count, [&](char* to) { write(from, count, to); });
    });
}

}  // namespace

char* new_memory(device::Device& device, int64_t bytes) {
    char* const memory = device.allocate(bytes, Place::Device);
    if (!memory)
        throw UserError("bench.memory", "",
                        fmt::format("bench: {} refused {} bytes for operands: end other programs that use its memory",
                                    device.is_host() ? "the system" : "the GPU", bytes));
    return memory;
}

const char* new_inputs(device::Device& device, int64_t bytes) {
    char* const in = new_memory(device, bytes);
    std::vector<Bf16> block(static_cast<size_t>(device::kAccessBytes / static_cast<int64_t>(sizeof(Bf16))));
    for (size_t i = 0; i < block.size(); ++i) {
        const auto value = static_cast<float>(normal_draw(1, i));
        block[i] = Bf16(std::copysign(std::max(std::abs(value), 0.01f), value));
    }
    write_pieces(device, in, bytes,
                 [&](int64_t, int64_t count, char* to) { std::memcpy(to, block.data(), static_cast<size_t>(count)); });
    return in;
}

Places new_places(device::Device& device, const char* in, int64_t region_bytes, int64_t workspace_bytes) {
    return {in, new_memory(device, region_bytes), new_memory(device, std::max<int64_t>(workspace_bytes, 1)),
            new_memory(device, kSmallBytes), region_bytes};
}

OpBench::OpBench(const Subject& s, device::Device& device, const Places& places, double apart)
    : s_(s),
      device_(device),
      queue_(device.queue(QueueName::Compute)),
      places_(places),
      begin_(static_cast<int64_t>(apart * static_cast<double>(places.region_bytes))),
      kernel_(kernels::make_kernel({s.program->mesh, *s.routine, *s.op, 0, s.key.threads})) {
    for (ir::TensorId t : s.op->in) in_.push_back(place(t, in_bytes_));
    for (ir::TensorId t : s.op->out) out_.push_back(place(t, out_bytes_));
}

// Positions count up along the sequence, documents are one, ids and targets lie anywhere in the vocabulary.
OpBench::Operand OpBench::place(ir::TensorId id, int64_t& at) {
    const ir::Tensor& t = s_.routine->tensors[id];
    const int64_t elements = ir::local_elements(s_.program->mesh, *s_.routine, t),
                  bytes = ir::local_bytes(s_.program->mesh, *s_.routine, t);
    const bool is_scalar = t.dtype == Dtype::F64 && elements <= 64;
    if (t.dtype != Dtype::I32 && !is_scalar) {
        const int64_t offset = at;
        at += round_up(bytes, kAligned) + kAligned;
        return {offset};
    }
    const int64_t offset = small_bytes_;
    small_bytes_ += round_up(std::max<int64_t>(bytes, 64 * 8), kAligned);
    if (small_bytes_ > kSmallBytes) return {offset, true};  // it does not fit
    std::vector<char> data(static_cast<size_t>(std::max<int64_t>(bytes, 64 * 8)));
    if (is_scalar) {
        const std::vector<double> ones(64, 1.0);
        std::memcpy(data.data(), ones.data(), 64 * sizeof(double));
    } else {
        const int64_t last =
            t.dims.empty() ? 1 : ir::local_size(s_.program->mesh, *s_.routine, t, static_cast<int>(t.dims.size()) - 1);
        const ir::DimId vocab = s_.routine->dim(ir::DimRole::Vocab);
        const int64_t bound = vocab >= 0 ? s_.routine->dims[vocab].valid : 1;
        const ir::PortRole input = input_of(*s_.routine, id);
        const bool position =
                       input == ir::PortRole::Positions || input == ir::PortRole::KvPositions || is_of_block(*s_.op, id, 3, 4),
                   document =
                       input == ir::PortRole::Documents || input == ir::PortRole::KvDocuments || is_of_block(*s_.op, id, 5, 6);
        for (int64_t i = 0; i < elements; ++i) {
            const auto value = static_cast<int32_t>(document ? 0 : position ? i % last : i * 7919 % bound);
            std::memcpy(data.data() + i * 4, &value, 4);
        }
    }
    write_pieces(device_, places_.small + offset, static_cast<int64_t>(data.size()),
                 [&](int64_t from, int64_t count, char* to) { std::memcpy(to, data.data() + from, static_cast<size_t>(count)); });
    return {offset, true};
}

void OpBench::run(int64_t k) {
    void *in[64], *out[64];
    const auto place_of = [&](int64_t bytes, int64_t at) {
        return bytes > 0 ? at % (places_.region_bytes - bytes + 1) / kAligned * kAligned : 0;
    };
    char* const in_begin = const_cast<char*>(places_.in) + place_of(in_bytes_, begin_ + k * in_bytes_);
    char* const out_begin = places_.out + place_of(out_bytes_, k * out_bytes_);
    for (size_t i = 0; i < in_.size(); ++i) in[i] = (in_[i].is_small ? places_.small : in_begin) + in_[i].offset;
    for (size_t i = 0; i < out_.size(); ++i) out[i] = (out_[i].is_small ? places_.small : out_begin) + out_[i].offset;
    kernel_->run({in, out, true, places_.workspace, queue_});
}

double OpBench::sample_s(int64_t k, int64_t n, int64_t sets) {
    const double begin_s = now_s();
    for (int64_t i = 0; i < n; ++i) run((k + i) % sets);
    given_s_ = std::min(given_s_, (now_s() - begin_s) / static_cast<double>(n));
    device_.finish(queue_);
    return (now_s() - begin_s) / static_cast<double>(n);
}

double OpBench::time_s(int64_t sets, double budget_s) {
    sample_s(0, 1, sets);
    const double start_s = now_s();
    const auto wanted = device_.is_host() ? 1 : static_cast<int64_t>(std::ceil(kSampleS / sample_s(0, 1, sets)));
    const int64_t n = std::clamp<int64_t>(wanted, 1, kMostRuns);
    std::vector<double> times;
    while (times.size() < 3 || (now_s() - start_s < budget_s && times.size() < 2000)) {
        times.push_back(sample_s(static_cast<int64_t>(times.size()) * n, n, sets));
        if (times.back() > budget_s && times.size() >= 2) break;
    }
    std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 4), times.end());
    return times[times.size() / 4];
}

}  // namespace lockstep::measure
