// What several ranks do together: what each of them gives, by what they must agree, and what happens when it runs.
#pragma once

#include <nccl.h>

#include <map>
#include <string>
#include <tuple>

#include "tests/fakes/cuda/order.h"
#include "tests/fakes/cuda/reduce.h"

namespace lockstep::fakes::cuda {

enum class Kind { AllGather, AllReduce, ReduceScatter, Broadcast, Send, Receive };

// One rank's part of a collective, or of a transfer between two ranks.
struct Launch {
    const char* call;
    Kind kind;
    const char* send;  // null: this rank sends nothing; `receive` likewise
    char* receive;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t operation = ncclNumOps;  // none
    int root = -1;                       // of a transfer: the other rank
    bool captured = false;               // a graph gives it
    Order::Mark arrival = nullptr;       // the place in the rank's stream

    size_t bytes() const { return count * element_type(type).bytes; }
    bool is_transfer() const { return kind == Kind::Send || kind == Kind::Receive; }
    bool reduces() const { return operation != ncclNumOps; }
};

using Launches = std::map<int, Launch>;  // by rank; of a transfer 0 is the sender and 1 the receiver

bool agree(const Launch& one, const Launch& other);
std::string text(const Launch& launch);

// When all have come.
void run(const Launches& launches);

}  // namespace lockstep::fakes::cuda
