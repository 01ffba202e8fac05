// The states of the ranks here, where they are in memory, as a checkpoint's global tensors. Of replicas the owner's count.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/tensor_source.h"
#include "runtime/ranks.h"
#include "runtime/states.h"

namespace lockstep::runtime {

class StateTensors : public checkpoint::TensorSource {
public:
    // What is read is what the memory holds at that time.
    StateTensors(Ranks& ranks, StateBytes bytes);

    std::vector<checkpoint::TensorSpec> specs(const std::string& file) const;  // those of a file of a checkpoint, in order

    bool contains(const std::string& name) const override { return tensors_.contains(name); }
    const checkpoint::TensorSpec& spec(const std::string& name) const override { return tensors_.find(name)->second.spec; }
    void read(const std::string& name, int64_t begin, int64_t count, void* data, Cursor& cursor) const override;
    void for_each_here(const std::string& name, int64_t begin, int64_t count, checkpoint::OfStretch f) const override;

private:
    struct Part {  // elements in a rank's memory
        int64_t begin, count;
        Executor* executor;
        int buffer;
        int64_t local_begin;  // in the buffer
    };
    struct Tensor {
        checkpoint::TensorSpec spec;
        std::vector<Part> parts;  // in order
    };
    void add_parts(Executor& executor, StateBytes bytes);

    std::map<std::string, std::vector<std::string>> names_;  // by file
    std::map<std::string, Tensor> tensors_;
};

}  // namespace lockstep::runtime
