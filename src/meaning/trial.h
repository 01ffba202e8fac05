// Carries out the calls of one block instance for one microbatch, on all ranks of a small mesh.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "meaning/arrays.h"
#include "meaning/model.h"
#include "meaning/small.h"

namespace lockstep::meaning {

// What is at the ports of a block's routines.
struct Trial {
    Given given;
    Array dy;  // where the block has one
    // Of the program's states by role: what a read finds.
    std::map<ir::StateRole, double> scalars;

    // What the calls left. A sum that no call begins anew goes on from here.
    static constexpr double kBefore = 3;
    std::set<std::string> begun;  // gradients
    std::set<ir::StateId> begun_states;
    std::map<std::string, ByRank> gradients;                 // by key, as parameters lie
    std::map<std::tuple<int, int, int64_t>, ByRank> values;  // by role, or -1; buffer; place in it
    std::map<ir::StateId, ByRank> states;
    std::map<ir::PortRole, Lying> results;  // the roles among the values, and how they lie
    std::map<ir::StateId, Lying> sums;      // the same of states

    // What has been cut up, as many calls read the same.
    std::map<std::pair<ir::PortRole, std::vector<mesh::AxisList>>, ByRank> parts;
    std::map<std::string, ByRank> params;
};

class Runner {
public:
    Runner(const ir::Program& program, const Small& small) : p_(program), small_(small) {}

    // Empty, or what a call finds wrong.
    std::string run(const std::vector<const ir::Call*>& calls, Trial& trial);
    // The whole of what the calls left of a role, of a gradient or of a state with one value. Empty, or what is wrong with it.
    std::string result(const Trial& trial, ir::PortRole role, const std::vector<int64_t>& sizes, Array& out) const;
    std::string gradient(const Trial& trial, const std::string& key, const std::vector<int64_t>& sizes, Array& out) const;
    std::string sum(const Trial& trial, ir::StateId state, double& out) const;

private:
    Machine& machine(int routine);
    double amax_of(std::string_view group) const;
    double scale_of_codes(std::string_view key, Dtype type) const;
    std::string bring(Trial& trial, const ir::Call& call);
    // What the ranks hold of an array that the trial gives, and of a parameter.
    const ByRank& part_of(Trial& trial, ir::PortRole role, const Array& whole, const ir::Placement& placement) const;
    const ByRank& parameter(Trial& trial, const std::string& key) const;
    void take(Trial& trial, const ir::Call& call);
    Lying lying(const ir::Routine& r, const ir::Tensor& t) const;
    Lying lying(const ir::Parameter& x) const;

    const ir::Program& p_;
    const Small& small_;
    std::map<int, std::unique_ptr<Machine>> machines_;  // by routine
};

}  // namespace lockstep::meaning
