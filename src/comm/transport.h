// What carries a job's collectives: all its ranks; some of them are threads of this process.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "mesh/algorithms.h"

namespace lockstep::comm {

class Transport {
public:
    virtual ~Transport() = default;

    virtual int ranks() const = 0;  // of the job
    // Of this process: first_rank() .. first_rank() + ranks_here().
    virtual int first_rank() const = 0;
    virtual int ranks_here() const = 0;
    virtual const mesh::Topology& topology() const = 0;

    // Of a rank of this process. The transport outlives it.
    virtual std::unique_ptr<Communicator> communicator(int rank) = 0;

    // From any thread, at any time; see Communicator::abort.
    virtual void abort(const std::string& reason) = 0;
};

}  // namespace lockstep::comm
