#include "comm/processes/targets.h"

#include <algorithm>

#include "comm/block_rows.h"

namespace lockstep::comm::processes {
namespace {

std::span<const Target> targets_of(const std::vector<Target>& targets, int part) {
    const auto before = [](const Target& t, int p) { return t.part < p; };
    const auto first = std::lower_bound(targets.begin(), targets.end(), part, before);
    return {first, std::lower_bound(first, targets.end(), part + 1, before)};
}

}  // namespace

Job job_of(const std::vector<Target>& targets, int part, int64_t round, int64_t limit) {
    for (const Target& target : targets_of(targets, part)) {
        const int64_t pieces = count_pieces(target.from, limit);
        if (round < pieces) return {&target, piece_of(target.from, limit, round)};
        round -= pieces;
    }
    return {};
}

int64_t rounds_of(const std::vector<Target>& targets, int part, int64_t limit) {
    int64_t rounds = 0;
    for (const Target& target : targets_of(targets, part)) rounds += count_pieces(target.from, limit);
    return rounds;
}

int64_t most_rounds(const Link& link, int64_t limit) {
    int64_t rounds = 0;
    for (int part = 0; part < link.layout.parts(); ++part)
        rounds = std::max(rounds, rounds_of(link.scratch.targets, part, limit));
    return rounds;
}

int64_t staged_limit(const Link& link, int64_t pieces, int64_t element_bytes) {
    constexpr int64_t kStagingBytes = 32 << 20, kLeastBytes = 4096;
    return std::max<int64_t>(std::min(link.piece_bytes, std::max(kStagingBytes / pieces, kLeastBytes)) / element_bytes, 1);
}

void store(const Operands& operands, std::span<const Rows> sources, const Job& job) {
    const Target& t = *job.target;
    if (operands.apart) {
        const int64_t bytes = bytes_of(operands.type), row_bytes = job.piece.columns * bytes;
        for (size_t k = 0; k < sources.size(); ++k) {
            for (int64_t row = 0; row < job.piece.rows; ++row) {
                const int64_t first = (job.piece.row + row) * t.from.run + job.piece.column;
                write_rows(t.out + static_cast<int64_t>(k) * t.to.run * bytes, t.to.run * bytes, t.to.stride * bytes,
                           first * bytes, sources[k].data + row * sources[k].stride * bytes, row_bytes);
            }
        }
        return;
    }
    std::byte* to = t.out + first_element(t.to, job.piece) * bytes_of(operands.type);
    reduce_rows(operands.type, operands.op, sources, {to, t.to.stride}, job.piece.rows, job.piece.columns, t.accumulate);
}

}  // namespace lockstep::comm::processes
