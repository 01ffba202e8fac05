#include "tests/fakes/cuda/communicators.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

namespace lockstep::fakes::cuda {
namespace {

std::string key_of(const ncclUniqueId& id) { return {id.internal, sizeof id.internal}; }

void await_others(const Order::Mark& mark) {
    Order& order = machine().order;
    require(order.run_until(mark), ncclSystemError, "the host waits for what can never be: " + order.unkept());
}

// Ranks of one color are ordered by their keys, and by their old ranks if the keys are equal.
void place_all(Split& split, const Clique& parent, uint64_t number) {
    std::map<int, std::set<std::pair<int, int>>> colors;  // key, rank
    for (const auto& [rank, wish] : split.came) {
        if (wish.first != NCCL_SPLIT_NOCOLOR) colors[wish.first].emplace(wish.second, rank);
    }
    for (const auto& [color, ranks] : colors) {
        auto clique = std::make_shared<Clique>(
            Clique{fmt::format("{}, split {}, color {}", parent.name, number + 1, color), static_cast<int>(ranks.size())});
        for (const auto& [key, rank] : ranks) {
            const int place = static_cast<int>(clique->devices.size());
            clique->devices.emplace(place, parent.devices.at(rank));
            split.places[rank] = {clique, place};
        }
    }
}

Meeting& opened(Meeting& m, const std::string& name) {
    if (!m.done) m.done = machine().order.promise(name), m.name = name;
    return m;
}

std::string waiting_text(const Clique& clique, const Meeting& m, int coming, const Launch& launch) {
    std::vector<int> here, missing;
    for (int rank = 0; rank < clique.size; ++rank) (rank == coming || m.came.count(rank) ? here : missing).push_back(rank);
    return fmt::format("{}: {}: ranks {} have come, ranks {} have not", m.name, text(launch), fmt::join(here, ", "),
                       fmt::join(missing, ", "));
}

}  // namespace

Communicators& Communicators::all() {
    Machine& m = machine();
    const Lock lock(m.mutex);
    if (!m.communicators) m.communicators = std::make_shared<Communicators>();
    return *m.communicators;
}

Member& Communicators::find(ncclComm_t handle) {
    try {
        return members_.at(handle, "communicator");
    } catch (const Refusal& refusal) {
        throw NcclRefusal{ncclInvalidArgument, refusal.why};
    }
}

Seat Communicators::seat(ncclComm_t handle) {
    const Lock lock(mutex_);
    const Member& m = find(handle);
    return {m.rank, m.clique->size, m.device, m.finalized, m.clique->broken, m.clique->why_broken};
}

int Communicators::take_queue() {
    if (free_queues_.empty()) return machine().order.add_queue();
    const int queue = free_queues_.back();
    free_queues_.pop_back();
    return queue;
}

// The communicator is of no more use. Calls that wait for its ranks end. Streams go on, with an error unless a rank has aborted.
void Communicators::give_up(Clique& clique, ncclResult_t code, const std::string& why, Lock& lock) {
    if (clique.broken != ncclSuccess) return;
    clique.broken = code, clique.why_broken = why;
    const int missing = clique.size - static_cast<int>(clique.devices.size());
    std::vector<Order::Mark> joins, meetings;
    if (missing > 0) joins.push_back(clique.ready);
    for (const auto& [number, split] : clique.splits) joins.push_back(split->ready);
    for (const auto& [number, meeting] : clique.collectives) meetings.push_back(meeting.done);
    for (const auto& [key, meeting] : clique.transfers) meetings.push_back(meeting.done);
    clique.collectives.clear(), clique.transfers.clear(), clique.splits.clear();
    Order& order = machine().order;
    order.expect(-missing);
    const int queue = take_queue();
    lock.unlock();
    const Order::Work fail = guarded("a collective", [why] { throw std::runtime_error(why); });
    for (const Order::Mark& mark : joins) order.keep(mark, queue, nullptr);
    for (const Order::Mark& mark : meetings) order.keep(mark, queue, code == ncclRemoteError ? nullptr : fail);
    lock.lock();
    free_queues_.push_back(queue);
}

// ---- Making communicators.

ncclUniqueId Communicators::new_id() {
    const Lock lock(mutex_);
    auto clique = std::make_shared<Clique>(Clique{fmt::format("communicator {}", by_id_.size() + 1), 0});
    ncclUniqueId id{};
    clique->name.copy(id.internal, sizeof id.internal);
    by_id_.emplace(key_of(id), std::move(clique));
    return id;
}

void Communicators::require_place(Clique& clique, int size, int rank, int device, Lock& lock) {
    const auto is_here = [&](const auto& other) { return other.second == device; };
    std::string why;
    if (size != clique.size) why = fmt::format("rank {} says that there are {} ranks, another said {}", rank, size, clique.size);
    else if (clique.devices.count(rank)) why = fmt::format("rank {} has come already", rank);
    else if (std::count_if(clique.devices.begin(), clique.devices.end(), is_here) >= machine().ranks_per_device)
        why = fmt::format("rank {} is on device {}, as another rank is", rank, device);
    if (why.empty()) return;
    why = clique.name + ": " + why;
    give_up(clique, ncclInvalidUsage, why, lock);
    throw NcclRefusal{ncclInvalidUsage, why};
}

Communicators::Join Communicators::join(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank, int device) {
    Order& order = machine().order;
    order.take_part();
    Lock lock(mutex_);
    const auto found = by_id_.find(key_of(id));
    require(found != by_id_.end(), ncclInvalidArgument, "the id is none of ncclGetUniqueId");
    const std::shared_ptr<Clique> clique = found->second;
    clique->require_sound();
    if (!clique->ready) {
        clique->size = size;
        clique->ready = order.promise(clique->name);
        order.expect(size);
    }
    require_place(*clique, size, rank, device, lock);
    clique->devices.emplace(rank, device);
    order.expect(-1);
    order.reword(clique->ready, fmt::format("{}: {} of {} ranks have come to it", clique->name, clique->devices.size(), size));
    const bool complete = static_cast<int>(clique->devices.size()) == size;
    const int queue = complete ? take_queue() : 0;
    lock.unlock();
    if (complete) order.keep(clique->ready, queue, nullptr);
    return [=, this] { finish_join(comm, clique, rank, device); };
}

void Communicators::finish_join(ncclComm_t* comm, const std::shared_ptr<Clique>& clique, int rank, int device) {
    await_others(clique->ready);
    const Lock lock(mutex_);
    clique->require_sound();
    *comm = members_.add({clique, rank, device});
}

Communicators::Join Communicators::split(ncclComm_t handle, int color, int key, ncclComm_t* comm) {
    Order& order = machine().order;
    order.take_part();
    Lock lock(mutex_);
    Member& member = find(handle);
    const int rank = member.rank, device = member.device;
    const std::shared_ptr<Clique> parent = member.clique;
    parent->require_sound();
    const uint64_t number = member.splits++;
    std::shared_ptr<Split>& open = parent->splits[number];
    if (!open) open = std::make_shared<Split>(Split{order.promise(parent->name), {}, {}});
    const std::shared_ptr<Split> split = open;
    split->came.emplace(rank, std::pair(color, key));
    order.reword(split->ready, fmt::format("split {} of {}: {} of {} ranks have come to it", number + 1, parent->name,
                                           split->came.size(), parent->size));
    const bool complete = static_cast<int>(split->came.size()) == parent->size;
    const int queue = complete ? take_queue() : 0;
    if (complete) {
        place_all(*split, *parent, number);
        parent->splits.erase(number);
    }
    lock.unlock();
    if (complete) order.keep(split->ready, queue, nullptr);
    return [=, this] { finish_split(comm, parent, *split, rank, device); };
}

void Communicators::finish_split(ncclComm_t* comm, const std::shared_ptr<Clique>& parent, const Split& split, int rank,
                                 int device) {
    await_others(split.ready);
    const Lock lock(mutex_);
    const auto place = split.places.find(rank);
    if (split.places.empty()) parent->require_sound();
    *comm = place == split.places.end() ? nullptr : members_.add({place->second.first, place->second.second, device});
}

// ---- How launches meet.

Communicators::Place Communicators::place_of_collective(Member& member, const Launch& launch) {
    Clique& clique = *member.clique;
    const uint64_t number = member.collectives++;
    Meeting& m = opened(clique.collectives[number],
                        fmt::format("collective {} of {} with {} ranks", number + 1, clique.name, clique.size));
    return {m, member.rank, static_cast<size_t>(clique.size), waiting_text(clique, m, member.rank, launch)};
}

Communicators::Place Communicators::place_of_transfer(Member& member, const Launch& launch) {
    Clique& clique = *member.clique;
    const bool sends = launch.kind == Kind::Send;
    const int other = launch.root, from = sends ? member.rank : other, to = sends ? other : member.rank;
    const uint64_t number = sends ? member.sends[other]++ : member.receives[other]++;
    Meeting& m = opened(clique.transfers[{from, to, number}],
                        fmt::format("transfer {} of {} from rank {} to rank {}", number + 1, clique.name, from, to));
    return {m, sends ? 0 : 1, 2,
            fmt::format("{}: {}: rank {} has come, rank {} has not", m.name, text(launch), member.rank, other)};
}

// Returns the mark of what the launches make together.
Order::Mark Communicators::come(ncclComm_t handle, const Launch& launch, int queue) {
    Lock lock(mutex_);
    Member& member = find(handle);
    Clique& clique = *member.clique;
    clique.require_sound();
    const Place place = launch.is_transfer() ? place_of_transfer(member, launch) : place_of_collective(member, launch);
    Meeting& m = place.meeting;
    if (!m.came.empty() && !agree(m.came.begin()->second, launch)) {
        const std::string why = fmt::format("{}: rank {} gives {}, another rank gave {}", m.name, member.rank, text(launch),
                                            text(m.came.begin()->second));
        const std::shared_ptr<Clique> kept = member.clique;
        give_up(*kept, ncclInvalidUsage, why, lock);
        throw NcclRefusal{ncclInvalidUsage, why};
    }
    m.came.emplace(place.side, launch);
    member.queues.insert(queue);
    const Order::Mark done = m.done;
    if (m.came.size() < place.sides) {
        machine().order.reword(done, place.waiting);
        return done;
    }
    const Meeting complete = m;
    const auto is_it = [&](const auto& entry) { return &entry.second == &m; };
    launch.is_transfer() ? std::erase_if(clique.transfers, is_it) : std::erase_if(clique.collectives, is_it);
    lock.unlock();
    give_collective(complete);
    return done;
}

void Communicators::give_collective(const Meeting& complete) {
    Order& order = machine().order;
    Lock lock(mutex_);
    const int queue = take_queue();
    lock.unlock();
    for (const auto& [side, launch] : complete.came) order.wait(queue, launch.arrival);
    order.keep(complete.done, queue, guarded(complete.name, [this, queue, launches = complete.came] {
                   run(launches);
                   const Lock running(mutex_);
                   free_queues_.push_back(queue);
               }));
}

void Communicators::launch(ncclComm_t handle, std::vector<Launch> launches, int queue, bool captured) {
    Order& order = machine().order;
    order.take_part();
    const Order::Mark arrival = order.give(queue);
    std::vector<Order::Mark> done;
    for (Launch& launch : launches) {
        launch.captured = captured, launch.arrival = arrival;
        done.push_back(come(handle, launch, queue));
    }
    for (const Order::Mark& mark : done) order.wait(queue, mark);
}

// ---- Ending communicators.

std::set<int> Communicators::finalize(ncclComm_t handle) {
    const Lock lock(mutex_);
    Member& member = find(handle);
    member.finalized = true;
    return member.queues;
}

void Communicators::remove(ncclComm_t handle) {
    const Lock lock(mutex_);
    members_.remove(handle);
}

void Communicators::abort(ncclComm_t handle) {
    Lock lock(mutex_);
    const Member member = find(handle);
    members_.remove(handle);
    give_up(*member.clique, ncclRemoteError, fmt::format("rank {} of {} has aborted", member.rank, member.clique->name), lock);
}

}  // namespace lockstep::fakes::cuda
