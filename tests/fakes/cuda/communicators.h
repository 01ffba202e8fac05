// NCCL's communicators, for ranks that are threads of one process: who belongs to them, and how the launches of their ranks meet.
// A rank's launch takes a place in its stream. What the stream is given then waits until the collective has run: when all its
// ranks have come, and each of their streams has reached its place. Ranks must agree about each call; the first that does not is
// refused, and the communicator is of no more use.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/fakes/cuda/collective.h"
#include "tests/fakes/cuda/machine.h"

namespace lockstep::fakes::cuda {

// Ends a call of NCCL: it returns `result`. Without `why` something else has said why.
struct NcclRefusal {
    ncclResult_t result;
    std::string why;
};

inline void require(bool holds, ncclResult_t result, std::string_view why) {
    if (!holds) throw NcclRefusal{result, std::string(why)};
}

// Launches of which one thing is made.
struct Meeting {
    Order::Mark done;
    std::string name;
    Launches came;
};

struct Clique;

struct Split {
    Order::Mark ready;
    std::map<int, std::pair<int, int>> came;                        // rank: color, key
    std::map<int, std::pair<std::shared_ptr<Clique>, int>> places;  // rank: its new communicator, and its rank there
};

// The ranks of a communicator.
struct Clique {
    std::string name;
    int size;
    std::map<int, int> devices = {};  // of the ranks that have come
    Order::Mark ready = nullptr;      // when all have
    ncclResult_t broken = ncclSuccess;
    std::string why_broken = {};
    std::map<uint64_t, Meeting> collectives = {};                      // that not all have come to, by number
    std::map<std::tuple<int, int, uint64_t>, Meeting> transfers = {};  // sender, receiver, number
    std::map<uint64_t, std::shared_ptr<Split>> splits = {};

    void require_sound() const { require(broken == ncclSuccess, broken, why_broken); }
};

// A rank of a communicator: what ncclComm_t stands for.
struct Member {
    std::shared_ptr<Clique> clique;
    int rank;
    int device;
    uint64_t collectives = 0, splits = 0;               // that it has come to
    std::map<int, uint64_t> sends = {}, receives = {};  // likewise, by the other rank
    std::set<int> queues = {};                          // that it has launched in
    bool finalized = false;
};

// What a call may know of a rank.
struct Seat {
    int rank, size, device;
    bool finalized;
    ncclResult_t broken;
    std::string why_broken;
};

// All of them. A rank's thread that waits for others here is told if they can never come.
class Communicators {
public:
    // Of the current machine; forgotten with it.
    static Communicators& all();

    ncclUniqueId new_id();
    // A rank comes to what makes a communicator. The result waits for the other ranks and stores the handle.
    using Join = std::function<void()>;
    Join join(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank, int device);
    Join split(ncclComm_t handle, int color, int key, ncclComm_t* comm);

    Seat seat(ncclComm_t handle);  // as it is now
    // Gives a queue what a rank launches together: it may run in any order.
    void launch(ncclComm_t handle, std::vector<Launch> launches, int queue, bool captured);
    // Nothing may be launched any more. Returns the queues that it was launched in.
    std::set<int> finalize(ncclComm_t handle);
    void remove(ncclComm_t handle);
    void abort(ncclComm_t handle);

private:
    struct Place {
        Meeting& meeting;
        int side;  // of Meeting::came
        size_t sides;
        std::string waiting;  // what is said if no other comes
    };

    Member& find(ncclComm_t handle);
    int take_queue();
    void give_up(Clique& clique, ncclResult_t code, const std::string& why, Lock& lock);
    void require_place(Clique& clique, int size, int rank, int device, Lock& lock);
    void finish_join(ncclComm_t* comm, const std::shared_ptr<Clique>& clique, int rank, int device);
    void finish_split(ncclComm_t* comm, const std::shared_ptr<Clique>& parent, const Split& split, int rank, int device);
    Place place_of_collective(Member& member, const Launch& launch);
    Place place_of_transfer(Member& member, const Launch& launch);
    Order::Mark come(ncclComm_t handle, const Launch& launch, int queue);
    void give_collective(const Meeting& complete);

    std::mutex mutex_;  // guards what follows
    Table<ncclComm_t, Member> members_;
    std::map<std::string, std::shared_ptr<Clique>> by_id_;
    std::vector<int> free_queues_;  // of the order: each collective runs in one of its own
};

}  // namespace lockstep::fakes::cuda
