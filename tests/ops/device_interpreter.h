// As Interpreter, on a device: one at a time, in an arena that they share.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "kernels/kernel.h"

namespace lockstep::testing {

class DeviceArena {
public:
    explicit DeviceArena(std::unique_ptr<device::Machine> machine);
    device::Device& device() { return *device_; }
    char* memory() const { return memory_; }
    static constexpr int64_t kBytes = int64_t{128} << 20;

private:
    std::unique_ptr<device::Machine> machine_;
    std::unique_ptr<device::Device> device_;
    char* memory_;
};

class DeviceInterpreter {
public:
    DeviceInterpreter(DeviceArena& arena, const mesh::Mesh& mesh, const ir::Routine& routine, int64_t rank);

    bool has(const std::string& tensor) const { return routine_.find(tensor) >= 0; }
    void set(const std::string& tensor, const std::vector<double>& values);
    std::vector<double> get(const std::string& tensor);
    void run(bool fresh);

private:
    device::Queue& queue() { return device_.queue(QueueName::Compute); }
    int64_t bytes_of_tensor(ir::TensorId t) const { return ir::local_bytes(mesh_, routine_, routine_.tensors[t]); }

    const mesh::Mesh& mesh_;
    const ir::Routine& routine_;
    device::Device& device_;
    std::vector<char*> data_;  // by tensor
    char* workspace_;
    std::vector<std::unique_ptr<kernels::Kernel>> kernels_;
};

}  // namespace lockstep::testing
