// A rank's part in meetings with other islands. Used by one thread at a time; what waits looks after the rest of the job by
// `attend`, which throws where that has failed.
#pragma once

#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "base/dtype.h"
#include "comm/islands/socket.h"

namespace lockstep::comm::islands {

struct Place {
    int64_t island = 0, rank = 0, ranks = 1;
    uint64_t session = 0;  // the same on all ranks of a job, and another one when it is started again
};

// What an island does about another one's state.
struct Turn {
    enum class What { GoOn, Give, Take } what = What::GoOn;
    int64_t step = 0;
};

// An island that the others have left out; the job ends, and comes in again when it is started again.
class LeftOut : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

class Member {
public:
    // timeout_s: how long the service may say nothing; 0: for ever.
    Member(const Invitation& invitation, const Place& place, double timeout_s, std::function<void()> attend);

    // Before the first step, which is at `step`: waits until the others are ready for this island. `model` must be equal on all
    // islands (UserError islands.other_model). An island at the same step with another `anchor` takes a state.
    Turn arrive(int64_t step, const std::string& model, const std::string& anchor = "");
    // Between two steps, after a meeting.
    Turn after(int64_t step);
    // The whole state as bytes, in calls of equal sizes on the two sides; then done().
    void give(std::span<const char> bytes) { exchange(Kind::Give, bytes, {}, 0); }
    void take(std::span<char> bytes) { exchange(Kind::Take, {}, bytes, 0); }
    void done();

    // Those that follow are of this step.
    void begin(int64_t step) { step_ = step, launch_ = 0; }
    // out = the mean over the islands that are present of islands * in, element by element. type: F32 or F64. bits: 0, or 8, as
    // int8 on the way there and back, and count a multiple of a block.
    void mean(Dtype type, const void* in, void* out, int64_t count, int64_t bits);

private:
    Header header(Kind kind) const;
    Turn turn_of(const Header& answer) const;
    Header ask(Header question);
    void receive(const std::function<void(const Header&, std::span<const char>)>& f);
    void exchange(Kind kind, std::span<const char> in, std::span<char> out, int64_t bits);

    const Place place_;
    const std::string address_;
    const double timeout_s_;
    const std::function<void()> attend_;
    MemberSocket socket_;
    int64_t step_ = 0, launch_ = 0, copied_ = 0, asked_ = 0;
    bool nobody_takes_ = false;  // any more, what is given
};

}  // namespace lockstep::comm::islands
