// What `bench` finds of the links between processes, here threads over a wire of memory.
#include "measure/hosts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/comm/process_groups.h"

namespace lockstep::testing {
namespace {

TEST(MeasureHosts, EveryProcessFindsTheSame) {
    std::vector<sim::Hosts> found(4);
    const auto errors = comm::test::in_process_groups(
        {0, 0, 1, 1}, [&](comm::ProcessGroup& group) { found[static_cast<size_t>(group.process())] = measure::hosts(group); });
    for (const std::exception_ptr& e : errors) EXPECT_EQ(e, nullptr);
    for (const sim::Hosts& h : found) {
        EXPECT_EQ(h.ranks, 2);
        EXPECT_EQ(h.ranks_per_process, 1);
        EXPECT_TRUE(h.share_cores);  // they are one machine
        EXPECT_GT(h.link.bandwidth_bytes_per_s, 1e6);
        EXPECT_GT(h.process_bytes_per_s, 1e6);
        EXPECT_GT(h.core_s_per_byte, 0);
        EXPECT_GT(h.process_latency_s, 0);
        EXPECT_GT(h.link.latency_s, 0);
        EXPECT_GT(h.polling, 0);
        EXPECT_LE(h.polling, 0.9);
        EXPECT_EQ(h.link.bandwidth_bytes_per_s, found[0].link.bandwidth_bytes_per_s);
        EXPECT_EQ(h.link.latency_s, found[0].link.latency_s);
    }
}

TEST(MeasureHosts, UnequalHostsAreRefused) {
    for (const std::vector<int>& host_of : {std::vector{0, 0, 1}, std::vector{0, 1, 0, 1}}) {
        for (const std::exception_ptr& e :
             comm::test::in_process_groups(host_of, [](comm::ProcessGroup& group) { measure::hosts(group); })) {
            try {
                ASSERT_NE(e, nullptr);
                std::rethrow_exception(e);
            } catch (const UserError& error) {
                EXPECT_EQ(error.id(), "bench.hosts");
            }
        }
    }
}

}  // namespace
}  // namespace lockstep::testing
