#include "runtime/meet_kernel.h"

#include <algorithm>
#include <vector>

#include "device/device.h"

namespace lockstep::runtime {

std::unique_ptr<kernels::Kernel> meet_through(comm::islands::Member& member, const kernels::KernelContext& c) {
    return kernels::kernel_from([&member, counts = c.counts(), type = c.in(0).dtype, n = c.elements(c.in(0)),
                                 bits = c.op.integer("bits"), here = std::vector<char>()](const kernels::KernelArgs& a) mutable {
        if (!counts) return;
        if (!a.queue.handle()) return member.mean(type, a.in[0], a.out[0], n, bits);
        // The memory is not the host's, and kernels are given here: what was given before them has to happen first.
        here.resize(static_cast<size_t>(n * bytes_of(type)));
        device::Device& device = a.queue.device();
        device::each_access(std::ssize(here), [&](int64_t at, int64_t bytes) {
            device.read(a.queue, static_cast<const char*>(a.in[0]) + at, bytes,
                        [&](const char* from) { std::copy_n(from, bytes, here.data() + at); });
        });
        member.mean(type, here.data(), here.data(), n, bits);
        device::each_access(std::ssize(here), [&](int64_t at, int64_t bytes) {
            device.write(a.queue, static_cast<char*>(a.out[0]) + at, bytes,
                         [&](char* to) { std::copy_n(here.data() + at, bytes, to); });
        });
    });
}

}  // namespace lockstep::runtime
