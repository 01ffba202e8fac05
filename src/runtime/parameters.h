// Which elements of which global parameters a rank holds: the one place that knows how flat shards and global tensors relate.
// Initial values, checkpoints and comparisons between layouts all go through it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::runtime {

// Elements [global_begin, +count) of a parameter in global row-major order are at [local_begin, +count) of a state buffer.
struct Run {
    const ir::Unit* unit;
    const ir::Parameter* param;
    int64_t instance;  // layer
    int64_t local_begin, global_begin, count;
};

// All runs of a unit's state for one instance, on one rank; padded rows and padding are left out.
void for_each_run(const ir::Program& program, const ir::State& state, int64_t instance, int64_t rank,
                  const std::function<void(const Run&)>& f);

// Is this rank the one that counts for a state split so:
// coordinate 0 on every sub-axis that shards neither it nor the parameter?
bool is_owner(const ir::Program& program, const ir::Parameter& param, const mesh::AxisList& split, int64_t rank);

// f(param, instance) for every parameter of every layer of the model that these programs, one a pipeline rank, make up; in the
// order of the model.
void for_each_parameter(const std::vector<ir::Program>& programs,
                        const std::function<void(const ir::Parameter&, int64_t instance)>& f);
// The same, with the program and unit that own it.
using OfMember = std::function<void(const ir::Program&, const ir::Unit&, const ir::Parameter&, int64_t instance)>;
void for_each_member(const std::vector<ir::Program>& programs, const OfMember& f);

// Elements of them all, without padding.
int64_t parameter_count(const std::vector<ir::Program>& programs);

// Hugging Face's name of one layer's parameter, and its global shape without padding.
std::string global_name(const ir::Parameter& param, int64_t instance);
std::vector<int64_t> global_shape(const ir::Parameter& param);

// Initial values of one parameter: a pure function of (seed, name, global index).
class InitialValues {
public:
    InitialValues(const ir::Parameter& param, int64_t instance, uint64_t seed);
    double operator()(int64_t global_index) const;

private:
    ir::InitKind kind_;
    double std_;
    uint64_t stream_;
};

}  // namespace lockstep::runtime
