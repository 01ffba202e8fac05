// The tables that make_schedules.py stored from torch.distributed.pipelining.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "schedules/schedules.h"

namespace lockstep::testing {

struct StoredTable {
    std::string name;
    schedules::Shape shape;
    bool refused = false;
    std::string csv;
    std::vector<int64_t> in_flight;  // per stage
    std::string title() const;
};
struct StoredDrawing {
    std::string name;
    schedules::Shape shape;
    std::string text;
};
struct Stored {
    std::vector<StoredTable> tables;
    std::vector<StoredDrawing> drawings;
};

const Stored& stored();

}  // namespace lockstep::testing
