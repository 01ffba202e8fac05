#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace lockstep {

void parallel_for(size_t n, FunctionRef<void(size_t)> f) {
    std::vector<std::exception_ptr> errors(n);
    std::atomic<size_t> next = 0;
    const auto work = [&] {
        for (size_t i = next++; i < n; i = next++) {
            try {
                f(i);
            } catch (...) {
                errors[i] = std::current_exception();
            }
        }
    };
    std::vector<std::thread> others;
    const size_t threads = std::min<size_t>(n, std::max(1u, std::thread::hardware_concurrency()));
    for (size_t t = 1; t < threads; ++t) others.emplace_back(work);
    work();
    for (std::thread& t : others) t.join();
    for (const std::exception_ptr& e : errors) {
        if (e) std::rethrow_exception(e);
    }
}

}  // namespace lockstep
