// Appends ops to a routine, with fresh names and checked shapes. Models, derivatives and expansions are written with it.
#pragma once

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "ops/rule.h"

namespace lockstep::ops {

struct Result {
    std::string name;
    std::vector<DimId> dims;
    Dtype dtype = Dtype::F32;
};

class Builder {
public:
    explicit Builder(ir::Routine& routine) : r_(routine) {}
    ir::Routine& routine() { return r_; }
    const ir::Tensor& tensor(TensorId t) const { return r_.tensors[t]; }
    const std::vector<DimId>& dims(TensorId t) const { return r_.tensors[t].dims; }

    // Dims by name, or by role; the routine's table must have them.
    std::vector<DimId> dims(std::initializer_list<std::string_view> names) const;
    std::vector<DimId> dims(std::initializer_list<ir::DimRole> roles) const;
    static std::vector<DimId> without(std::vector<DimId> dims, DimId one);

    // A port with one tensor of the same name. Of a state: its name and type. Of a role: called so.
    TensorId port(std::string name, ir::PortKind kind, ir::Access access, std::vector<DimId> dims, Dtype dtype = Dtype::F32);
    TensorId port(const ir::Program& program, ir::StateId state, ir::Access access, std::vector<DimId> dims = {});
    TensorId port(ir::PortRole role, ir::PortKind kind, ir::Access access, std::vector<DimId> dims, Dtype dtype = Dtype::F32);
    // A tensor of the port named `port_name`, which is made if it is new.
    TensorId port_tensor(std::string port_name, ir::PortKind kind, ir::Access access, std::string name, std::vector<DimId> dims,
                         std::string source, Dtype dtype = Dtype::F32);

    std::vector<TensorId> op(std::string_view kind, std::vector<TensorId> in, std::vector<Result> out, ir::Attrs attrs = {},
                             std::string note = "");
    TensorId einsum(const std::string& name, std::vector<DimId> dims, std::vector<TensorId> in);
    TensorId add(const std::string& name, std::vector<TensorId> in);
    TensorId scale(const std::string& name, TensorId x, double c);
    TensorId unary(const std::string& name, std::string_view fn, TensorId x, ir::Attrs attrs = {});
    // Writes `x` into the port tensor `into`, adding to what is there.
    void accumulate(TensorId into, TensorId x);
    // Moves the temporary `x` into a new port.
    void leave(TensorId x, ir::Port port);

    std::string fresh(const std::string& name) const;
    TensorId make(const Result& result);  // a temporary

private:
    ir::Routine& r_;
};

// Cotangents by reverse mode over `ops` (in order). `cotangents[t]` are the contributions known so far; on return
// `total(t)` of every wanted tensor may be asked. One n-ary add per value, never a chain, so that sharding sees all terms.
class Derivative {
public:
    // wants[t]: whether a cotangent of tensor t is needed (t or what it is made from depends on a differentiable source).
    Derivative(Builder& builder, std::vector<bool> wants);
    void seed(TensorId t, TensorId cotangent);
    void run(const std::vector<Op>& ops);
    TensorId total(TensorId t);  // -1 where nothing flows

private:
    Builder& b_;
    std::vector<bool> wants_;
    std::vector<std::vector<TensorId>> parts_;
};

// wants[t] for all tensors of a routine: what `sources` flow into through `ops`.
std::vector<bool> depends_on(const ir::Routine& routine, const std::vector<Op>& ops, const std::vector<TensorId>& sources);

// The ops of `ops` that `roots` need, plus those that write a port's tensor. Order kept.
std::vector<Op> live_ops(const ir::Routine& routine, const std::vector<Op>& ops, const std::vector<TensorId>& roots);

// Drops unused tensors and ports' leftovers and renumbers: ports' tensors first, in port order, then temporaries in op order.
void renumber(ir::Routine& routine);

}  // namespace lockstep::ops
