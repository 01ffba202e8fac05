#include "comm/processes/process_transport.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "comm/launch.h"
#include "comm/processes/state.h"

namespace lockstep::comm::processes {

Group::Group(std::vector<int> list, int number, const ProcessTransport& world)
    : ranks(std::move(list)),
      number(number),
      layout(mesh::group_layout(ranks, world.topology())),
      me(layout.part_of_process(world.first_rank() / world.ranks_here())),
      here(layout.positions[me]),
      hops{mesh::gather_hops(layout, mesh::GatherBy::Direct, me), mesh::gather_hops(layout, mesh::GatherBy::Ring, me),
           layout.parts_a_host > 0 ? mesh::gather_hops(layout, mesh::GatherBy::TwoLevel, me) : mesh::Hops{}},
      broadcast_hops([this] {
          std::vector<mesh::Hops> hops;
          for (int root = 0; root < layout.members(); ++root) hops.push_back(mesh::broadcast_hops(layout, root, me));
          return hops;
      }()),
      levels(layout.level > 1 ? std::optional(mesh::levels_of(layout, me)) : std::nullopt) {
    for (Channel& channel : channels) {
        channel.launch.resize(ranks.size());
        channel.digests.resize(ranks.size());
        if (ranks.size() == 2) channel.pending.resize(kSendsInFlight);
    }
}

State::State(std::unique_ptr<Wire> own_wire, int ranks_per_process, Options options)
    : wire(std::move(own_wire)),
      ranks_per_process(ranks_per_process),
      options(options),
      control(*wire,
              fmt::format("{} ranks a process, messages of {} bytes, pieces of {}, small up to {}", ranks_per_process,
                          options.message_bytes, options.piece_bytes, options.small_bytes),
              [this] { close_groups(); }) {
    topology.ranks_per_process = ranks_per_process;
    std::map<int, int> number;
    for (int process = 0; process < wire->processes(); ++process) {
        const int host = number.try_emplace(wire->host_of(process), static_cast<int>(number.size())).first->second;
        topology.host_of_rank.insert(topology.host_of_rank.end(), static_cast<size_t>(ranks_per_process), host);
    }
}

void State::close_groups() {
    const std::lock_guard lock(mutex);
    for (const auto& [ranks, group] : groups) {
        for (Channel& channel : group->channels) channel.start.close(), channel.sent.close(), channel.received.close();
    }
}

Group& State::group(const std::vector<int>& ranks, const ProcessTransport& world) {
    require_group(ranks, world.ranks());
    const auto [first, last] = std::minmax_element(ranks.begin(), ranks.end());
    const bool shared = *first / ranks_per_process != *last / ranks_per_process;
    const int number = shared ? control.number_of(ranks) : -1;
    if (const int groups = (wire->most_tag() - (kChannels - 1)) / kChannels + 1; number >= groups) {
        control.abort(
            fmt::format("ranks communicate in more than {} groups, for which messages between processes have no tags", groups));
        control.throw_aborted();
    }
    std::unique_lock lock(mutex);
    if (control.stopping()) {  // before a stop closes the groups, or this one would stay open
        lock.unlock();
        control.throw_aborted();
    }
    std::unique_ptr<Group>& group = groups[ranks];
    if (!group) group = std::make_unique<Group>(ranks, number, world);
    return *group;
}

std::unique_ptr<Scratch> State::take_scratch() {
    const std::lock_guard lock(mutex);
    if (scratches.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(scratches.back());
    scratches.pop_back();
    return scratch;
}

void State::give_back(std::unique_ptr<Scratch> scratch) {
    const std::lock_guard lock(mutex);
    scratches.push_back(std::move(scratch));
}

ProcessTransport::ProcessTransport(std::unique_ptr<Wire> wire, int ranks_per_process, Options options)
    : exceptions_(std::uncaught_exceptions()) {
    ensure(ranks_per_process >= 1 && options.piece_bytes >= 1 && options.message_bytes >= 1,
           "comm: ranks_per_process, piece_bytes and message_bytes must be at least 1");
    options.piece_bytes = std::min(options.piece_bytes, options.message_bytes);
    state_ = std::make_unique<State>(std::move(wire), ranks_per_process, options);
}

ProcessTransport::~ProcessTransport() {
    if (std::uncaught_exceptions() > exceptions_) abort(fmt::format("process {} ended early", state_->wire->process()));
}

int ProcessTransport::ranks() const { return state_->wire->processes() * state_->ranks_per_process; }
int ProcessTransport::ranks_here() const { return state_->ranks_per_process; }
int ProcessTransport::first_rank() const { return state_->wire->process() * state_->ranks_per_process; }
const mesh::Topology& ProcessTransport::topology() const { return state_->topology; }
void ProcessTransport::abort(const std::string& reason) { state_->control.abort(reason); }

std::unique_ptr<Communicator> ProcessTransport::communicator(int rank) {
    ensure(rank >= first_rank() && rank < first_rank() + ranks_here(),
           fmt::format("rank {} in a process of ranks {} to {}", rank, first_rank(), first_rank() + ranks_here() - 1));
    return make_communicator(*this, *state_, rank);
}

}  // namespace lockstep::comm::processes
