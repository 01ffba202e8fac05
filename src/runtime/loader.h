// Writes a step's samples into a rank's input buffers, in every placement and in the order that the program asks for. No communication: each
// rank reads the samples of its own coordinate.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "data/sampler.h"
#include "ir/program.h"
#include "runtime/executor.h"

namespace lockstep::runtime {

struct BatchShape {
    int64_t microbatch;    // sequences of one microbatch over all data ranks
    int64_t global_batch;  // sequences of an island's step that count; the rest are masked
    int64_t seq_len;
    uint64_t seed = 0;         // of the noise that dropout is made from
    int64_t first_island = 0;  // of the ranks here, where islands are jobs
};

class Loader {
public:
    Loader(const ir::Program& program, ir::EntryKind entry, int64_t rank, const BatchShape& shape);

    // Reads sample number first_sample + i as the i-th of the step (of all islands' steps, island after island), and makes its
    // noise. `fetch` is Dataset::sample, or sequential for validation.
    using Fetch = FunctionRef<void(int64_t index, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> pos,
                                   std::span<int32_t> doc)>;
    void load(Executor& executor, int64_t first_sample, Fetch fetch);

private:
    void copy_tokens(const std::vector<int32_t>& sample, int64_t first, int64_t count, char* to) const;

    struct Input {
        int buffer, source;  // source: index into kSources
        int64_t microbatch;
        int64_t first_batch, batch, first_token, tokens;
    };
    static constexpr int kCount = 5, kNoise = 4;
    static constexpr std::array<ir::PortRole, kCount> kSources = {
        ir::PortRole::Ids, ir::PortRole::Targets, ir::PortRole::Positions, ir::PortRole::Documents, ir::PortRole::Noise};

    BatchShape shape_;
    int64_t head_tail_ = 1;  // Program::head_tail
    int64_t first_of_island_ = 0;
    std::vector<Input> inputs_;  // by microbatch
    bool has_noise_ = false;
    std::vector<int32_t> sample_[kCount];
};

}  // namespace lockstep::runtime
