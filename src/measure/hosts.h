// What goes between the processes of a job: the hosts of a cluster file.
#pragma once

#include "comm/crew.h"
#include "sim/cluster.h"

namespace lockstep::measure {

// Every process of the crew calls it at the same time; each stands for one rank. Some seconds. Nothing: the crew is one process.
// UserError bench.hosts where hosts have unequal numbers of processes.
sim::Hosts hosts(comm::Crew& crew);

}  // namespace lockstep::measure
