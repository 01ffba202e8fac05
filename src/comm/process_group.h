// The processes of a job, seen by one of them: what they tell each other between the launches of their ranks, and the transport
// that their ranks share. A single process has all ranks. Each process has equally many ranks, in the order of processes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "comm/local.h"
#include "comm/processes/wire.h"
#include "comm/transport.h"

namespace lockstep::comm {

namespace processes {
class ProcessTransport;
}  // namespace processes

class ProcessGroup {
public:
    ProcessGroup();  // alone
    // A wire of its own messages each time; every process calls it equally often.
    using MakeWire = std::function<std::unique_ptr<processes::Wire>()>;
    explicit ProcessGroup(MakeWire make_wire);
    // Waits for the other processes; during an exception, after it has stopped them.
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    int process() const { return process_; }
    int processes() const { return static_cast<int>(host_of_.size()); }
    bool is_first() const { return process_ == 0; }  // the one that speaks and writes for all
    bool is_alone() const { return processes() == 1; }
    int host_of(int process) const { return host_of_[static_cast<size_t>(process)]; }
    int hosts() const;
    // Processors that a process finds on its host: the least of all hosts.
    int cores() const { return cores_; }
    // Ranks on the host that has most, where the job has `ranks`.
    int64_t ranks_on_a_host(int64_t ranks) const;

    // Every process's text, by process. All call it equally often and in the same order; another thread has another channel
    // (communicator.h). Throws Aborted.
    std::vector<std::string> exchange(const std::string& own, int channel = 0);
    // f() on every process, at the same time. Returns when all have; where it fails with a UserError on some, the first's error
    // is thrown on all.
    void together(FunctionRef<void()> f, int channel = 0);

    // Of a job of `ranks`. UserError job.processes where they cannot be shared out evenly.
    int ranks_a_process(int64_t ranks) const;

    // A transport for ranks that all processes make at the same time; `links` is only for ranks of one process. The process
    // group outlives it. UserError job.processes where the ranks cannot be shared out evenly.
    std::unique_ptr<Transport> transport(int ranks, const LocalOptions& links);

    // A wire of its own, for which every process calls this at the same time; in a single process: none.
    std::unique_ptr<processes::Wire> wire() { return make_wire_ ? make_wire_() : nullptr; }

    // Every exchange throws Aborted(reason), now and later, on all processes. The first reason stays.
    void abort(const std::string& reason);
    // f(), and where it fails the others are stopped with its error, before what f has made is destroyed by it: what that waits
    // for the others would wait for ever. A UserError of another process is thrown here as one.
    void guard(FunctionRef<void()> f);

private:
    const MakeWire make_wire_;
    int process_ = 0, cores_ = 1;
    std::vector<int> host_of_{0};
    std::unique_ptr<processes::ProcessTransport> world_;  // of one rank a process
    std::unique_ptr<Communicator> communicator_;
    GroupId everybody_{};
};

}  // namespace lockstep::comm
