#include "comm/processes/leader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/processes/chain_reduce.h"
#include "comm/processes/direct_reduce.h"
#include "comm/processes/gather.h"
#include "comm/processes/two_level_reduce.h"

namespace lockstep::comm::processes {
namespace {

constexpr uint64_t kCollectives = 0x6374, kSends = 0x7472;  // the first word of a header

// A scratch of the process, for one launch.
class ScratchLease {
public:
    explicit ScratchLease(State& state) : state_(state), scratch_(state.take_scratch()) {}
    ~ScratchLease() { state_.give_back(std::move(scratch_)); }
    ScratchLease(const ScratchLease&) = delete;
    ScratchLease& operator=(const ScratchLease&) = delete;
    Scratch& operator*() const { return *scratch_; }

private:
    State& state_;
    std::unique_ptr<Scratch> scratch_;
};

void write_shapes(Requests launch, std::byte* to) {
    for (const Request& request : launch) {
        const Shape shape = shape_of(request);
        std::memcpy(to, &shape, sizeof shape);
        to += sizeof shape;
    }
}

std::vector<Request> read_shapes(const std::byte* from, size_t count) {
    std::vector<Request> launch;
    for (size_t i = 0; i < count; ++i) {
        Shape shape{};
        std::memcpy(&shape, from + i * sizeof shape, sizeof shape);
        launch.push_back(request_of(shape));
    }
    return launch;
}

template <class Engine>
void drive(const Control& control, Engine&& engine) {
    Backoff backoff(control);
    for (Progress p = engine.advance(); p != Progress::Done; p = engine.advance()) {
        p == Progress::Some ? backoff.reset() : backoff.wait();
    }
}

class Leader {
public:
    Leader(State& state, Group& group, int channel, Scratch& scratch)
        : state_(state),
          group_(group),
          layout_(group.layout),
          channel_(group.channels[channel]),
          channel_index_(channel),
          link_{*state.wire, tag_of(group, channel), layout_, group.me, state.options.piece_bytes, scratch} {}

    void agree();
    void run(size_t index);

private:
    void exchange_digests();
    [[noreturn]] void stop_for_difference(int position);
    [[noreturn]] void stop_for(Requests first, int position, Requests other);
    void all_gather(size_t index);
    void reduce_scatter(size_t index);
    void all_reduce(size_t index);
    void all_reduce_everywhere(const mesh::CollectiveAlgorithm& algorithm, size_t index);
    void all_to_all(size_t index);
    void broadcast(size_t index);
    void permute(size_t index);
    mesh::CollectiveAlgorithm algorithm_of(const Request& mine) const;
    const mesh::Hops& hops_of(const mesh::CollectiveAlgorithm& a) const { return group_.hops[static_cast<size_t>(a.gather)]; }
    void set_operands(size_t index);
    void gather(const mesh::Hops& hops, int64_t element_bytes, std::byte* out);
    void reduce(const mesh::CollectiveAlgorithm& algorithm, const Request& mine, size_t index);
    const Request& of(int position, size_t index) const { return channel_.launch[position][index]; }
    std::byte* out(int position, size_t index) const { return static_cast<std::byte*>(of(position, index).out); }
    const std::byte* in(int position, size_t index) const { return static_cast<const std::byte*>(of(position, index).in); }

    State& state_;
    Group& group_;
    const mesh::GroupLayout& layout_;
    Channel& channel_;
    const int channel_index_;
    const Link link_;
};

// Every process learns the digests of all members, in rounds of doubling distance: nobody is through before everybody has come.
// A buffer holds those of this part, then of the next, and so on around.
void Leader::exchange_digests() {
    const int parts = layout_.parts();
    const auto part = [&](int distance) { return (group_.me + distance) % parts; };
    const auto count = [&](int first, int end) {
        size_t members = 0;
        for (int d = first; d < end; ++d) members += layout_.positions[part(d)].size();
        return members;
    };
    std::vector<uint64_t>& words = link_.scratch.words;
    const auto members = static_cast<size_t>(layout_.members());
    // [marker, digests around], then what is sent, then what is received
    const size_t room = static_cast<size_t>(header_capacity(layout_.members())) / sizeof(uint64_t);
    words.assign(1 + members + 2 * room, 0);
    words[0] = kCollectives;
    size_t at = 1;
    for (int position : group_.here) words[at++] = channel_.digests[position];
    std::byte* received = reinterpret_cast<std::byte*>(words.data() + 1 + members + room);
    for (int known = 1; known < parts; known *= 2) {
        const int more = std::min(known, parts - known);
        Message messages[2];
        messages[0] = link_.receive(part(known), received, static_cast<int64_t>(room * sizeof(uint64_t)));
        messages[1] =
            link_.send(part(parts - known), words.data(), static_cast<int64_t>((1 + count(0, more)) * sizeof(uint64_t)));
        wait_for(state_.control, messages);
        std::vector<Request> sends;
        if (read_header({received, room * sizeof(uint64_t)}, sends)) stop_for(sends, 1, channel_.launch[group_.leader()]);
        const size_t arrived = count(known, known + more);
        std::memcpy(words.data() + at, received + sizeof(uint64_t), arrived * sizeof(uint64_t));
        at += arrived;
    }
    at = 1;
    for (int d = 0; d < parts; ++d) {
        for (int position : layout_.positions[part(d)]) channel_.digests[position] = words[at++];
    }
}

void Leader::agree() {
    exchange_digests();
    const std::vector<uint64_t>& digests = channel_.digests;
    const auto other = std::find_if(digests.begin(), digests.end(), [&](uint64_t d) { return d != digests[0]; });
    if (other != digests.end()) stop_for_difference(static_cast<int>(other - digests.begin()));
}

void Leader::stop_for(Requests first, int position, Requests other) {
    state_.control.abort(mismatch(group_.ranks, channel_index_, first, position, other));
    throw Stopped();
}

// All know which members differ; what they launched comes together where position 0 is.
void Leader::stop_for_difference(int position) {
    const int first_part = layout_.part_of[0], other_part = layout_.part_of[position];
    std::vector<std::byte>& shapes = link_.scratch.staging;
    if (group_.me == first_part) {
        if (group_.me == other_part) stop_for(channel_.launch[0], position, channel_.launch[position]);
        int64_t count = 0;
        Message message = link_.receive(other_part, &count, sizeof count);
        wait_for(state_.control, {&message, 1});
        shapes.resize(static_cast<size_t>(count) * sizeof(Shape));
        message = link_.receive(other_part, shapes.data(), static_cast<int64_t>(shapes.size()));
        wait_for(state_.control, {&message, 1});
        stop_for(channel_.launch[0], position, read_shapes(shapes.data(), static_cast<size_t>(count)));
    }
    Message messages[2];
    if (group_.me == other_part) {
        const Requests own = channel_.launch[position];
        const auto count = static_cast<int64_t>(own.size());
        shapes.resize(sizeof count + own.size() * sizeof(Shape));
        std::memcpy(shapes.data(), &count, sizeof count);
        write_shapes(own, shapes.data() + sizeof count);
        messages[0] = link_.send(first_part, shapes.data(), sizeof count);
        messages[1] = link_.send(first_part, shapes.data() + sizeof count, static_cast<int64_t>(own.size() * sizeof(Shape)));
    }
    for (Backoff backoff(state_.control);; backoff.wait()) messages[0].done(), messages[1].done();  // until it stops
}

mesh::CollectiveAlgorithm Leader::algorithm_of(const Request& mine) const {
    const int64_t bytes = mine.block_bytes();
    if (!mine.algorithm) return mesh::choose_algorithm(layout_, mine.kind, bytes, state_.options.small_bytes, false);
    if (const std::string why = mesh::unfit(layout_, mine.kind, *mine.algorithm); !why.empty()) {
        state_.control.abort(fmt::format("ranks launched {} in group {}, but {}: the program was compiled for other hosts",
                                         describe(mine), group_.ranks, why));
        throw Stopped();
    }
    if (mine.traits().reduces && mine.algorithm->reduce == mesh::ReduceBy::Library) {
        state_.control.abort(
            fmt::format("ranks launched {} in group {}, reduced by a library, and there is none between these "
                        "processes: the program was compiled for GPUs",
                        describe(mine), group_.ranks));
        throw Stopped();
    }
    return *mine.algorithm;
}

void Leader::gather(const mesh::Hops& hops, int64_t element_bytes, std::byte* to) {
    drive(state_.control, Gather(link_, hops, element_bytes, to));
}

void Leader::set_operands(size_t index) {
    std::vector<const std::byte*>& ins = link_.scratch.ins;
    ins.assign(static_cast<size_t>(layout_.members()), nullptr);
    for (int position : group_.here) ins[position] = in(position, index);
}

void Leader::reduce(const mesh::CollectiveAlgorithm& algorithm, const Request& mine, size_t index) {
    set_operands(index);
    const Operands operands = {mine.type, mine.op, link_.scratch.ins};
    switch (algorithm.reduce) {
        case mesh::ReduceBy::Everywhere:      // see all_reduce
        case mesh::ReduceBy::Library: break;  // see algorithm_of
        case mesh::ReduceBy::Direct: return drive(state_.control, DirectReduce(link_, operands));
        case mesh::ReduceBy::Chain: return drive(state_.control, ChainReduce(link_, operands));
        case mesh::ReduceBy::TwoLevel: {
            const ScratchLease within(state_), between(state_);
            return drive(state_.control, TwoLevelReduce(link_, operands, *group_.levels, *within, *between));
        }
    }
}

void Leader::all_gather(size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int64_t run = mine.dim * mine.inner, members = layout_.members(), element_bytes = bytes_of(mine.type);
    std::vector<Block>& blocks = link_.scratch.blocks;
    blocks.clear();
    for (int part = 0; part < layout_.parts(); ++part) {
        for (int position : layout_.positions[part]) {
            blocks.push_back(
                {part, {position * run, mine.outer, run, members * run}, part == group_.me ? in(position, index) : nullptr});
        }
    }
    gather(hops_of(algorithm_of(mine)), element_bytes, out(group_.leader(), index));
}

void Leader::reduce_scatter(size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int64_t run = mine.dim * mine.inner, members = layout_.members();
    std::vector<Target>& targets = link_.scratch.targets;
    targets.clear();
    for (int part = 0; part < layout_.parts(); ++part) {
        for (int position : layout_.positions[part]) {
            Target target{part, {position * run, mine.outer, run, members * run}, {0, mine.outer, run, run}};
            if (part == group_.me) target.out = out(position, index), target.accumulate = of(position, index).accumulate;
            targets.push_back(target);
        }
    }
    reduce(algorithm_of(mine), mine, index);
}

// Each part reduces a slice; then the slices are gathered.
void Leader::all_reduce(size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int64_t total = mine.block_elements(), parts = layout_.parts(), element_bytes = bytes_of(mine.type);
    const mesh::CollectiveAlgorithm algorithm = algorithm_of(mine);
    if (algorithm.reduce == mesh::ReduceBy::Everywhere) return all_reduce_everywhere(algorithm, index);
    const int64_t line = 64 / element_bytes, slice = ((total + parts - 1) / parts + line - 1) / line * line;
    std::byte* to = out(group_.leader(), index);
    std::vector<Target>& targets = link_.scratch.targets;
    std::vector<Block>& blocks = link_.scratch.blocks;
    targets.clear(), blocks.clear();
    for (int part = 0; part < parts; ++part) {
        const int64_t begin = std::min(total, part * slice), count = std::min(total, begin + slice) - begin;
        const Area area = {begin, 1, count, count};
        targets.push_back({part, area, area, to});
        blocks.push_back({part, area, to + begin * element_bytes});
    }
    reduce(algorithm, mine, index);
    gather(hops_of(algorithm), element_bytes, to);
}

// One latency instead of two: everybody gets all operands and reduces them.
void Leader::all_reduce_everywhere(const mesh::CollectiveAlgorithm& algorithm, size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int64_t total = mine.block_elements(), element_bytes = bytes_of(mine.type);
    std::vector<std::byte>& operands = link_.scratch.operands;  // [members, total]
    const auto needed = static_cast<size_t>(total * element_bytes * layout_.members());
    if (operands.size() < needed) operands.resize(needed);
    std::vector<Block>& blocks = link_.scratch.blocks;
    blocks.clear();
    for (int part = 0; part < layout_.parts(); ++part) {
        for (int position : layout_.positions[part])
            blocks.push_back({part, {position * total, 1, total, total}, part == group_.me ? in(position, index) : nullptr});
    }
    gather(hops_of(algorithm), element_bytes, operands.data());
    std::vector<Rows>& sources = link_.scratch.sources;
    sources.clear();
    for (int64_t position = 0; position < layout_.members(); ++position)
        sources.push_back({operands.data() + position * total * element_bytes, total});
    reduce_rows(mine.type, mine.op, sources, {out(group_.leader(), index), total}, 1, total, false);
}

// A direct reduction that keeps the operands apart instead of adding them.
void Leader::all_to_all(size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int64_t run = mine.dim * mine.inner, run_out = mine.block_elements() / mine.outer_out, members = layout_.members();
    std::vector<Target>& targets = link_.scratch.targets;
    targets.clear();
    for (int part = 0; part < layout_.parts(); ++part) {
        for (int position : layout_.positions[part]) {
            targets.push_back({part,
                               {position * run, mine.outer, run, members * run},
                               {0, mine.outer_out, run_out, members * run_out},
                               part == group_.me ? out(position, index) : nullptr});
        }
    }
    set_operands(index);
    drive(state_.control, DirectReduce(link_, {mine.type, mine.op, link_.scratch.ins, true}));
}

void Leader::broadcast(size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int64_t total = mine.block_elements();
    const int part = layout_.part_of[mine.root];
    link_.scratch.blocks.assign(1, {part, {0, 1, total, total}, part == group_.me ? in(mine.root, index) : nullptr});
    gather(group_.broadcast_hops[static_cast<size_t>(mine.root)], bytes_of(mine.type), out(group_.leader(), index));
}

// Each block goes straight to its receiver. Between two parts messages go in the order of the positions that give.
void Leader::permute(size_t index) {
    const Request& mine = of(group_.leader(), index);
    const int members = layout_.members();
    const int64_t bytes = mine.block_bytes();
    std::vector<Message>&sends = link_.scratch.sends, &receives = link_.scratch.receives;
    // Taken back, where this is stopped, before the buffers are left.
    struct Clear {
        std::vector<Message>&sends, &receives;
        ~Clear() { sends.clear(), receives.clear(); }
    } clear{sends, receives};
    sends.clear(), receives.clear();
    for (int from = 0; from < members; ++from) {
        const int to = static_cast<int>((from + static_cast<int64_t>(mine.by)) % members);
        const int gives = layout_.part_of[from], takes = layout_.part_of[to];
        if (gives == group_.me && takes == group_.me) {
            std::memcpy(out(to, index), in(from, index), static_cast<size_t>(bytes));
            continue;
        }
        for (int64_t at = 0; at < bytes; at += link_.piece_bytes) {
            const int64_t count = std::min(link_.piece_bytes, bytes - at);
            if (takes == group_.me) receives.push_back(link_.receive(gives, out(to, index) + at, count));
            if (gives == group_.me) sends.push_back(link_.send(takes, in(from, index) + at, count));
        }
    }
    wait_for(state_.control, receives);
    wait_for(state_.control, sends);
}

void Leader::run(size_t index) {
    const Request& mine = of(group_.leader(), index);
    if (mine.block_elements() == 0) return;
    switch (mine.kind) {
        case Collective::AllGather: return all_gather(index);
        case Collective::ReduceScatter: return reduce_scatter(index);
        case Collective::AllReduce: return all_reduce(index);
        case Collective::AllToAll: return all_to_all(index);
        case Collective::Broadcast: return broadcast(index);
        case Collective::Permute: return permute(index);
        case Collective::Send:
        case Collective::Recv:
        case Collective::Wait: return;  // see communicator.cpp
    }
}

}  // namespace

void Backoff::wait() {
    if (control_.stopping()) throw Stopped();
    ++looks_;
    if (looks_ < 100) std::this_thread::yield();
    else std::this_thread::sleep_for(std::chrono::microseconds(looks_ < 1000 ? 20 : 100));
}

void wait_for(const Control& control, std::span<Message> messages) {
    for (Message& message : messages) {
        for (Backoff backoff(control); !message.done();) backoff.wait();
    }
}

void lead(State& state, Group& group, int channel) {
    ScratchLease scratch(state);
    const ActiveGuard active(state.control);
    Leader leader(state, group, channel, *scratch);
    leader.agree();
    const size_t requests = group.channels[channel].launch[group.leader()].size();
    for (size_t index = 0; index < requests; ++index) leader.run(index);
}

void write_header(Requests sends, std::vector<std::byte>& header) {
    const uint64_t words[2] = {kSends, sends.size()};
    header.resize(sizeof words + sends.size() * sizeof(Shape));
    std::memcpy(header.data(), words, sizeof words);
    write_shapes(sends, header.data() + sizeof words);
}

bool read_header(std::span<const std::byte> header, std::vector<Request>& sends) {
    uint64_t words[2] = {};
    std::memcpy(words, header.data(), sizeof words);
    if (words[0] != kSends) return false;
    sends = read_shapes(header.data() + sizeof words, words[1]);
    return true;
}

int64_t header_capacity(int members) {
    const auto sends = static_cast<int64_t>(2 * sizeof(uint64_t) + kSendsInALaunch * sizeof(Shape));
    const auto digests = static_cast<int64_t>(static_cast<size_t>(1 + members) * sizeof(uint64_t));
    return std::max(sends, digests);
}

}  // namespace lockstep::comm::processes
