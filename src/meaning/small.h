// Routines of a block at a small size. Which ops there are, in what order, on what and with which attributes stays as it is;
// dims become as short as the cuts of the program allow, axes of the mesh as short as the ops allow, floats become float64,
// and composites the simpler ops into which they are expanded.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/program.h"

namespace lockstep::meaning {

class Small {
public:
    // `routines`: those of one block, by their place in the program.
    Small(const ir::Program& program, const std::vector<int>& routines);

    const mesh::Mesh& mesh() const { return mesh_; }
    ir::Dim of(ir::Dim dim) const;
    // The same without padding, as a model has it.
    ir::Dim plain(ir::Dim dim) const;
    // How many elements of the program there are for each one of a small dim of this role.
    int64_t stride(ir::DimRole role) const;

    // The routine on these dims. Results that add to a port are made apart, and added by an op of their own.
    ir::Routine of(const ir::Routine& routine) const;
    // A routine of the model, which knows no ranks.
    ir::Routine plain(const ir::Routine& routine) const;

private:
    struct Class {
        int64_t whole = 0, small = 0;
        bool is_padded = false;
        bool is_counted = false;  // as the elements of a norm, in attributes of ops
    };
    ir::DimRole class_of(const ir::Dim& dim) const;
    void shorten_norm(ir::Op& op) const;

    mesh::Mesh mesh_;
    std::map<std::string, ir::DimRole> blocks_;
    std::map<ir::DimRole, Class> classes_;
    std::map<std::string, int64_t> groups_;  // by name of a dim of groups of another's elements: one or more a rank
};

}  // namespace lockstep::meaning
