// Runs a program as the executor would, on tags in place of numbers: each byte of the arenas holds the name of the value that
// stands there, and what an op writes is named after the op and everything that it read. Two runs that leave the same tags have
// computed the same. Knows nothing of the prover: addresses are taken as the executor takes them, at each op.
//
// An op takes a while: it reads its operands when it begins and when it ends, and its workspace and results are in use in
// between, while other queues go on. A result over an operand that its kernel may not overwrite is a value of its own each
// time. What other ranks send is one value for each receive.
#pragma once

#include <cstdint>
#include <string>

#include "ir/program.h"

namespace lockstep::check_test {

// Which queue goes on where several can.
enum class Order { OfTheList, ComputeFirst, CommFirst, Random };
constexpr int kOrders = 4;

struct Shadow {
    std::string broken;     // an access outside of what it has to lie in; empty: none
    uint64_t observed = 0;  // what entries leave, send and keep, over two rounds of all entries
    int spoilt = 0;         // ops whose results overlap what their kernels may not overwrite
};

Shadow run_shadow(const ir::Program& program, Order order);

// The same program with room for everything: every temporary, workspace and buffer has bytes of its own, and nothing is a view.
ir::Program roomy(ir::Program program);

}  // namespace lockstep::check_test
