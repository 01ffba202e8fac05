// The arena of one rank while a machine runs its calls: which bytes hold what, who touched them last, and what gradients and
// scalars are made of. Assumes well-formed programs; knows nothing of other ranks. A breach is thrown as Illegal.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gradient_ledger.h"
#include "ir/program.h"

namespace lockstep::check_test {

// Where a call stands on its rank: the calls of queue q before seen[q] have ended, in every execution, before it starts.
struct Moment {
    QueueName queue = QueueName::Compute;
    int position = 0;
    ByStepQueue<int> seen;
};

// What a program's calls touch, as ranges of cells: the pieces into which the borders of all touched ranges cut the arena.
class AccessTable {
public:
    struct Touch {
        int buffer = -1, port = -1;  // port -1: scratch
        bool reads = false, writes = false;
        size_t begin = 0, end = 0;  // cells
    };
    explicit AccessTable(const ir::Program& program);

    const std::vector<Touch>& of(const ir::Entry& entry, int call) const {
        return touches_.at(entry.kind)[static_cast<size_t>(call)];
    }
    size_t cells() const { return borders_.size(); }
    bool persistent(int buffer) const { return persistent_[static_cast<size_t>(buffer)]; }
    std::pair<size_t, size_t> cells_of(int64_t begin_bytes, int64_t end_bytes) const;

private:
    std::vector<int64_t> borders_;
    std::map<ir::EntryKind, std::vector<std::vector<Touch>>> touches_;
    std::vector<bool> persistent_;
};

class RankMemory {
public:
    RankMemory(const ir::Program& program, const AccessTable& table);

    void begin_step(const ir::Entry& entry);
    void run(int call, const Moment& moment);
    void end_step();

private:
    struct Cell {
        int owner = -1;  // the buffer through which it was last written; -1: ended, or never
        int step = -1;
        bool garbage = false;
        ByStepQueue<int> read{-1}, wrote{-1};  // position of the queue's last call that did, in this step
    };
    using Touch = AccessTable::Touch;

    void refuse_races(const Touch& touch, const Moment& moment) const;
    void refuse_stale_read(const Touch& touch) const;
    void refuse_second_write(const Touch& touch);
    void open_or_free(const Touch& touch);
    void refuse_foreign_states(const Touch& touch);
    void refuse_foreign_data(const Touch& touch);
    int64_t place_of(int64_t further) const;
    void leave(const Touch& touch, const Moment& moment);
    void touch_weights(const Touch& touch);
    [[noreturn]] void refuse(const std::string& why, int buffer) const;

    const ir::Program& program_;
    const AccessTable& table_;
    const ir::Entry* entry_ = nullptr;
    const ir::Call* call_ = nullptr;
    const ir::Routine* routine_ = nullptr;
    int call_index_ = -1, step_ = -1;
    std::vector<Cell> cells_;
    std::map<int, std::vector<std::pair<size_t, size_t>>> written_;  // cells of activations, frames, windows written in this step
    std::map<int, bool> gathered_;                                   // buffer -> alive
    std::map<int, std::string> holds_;   // buffer -> whose weights or moments, by the first call that says so
    std::map<std::string, int> inputs_;  // what -> buffer
    std::map<int, int> updated_;         // weights buffer -> step of its update
    GradientLedger ledger_;
};

}  // namespace lockstep::check_test
