// Where a rank's work goes. What is given to one queue happens in the order in which it was given; what is given to two happens
// in any order, unless an event says otherwise (device.h). A kernel of the host finds here the threads that share its work.
#pragma once

#include "base/error.h"
#include "base/queues.h"
#include "base/thread_pool.h"

namespace lockstep::device {

class Device;

class Queue {
public:
    // Without a pool no kernel of the host can run in it; without a device it is the thread that uses it.
    explicit Queue(QueueName name, ThreadPool* pool = nullptr, Device* device = nullptr, void* handle = nullptr)
        : name_(name), pool_(pool), device_(device), handle_(handle) {}

    QueueName name() const { return name_; }
    int index() const { return static_cast<int>(name_); }
    void* handle() const { return handle_; }
    ThreadPool& pool() const {
        ensure(pool_, "queue: it has no threads for kernels");
        return *pool_;
    }
    Device& device() const {
        ensure(device_, "queue: it belongs to no device");
        return *device_;
    }

private:
    QueueName name_;
    ThreadPool* pool_;
    Device* device_;
    void* handle_;
};

}  // namespace lockstep::device
