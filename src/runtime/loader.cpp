#include "runtime/loader.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/error.h"
#include "base/random.h"
#include "mesh/order.h"

namespace lockstep::runtime {

Loader::Loader(const ir::Program& program, ir::EntryKind entry, int64_t rank, const BatchShape& shape)
    : shape_(shape), head_tail_(program.head_tail) {
    if (entry == ir::EntryKind::Train)
        first_of_island_ = (shape.first_island + program.mesh.island_of(rank)) * shape.global_batch;
    for (std::vector<int32_t>& s : sample_) s.resize(static_cast<size_t>(shape.seq_len));
    std::set<int> seen;
    for (const ir::Call& call : program.entry(entry)->calls) {
        const ir::Routine& r = program.routines[call.routine];
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[t.port].kind != ir::PortKind::Input || !seen.insert(call.bindings[t.port].buffer).second)
                continue;
            const auto source = std::find(kSources.begin(), kSources.end(), r.ports[t.port].role) - kSources.begin();
            ensure(source < kCount, "loader: it has no input for port " + r.ports[t.port].name);
            // From the placement and the whole microbatch: a chunked routine's own dims are only a slice of it.
            const auto part = [&](int dim, int64_t whole, int64_t& first, int64_t& count) {
                count = whole / program.mesh.size(t.placement.dims[dim]);
                first = program.mesh.index(rank, t.placement.dims[dim]) * count;
            };
            Input in{call.bindings[t.port].buffer, static_cast<int>(source), call.microbatch, 0, 0, 0, 0};
            part(0, shape.microbatch, in.first_batch, in.batch);
            part(1, shape.seq_len, in.first_token, in.tokens);
            inputs_.push_back(in);
            has_noise_ = has_noise_ || source == kNoise;
        }
    }
    std::stable_sort(inputs_.begin(), inputs_.end(), [](const Input& a, const Input& b) { return a.microbatch < b.microbatch; });
}

// In pieces whose tokens follow each other in the sequence.
void Loader::copy_tokens(const std::vector<int32_t>& sample, int64_t first, int64_t count, char* to) const {
    const int64_t piece = head_tail_ == 1 ? shape_.seq_len : shape_.seq_len / (2 * head_tail_);
    for (int64_t j = first; j < first + count;) {
        const int64_t n = std::min(first + count, j + piece - j % piece) - j;
        std::memcpy(to + (j - first) * 4, sample.data() + mesh::position_of(shape_.seq_len, head_tail_, j),
                    static_cast<size_t>(n) * 4);
        j += n;
    }
}

void Loader::load(Executor& executor, int64_t first_of_step, Fetch fetch) {
    const int64_t first_sample = first_of_step + first_of_island_;
    for (size_t begin = 0; begin < inputs_.size();) {
        size_t end = begin;
        while (end < inputs_.size() && inputs_[end].microbatch == inputs_[begin].microbatch) ++end;
        for (int64_t b = 0; b < inputs_[begin].batch; ++b) {
            const int64_t in_step = inputs_[begin].microbatch * shape_.microbatch + inputs_[begin].first_batch + b;
            if (in_step < shape_.global_batch) {
                fetch(first_sample + in_step, sample_[0], sample_[1], sample_[2], sample_[3]);
            } else {  // fills up the last microbatch; counts for nothing
                for (int k = 0; k < 4; ++k) std::fill(sample_[k].begin(), sample_[k].end(), k == 1 ? data::kNoTarget : 0);
                for (int64_t t = 0; t < shape_.seq_len; ++t) sample_[2][static_cast<size_t>(t)] = static_cast<int32_t>(t);
            }
            for (int64_t t = 0; has_noise_ && t < shape_.seq_len; ++t) {
                sample_[kNoise][static_cast<size_t>(t)] = static_cast<int32_t>(
                    token_noise(shape_.seed, static_cast<uint64_t>(first_sample + in_step), static_cast<uint64_t>(t)));
            }
            for (size_t i = begin; i < end; ++i) {
                const Input& in = inputs_[i];
                executor.write(in.buffer, b * in.tokens * 4, in.tokens * 4,
                               [&](char* to) { copy_tokens(sample_[in.source], in.first_token, in.tokens, to); });
            }
        }
        begin = end;
    }
}

}  // namespace lockstep::runtime
