// The ops of a routine at the end of a step, one after the other: what each makes of what its operands hold.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check/flat_value.h"
#include "check/orthogonal.h"
#include "ir/program.h"

namespace lockstep::check {

// The ranks that hold the same elements of a segment as the optimizer splits it differ along these, ascending.
ir::AxisList replicas_of(const ir::Program& program, const ir::Unit& unit, const ir::Segment& segment);

// Values by tensor of one routine. `unit`: the one that the routine serves, or nullptr.
class FlatValues {
public:
    FlatValues(const ir::Program& program, const ir::Routine& routine);

    void set(ir::TensorId t, FlatValue value) { values_[static_cast<size_t>(t)] = std::move(value); }
    const FlatValue& operator[](ir::TensorId t) const { return values_[static_cast<size_t>(t)]; }
    // What was added to a sum in a port, in order.
    const std::vector<FlatValue>& added_to(ir::TensorId t) const { return added_[static_cast<size_t>(t)]; }

    // Applies all ops. Empty, or the first op that has another operand than it needs.
    std::string run();

private:
    using Apply = void (FlatValues::*)(const ir::Op&);
    static const std::map<std::string_view, Apply>& known_ops();

    const ir::Tensor& tensor(ir::TensorId t) const { return r_.tensors[static_cast<size_t>(t)]; }
    const ir::Segment& segment(const FlatValue& v) const { return unit_->segments[static_cast<size_t>(v.segment)]; }
    void fail(const std::string& what);
    void require(bool holds, const std::string& what) {
        if (!holds) fail(what);
    }
    const FlatValue& operand(const ir::Op& op, size_t i) const { return (*this)[op.in[i]]; }
    void expect(const ir::Op& op, size_t i, const FlatValue& expected);
    int segment_of(const ir::Op& op, size_t i);
    void give(const ir::Op& op, size_t i, FlatValue value);
    void alike(const ir::Op& op);
    void is_of_use(const ir::Op& op);
    FlatValue summed(FlatValue v, const ir::AxisList& group);
    void counts_once(const ir::Op& op, const ir::AxisList& replicas);

    // By kind of op.
    void move(const ir::Op& op);
    void sum(const ir::Op& op);
    void broadcast(const ir::Op& op);
    void exchange_rows(const ir::Op& op);
    void quantize(const ir::Op& op);
    void dequantize(const ir::Op& op);
    void zero_padding(const ir::Op& op);
    std::vector<std::string_view> groups() const;
    static std::string_view member_of(const ir::Segment& segment, int64_t begin, int64_t end);
    void member_amax(const ir::Op& op);
    void member_float8(const ir::Op& op);
    void sum_squares(const ir::Op& op);
    void update(const ir::Op& op);
    void muon_momentum(const ir::Op& op);
    void unpack(const ir::Op& op);
    void pack(const ir::Op& op);
    void outer_gradient(const ir::Op& op);
    void meet(const ir::Op& op);
    void outer_sgd(const ir::Op& op);
    void send(const ir::Op& op);
    void receive(const ir::Op& op);
    void wait(const ir::Op&) {}
    void owned(const ir::Op& op);
    void step_control(const ir::Op& op);
    void update_loss_scale(const ir::Op& op);
    void inverse_count(const ir::Op& op);
    void compute(const ir::Op& op);
    void orthogonalize(const ir::Op& op);

    FlatValue moment(const ir::Op& op, size_t i, int segment, std::string_view name);
    int64_t islands() const;
    bool is_param(const ir::Tensor& t, const ir::Parameter& param) const;

    const ir::Program& p_;
    const ir::Routine& r_;
    const ir::Unit* const unit_;  // that the routine serves
    const ir::AxisList all_, world_;
    std::vector<FlatValue> values_;
    std::vector<std::vector<FlatValue>> added_;
    std::vector<size_t> last_read_;            // by tensor: the last op that reads it
    std::optional<Orthogonalized> iteration_;  // of the first matrix
    size_t op_ = 0;
    std::string wrong_;
};

}  // namespace lockstep::check
