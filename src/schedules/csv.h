// A table as text. CSV as torch.distributed.pipelining writes and reads it (`compute_only`): a line a rank, a cell an action
// such as 2F0 or empty; and a drawing for people, time down, a column a rank, as PyTorch prints it.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "schedules/table.h"

namespace lockstep::schedules {

inline constexpr ErrorId kOtherRanks{"pipeline.csv_ranks"};

std::string print_csv(const Table& table);

struct CsvSource {
    std::string file;             // for messages
    int64_t ranks, microbatches;  // what the table has to be for
};
// Stages are those that the cells name. The table is legal (check_schedule).
// Throws UserError: pipeline.csv_ranks, pipeline.csv_cell, pipeline.csv_illegal; each names line and cell, counted from 1.
Table read_csv(std::string_view text, const CsvSource& source);

std::string draw(const Table& table);

}  // namespace lockstep::schedules
