// What goes between the processes of a job: the hosts of a cluster file.
#pragma once

#include "comm/process_group.h"
#include "sim/cluster.h"

namespace lockstep::measure {

// Every process of the job calls it at the same time; each represents one rank. Some seconds. Nothing: the process
// group is one process. UserError bench.hosts where hosts have unequal numbers of processes.
sim::Hosts hosts(comm::ProcessGroup& group);

}  // namespace lockstep::measure
