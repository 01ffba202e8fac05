// What the gradients and scalars of one rank are made of in one step: lists of contributions, as sums of them would be.
// Answers whether a value holds each contribution that the step owes it exactly once.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "ir/program.h"

namespace lockstep::check_test {

struct Illegal : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Parameters of a unit as bytes of its full buffer, in order of segments and members.
struct MemberRange {
    int64_t begin_bytes, end_bytes;
};
std::vector<MemberRange> members_of(const ir::Program& program, const ir::Unit& unit);

class GradientLedger {
public:
    explicit GradientLedger(const ir::Program& program);

    void begin_step(const ir::Entry& entry);
    void run(const ir::Call& call);  // its bytes have been found legal
    void end_step() const;

private:
    struct Contribution {
        int routine = -1;
        int64_t instance = 0, microbatch = 0, chunk = 0;
        int micro = 0, step = 0;  // reductions passed
        auto operator<=>(const Contribution&) const = default;
    };
    using Sum = std::vector<Contribution>;
    struct Gradient {
        std::string unit;
        std::vector<Sum> members;
    };
    struct Scalar {
        std::string port;  // under which it was written
        Sum sum;
    };
    using Key = std::pair<std::string, int64_t>;  // unit, instance

    Gradient& gradient(int buffer, const std::string& unit);
    void add_gradients(const ir::Call& call, int port);
    void reduce_micro(const ir::Call& call);
    void reduce_step(const ir::Call& call);
    void expect_whole(const ir::Call& call);
    bool is_scalar(const ir::Port& port) const;  // a state of the whole program
    void scalar(const ir::Call& call, int port);
    void count_once(const ir::Call& call);
    void expect_order(const ir::Call& call) const;

    const ir::Program& program_;
    const ir::Entry* entry_ = nullptr;
    std::map<std::string, std::vector<MemberRange>> members_;
    std::map<Key, std::vector<Sum>> whole_gradients_;                     // by member, sorted
    std::map<std::pair<ir::EntryKind, std::string>, Sum> whole_scalars_;  // entry, port
    std::map<int, Gradient> gradients_;                                   // by buffer
    std::map<int, Scalar> scalars_;
    std::map<std::tuple<ir::RoutineKind, std::string, int64_t>, int> times_;  // kind, routine, instance -> calls so far
    bool inv_n_read_ = false;
};

}  // namespace lockstep::check_test
