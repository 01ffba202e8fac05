// Tensors as they are produced, brought to global order: what --watch writes and `lockstep diff` compares. Slow, for small
// models.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "runtime/ranks.h"

namespace lockstep::runtime {

// One tensor of one step over all ranks and microbatches; partial sums are summed.
struct Captured {
    std::vector<int64_t> shape;  // batch is that of the whole step
    std::vector<double> values;
    int64_t order = 0;    // when it was first produced, by the order on the ranks of a process
    bool is_max = false;  // of parts: their maximum counts, not their sum
};

// What an entry of a program produces and Capture may be asked for: "layer[3].forward.o".
std::set<std::string> capturable(const ir::Program& program, ir::EntryKind entry);

class Capture {
public:
    // Attaches to every executor until it is destroyed. `wanted` is asked for each name "layer[3].forward.o".
    Capture(Ranks& ranks, std::function<bool(const std::string& name)> wanted);
    ~Capture();
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;

    // What has been captured since the last call, by name; of all processes, which call it at the same time.
    std::map<std::string, Captured> take();

private:
    void see(Executor& executor, const Produced& produced);

    Ranks& ranks_;
    std::function<bool(const std::string&)> wanted_;
    std::mutex mutex_;
    std::map<std::string, Captured> captured_;
    int64_t clock_ = 0;
};

}  // namespace lockstep::runtime
