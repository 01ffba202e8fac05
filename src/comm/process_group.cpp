#include "comm/process_group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/processors.h"
#include "base/round.h"
#include "comm/processes/process_transport.h"

namespace lockstep::comm {
namespace {

// A text as the words that a collective carries.
std::vector<int32_t> words_of(const std::string& text, int64_t words) {
    std::vector<int32_t> out(static_cast<size_t>(words));
    std::memcpy(out.data(), text.data(), text.size());
    return out;
}

std::vector<int> divisors(int n) {
    std::vector<int> out;
    for (int d = 1; d <= n; ++d) {
        if (n % d == 0) out.push_back(d);
    }
    return out;
}

// A UserError as one text, and back: "!" process, id, key, message, a line each.
std::string pack(int process, const UserError& e) { return fmt::format("!{}\n{}\n{}\n{}", process, e.id(), e.key(), e.what()); }
bool is_packed(const std::string& text) { return text.starts_with('!'); }
[[noreturn]] void throw_packed(const std::string& text) {
    const size_t id = text.find('\n') + 1, key = text.find('\n', id) + 1, message = text.find('\n', key) + 1;
    const std::string process = text.substr(1, id - 2);
    throw UserError(text.substr(id, key - 1 - id), text.substr(key, message - 1 - key),
                    (process == "0" ? "" : "process " + process + ": ") + text.substr(message));
}

}  // namespace

ProcessGroup::ProcessGroup() : cores_(static_cast<int>(usable_cpus().size())) {}

ProcessGroup::ProcessGroup(MakeWire make_wire) : make_wire_(std::move(make_wire)) {
    world_ = std::make_unique<processes::ProcessTransport>(make_wire_(), 1);
    process_ = world_->first_rank();
    host_of_ = world_->topology().host_of_rank;
    communicator_ = world_->communicator(process_);
    std::vector<int> all(static_cast<size_t>(world_->ranks()));
    std::iota(all.begin(), all.end(), 0);
    everybody_ = communicator_->add_group(std::move(all));
    cores_ = static_cast<int>(usable_cpus().size());
    for (const std::string& cores : exchange(std::to_string(cores_))) cores_ = std::min(cores_, std::stoi(cores));
}

ProcessGroup::~ProcessGroup() = default;

int ProcessGroup::hosts() const { return 1 + *std::max_element(host_of_.begin(), host_of_.end()); }

int64_t ProcessGroup::ranks_on_a_host(int64_t ranks) const {
    std::map<int, int64_t> processes_of;
    for (int host : host_of_) ++processes_of[host];
    int64_t most = 0;
    for (const auto& [host, count] : processes_of) most = std::max(most, count);
    return ceil_div(ranks * most, processes());
}

std::vector<std::string> ProcessGroup::exchange(const std::string& own, int channel) {
    if (is_alone()) return {own};
    const auto n = static_cast<size_t>(processes());
    std::vector<int32_t> sizes(2 * n);
    const auto bytes = static_cast<int64_t>(own.size());
    const std::vector<int32_t> size = words_of({reinterpret_cast<const char*>(&bytes), sizeof bytes}, 2);
    communicator_->run(channel, everybody_, all_gather(Dtype::I32, size.data(), sizes.data(), 1, 2, 1));
    std::vector<int64_t> bytes_of(n);
    std::memcpy(bytes_of.data(), sizes.data(), n * sizeof(int64_t));
    const int64_t words = ceil_div(*std::max_element(bytes_of.begin(), bytes_of.end()), int64_t{4});
    std::vector<int32_t> all(n * static_cast<size_t>(words));
    if (words > 0) {
        const std::vector<int32_t> block = words_of(own, words);
        communicator_->run(channel, everybody_, all_gather(Dtype::I32, block.data(), all.data(), 1, words, 1));
    }
    std::vector<std::string> out(n);
    for (size_t p = 0; p < n; ++p)
        out[p].assign(reinterpret_cast<const char*>(all.data() + p * static_cast<size_t>(words)),
                      static_cast<size_t>(bytes_of[p]));
    return out;
}

void ProcessGroup::together(FunctionRef<void()> f, int channel) {
    if (is_alone()) return f();
    std::optional<UserError> own;
    try {
        f();
    } catch (const UserError& e) {
        own = e;
    }
    for (const std::string& error : exchange(own ? pack(process_, *own) : "", channel)) {
        if (!error.empty()) throw_packed(error);
    }
}

std::unique_ptr<Transport> ProcessGroup::transport(int ranks, const LocalOptions& links) {
    if (is_alone()) return std::make_unique<LocalTransport>(ranks, links);
    return std::make_unique<processes::ProcessTransport>(make_wire_(), ranks_a_process(ranks));
}

int ProcessGroup::ranks_a_process(int64_t ranks) const {
    if (ranks % processes() != 0)
        throw UserError(
            "job.processes", "cluster.ranks",
            fmt::format("the recipe has {} ranks, which {} processes cannot share evenly: start {} processes, or change the "
                        "degrees of [parallelism]",
                        ranks, processes(), fmt::join(divisors(ranks), ", ")));
    return static_cast<int>(ranks / processes());
}

void ProcessGroup::guard(FunctionRef<void()> f) {
    try {
        f();
    } catch (const Aborted& e) {
        if (is_packed(e.what())) throw_packed(e.what());
        throw;
    } catch (const UserError& e) {
        abort(pack(process_, e));
        throw;
    } catch (const std::exception& e) {
        abort(is_alone() ? e.what() : fmt::format("process {}: {}", process_, e.what()));
        throw;
    }
}

void ProcessGroup::abort(const std::string& reason) {
    if (world_) world_->abort(reason);
}

}  // namespace lockstep::comm
