// As Interpreter, on a device: one at a time, in an arena that they share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "kernels/kernel.h"
#include "plugins/gpu_module.h"

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

// A fixture on the device of the module that LOCKSTEP_GPU_MODULE names; without one its tests are left out.
template <class Base>
class OnNamedDevice : public Base {
protected:
    static void SetUpTestSuite() {
        const char* module = std::getenv(plugins::kModuleVariable);
        if (!module) return;
        plugins::use_gpu_module(module);
        arena_ = new DeviceArena(plugins::gpu_module().machine(0));
    }
    static void TearDownTestSuite() { delete std::exchange(arena_, nullptr); }
    void SetUp() override {
        if (!std::getenv(plugins::kModuleVariable)) GTEST_SKIP() << "LOCKSTEP_GPU_MODULE names no module";
        ASSERT_TRUE(arena_) << "the module has no GPU";
    }
    inline static DeviceArena* arena_ = nullptr;
};

}  // namespace lockstep::testing
