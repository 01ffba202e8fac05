// What DirectReduce and ChainReduce have in common: the pieces of the targets of each part, numbered in *rounds*. In a round
// every part that has a piece left gets one, so that results come to all of them evenly.
#pragma once

#include <span>

#include "comm/processes/link.h"
#include "comm/processes/rows.h"

namespace lockstep::comm::processes {

struct Operands {
    Dtype type;
    ReduceOp op;
    std::span<const std::byte* const> in;  // by position, of this process's members
    bool apart = false;                    // an all-to-all: what member k gives is block k of the result, and nothing is added
};

struct Job {
    const Target* target = nullptr;  // null: that part has no piece in that round
    Piece piece;
};
Job job_of(const std::vector<Target>& targets, int part, int64_t round, int64_t limit);
int64_t rounds_of(const std::vector<Target>& targets, int part, int64_t limit);
int64_t most_rounds(const Link& link, int64_t limit);  // of any part
// Elements of a piece where `pieces` of them are staged at a time: the staging has a bound.
int64_t staged_limit(const Link& link, int64_t pieces, int64_t element_bytes);

inline Rows rows_of(const std::byte* operand, const Job& job, int64_t element_bytes) {
    return {operand + first_element(job.target->from, job.piece) * element_bytes, job.target->from.stride};
}
// The result of a job, from sources in ascending position, at its place in the target;
// of operands that stay apart their pieces.
void store(const Operands& operands, std::span<const Rows> sources, const Job& job);

}  // namespace lockstep::comm::processes
