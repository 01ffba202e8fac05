// The steps of a run as a table on the console: a line a logged step, headings above the first and repeated after a screenful.
// Columns that do not fit into the terminal are left out, those that matter least first; all of them are in metrics.jsonl.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::telemetry {

struct StepLine {
    int64_t step = 0;
    double loss = 0, grad_norm = 0, lr = 0;
    double tokens_per_s = 0, flops_per_s = 0;  // of the whole job
    double mfu = -1;                           // share of the peak; negative: not known
    double memory_bytes = 0;
    double left_s = 0;
};

class StepTable {
public:
    // `steps`: the last one's number.
    explicit StepTable(int64_t steps) : steps_(steps) {}
    void print(const StepLine& line);

    // The lines that print() would say, at a terminal's width.
    std::vector<std::string> lines(const StepLine& line, int columns);

private:
    const int64_t steps_;
    int64_t printed_ = 0;
    double unit_ = 0;  // of the column of FLOP/s, chosen at the first line
};

}  // namespace lockstep::telemetry
