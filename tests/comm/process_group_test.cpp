// Processes that tell each other things between the launches of their ranks.
#include "comm/process_group.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>

#include "base/error.h"
#include "tests/comm/process_groups.h"

namespace lockstep::comm::test {
namespace {

std::string what(const std::exception_ptr& error) {
    try {
        if (error) std::rethrow_exception(error);
    } catch (const std::exception& e) {
        return e.what();
    }
    return "";
}

TEST(ProcessGroup, EveryProcessHearsWhatEveryOtherSays) {
    const auto said = [](int process, int round) { return std::string(static_cast<size_t>(process * 7 * round), 'a' + process); };
    const auto errors = in_process_groups({0, 0, 1}, [&](ProcessGroup& group) {
        EXPECT_EQ(group.processes(), 3);
        EXPECT_EQ(group.hosts(), 2);
        EXPECT_EQ(group.is_first(), group.process() == 0);
        for (int round = 0; round < 5; ++round) {  // in round 0 nobody says anything
            const std::vector<std::string> heard = group.exchange(said(group.process(), round));
            ASSERT_EQ(heard.size(), 3u);
            for (int p = 0; p < 3; ++p) EXPECT_EQ(heard[static_cast<size_t>(p)], said(p, round));
        }
    });
    for (const auto& e : errors) EXPECT_EQ(what(e), "");
}

TEST(ProcessGroup, TwoThreadsExchangeOnTwoChannels) {
    const auto errors = in_process_groups({0, 1}, [](ProcessGroup& group) {
        std::thread beside([&] {
            for (int i = 0; i < 200; ++i) EXPECT_EQ(group.exchange("b" + std::to_string(i), 1)[1], "b" + std::to_string(i));
        });
        for (int i = 0; i < 200; ++i) EXPECT_EQ(group.exchange("m" + std::to_string(i))[0], "m" + std::to_string(i));
        beside.join();
    });
    for (const auto& e : errors) EXPECT_EQ(what(e), "");
}

// Of several errors the first process's is everybody's.
TEST(ProcessGroup, ARefusalOfOneIsThatOfAllAndTheyGoOn) {
    const auto errors = in_process_groups({0, 0, 0, 0}, [](ProcessGroup& group) {
        const auto refuses = [&](const char* message) {
            try {
                group.together([&] {
                    if (group.process() >= 2)
                        throw UserError("test.refused", "a.key", "no\nroom on " + std::to_string(group.process()));
                });
                FAIL();
            } catch (const UserError& e) {
                EXPECT_EQ(e.id(), "test.refused");
                EXPECT_EQ(e.key(), "a.key");
                EXPECT_STREQ(e.what(), message);
            }
        };
        refuses("process 2: no\nroom on 2");
        refuses("process 2: no\nroom on 2");
        int ran = 0;
        group.together([&] { ++ran; });
        EXPECT_EQ(ran, 1);
    });
    for (const auto& e : errors) EXPECT_EQ(what(e), "");
}

// The others wait for something that will not come.
TEST(ProcessGroup, AnErrorOfOneEndsAllWithItsText) {
    const auto errors = in_process_groups({0, 1, 2}, [](ProcessGroup& group) {
        if (group.process() == 1) throw std::runtime_error("the disk is gone");
        group.exchange("");
    });
    EXPECT_EQ(what(errors[0]), "process 1: the disk is gone");
    EXPECT_EQ(what(errors[1]), "the disk is gone");
    EXPECT_EQ(what(errors[2]), "process 1: the disk is gone");
}

TEST(ProcessGroup, AUserErrorOfOneIsAUserErrorOfAll) {
    const auto errors = in_process_groups({0, 1}, [](ProcessGroup& group) {
        if (group.process() == 1) throw UserError("file.cannot_write", "x", "cannot write x");
        group.exchange("");
    });
    EXPECT_EQ(what(errors[0]), "process 1: cannot write x");
    EXPECT_THROW(std::rethrow_exception(errors[0]), UserError);
}

// A transport is destroyed by the same error, and waits for the others, who wait in an exchange.
TEST(ProcessGroup, AnErrorBesideATransportEndsAll) {
    std::atomic<int> reached{0};
    const auto errors = in_process_groups({0, 0}, [&](ProcessGroup& group) {
        const std::unique_ptr<Transport> transport = group.transport(4, {});
        EXPECT_EQ(transport->ranks(), 4);
        EXPECT_EQ(transport->ranks_here(), 2);
        EXPECT_EQ(transport->first_rank(), 2 * group.process());
        ++reached;
        group.guard([&] {
            if (group.process() == 1) throw std::runtime_error("lost");
            group.exchange("");
        });
    });
    EXPECT_EQ(reached, 2);
    EXPECT_EQ(what(errors[0]), "process 1: lost");
}

TEST(ProcessGroup, RanksAreSharedOutEvenly) {
    const auto errors = in_process_groups({0, 1, 1}, [](ProcessGroup& group) {
        EXPECT_EQ(group.ranks_on_a_host(6), 4);
        try {
            group.transport(4, {});
            FAIL();
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "job.processes");
            EXPECT_STREQ(e.what(),
                         "the recipe has 4 ranks, which 3 processes cannot share evenly: start 1, 2, 4 processes, or change the "
                         "degrees of [parallelism]");
        }
    });
    for (const auto& e : errors) EXPECT_EQ(what(e), "");
}

TEST(ProcessGroup, AloneItIsATransportOfThreads) {
    ProcessGroup group;
    EXPECT_TRUE(group.is_alone());
    EXPECT_EQ(group.exchange("x"), std::vector<std::string>{"x"});
    EXPECT_EQ(group.transport(3, {})->ranks_here(), 3);
    EXPECT_EQ(group.ranks_on_a_host(5), 5);
    EXPECT_THROW(group.together([] { throw UserError("a.b", "", "c"); }), UserError);
}

}  // namespace
}  // namespace lockstep::comm::test
