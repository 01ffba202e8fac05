// Where islands meet: who is present when, what they agree on, what one that is lost leaves; then the same over sockets.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "base/checksum.h"
#include "base/error.h"
#include "base/quantized.h"
#include "comm/islands/mean.h"
#include "comm/islands/meetings.h"
#include "comm/islands/member.h"
#include "comm/islands/service.h"

namespace lockstep::comm::islands {
namespace {

std::string bytes_of_floats(const std::vector<float>& x) {
    return {reinterpret_cast<const char*>(x.data()), x.size() * sizeof(float)};
}
std::vector<float> floats_of(const std::string& bytes) {
    std::vector<float> out(bytes.size() / sizeof(float));
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
}

// Meetings of islands with one rank each, unless said otherwise, and all that they are told.
struct Hall {
    explicit Hall(int64_t islands)
        : meetings(
              {islands, 10},
              [this](const std::string& to, const Header& h, std::span<const char> bytes) {
                  sent.push_back({to, h, std::string(bytes.begin(), bytes.end())});
              },
              [this](const std::string& line) { said.push_back(line); }) {
        for (int64_t i = 0; i < islands; ++i) meetings.expect(i);
    }

    struct Sent {
        std::string to;
        Header header;
        std::string bytes;
    };
    std::deque<Sent> sent;
    std::vector<std::string> said;
    Meetings meetings;
    double now_s = 0;
    std::map<int64_t, uint64_t> sessions;

    Header header(Kind kind, int64_t island, int64_t step, int64_t rank = 0, int64_t ranks = 1) {
        Header h;
        h.kind = kind, h.island = island, h.rank = rank, h.ranks = ranks, h.step = step;
        h.session = sessions.try_emplace(island, 100 + static_cast<uint64_t>(island)).first->second;
        return h;
    }
    static std::string peer(int64_t island, int64_t rank = 0) { return std::to_string(island) + "." + std::to_string(rank); }
    // What an island hears at once, if anything.
    Kind ask(Kind kind, int64_t island, int64_t step, int64_t rank = 0, int64_t ranks = 1, const std::string& model = "model",
             const std::string& anchor = "anchor") {
        Header h = header(kind, island, step, rank, ranks);
        h.model = model, h.anchor = anchor;
        const size_t before = sent.size();
        meetings.take(peer(island, rank), h, "", now_s);
        for (size_t i = before; i < sent.size(); ++i) {
            if (sent[i].to == peer(island, rank)) return sent[i].header.kind;
        }
        return Kind::Arrive;  // nothing
    }
    void mean(int64_t island, int64_t step, const std::vector<float>& x, int64_t launch = 0) {
        Header h = header(Kind::Mean, island, step);
        h.bits = 32, h.launch = launch;
        meetings.take(peer(island), h, bytes_of_floats(x), now_s);
    }
    // The last results, by island, and forgets them.
    std::map<std::string, std::vector<float>> results() {
        std::map<std::string, std::vector<float>> out;
        for (const Sent& s : sent) {
            if (s.header.kind == Kind::Result) out[s.to] = floats_of(s.bytes);
        }
        sent.clear();
        return out;
    }
    void begin(int64_t islands) {
        for (int64_t i = 0; i < islands; ++i) ask(Kind::Arrive, i, 0);
        for (int64_t i = 0; i < islands; ++i) ASSERT_EQ(ask(Kind::Arrive, i, 0), Kind::GoOn);
        sent.clear();
    }
    void restart(int64_t island) {
        meetings.expect(island);
        ++sessions[island];
    }
};

TEST(IslandMeetings, BeginTogether) {
    Hall hall(3);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 2, 0, 0, 1), Kind::GoOn);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0), Kind::GoOn);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0), Kind::GoOn);
}

TEST(IslandMeetings, WaitForEveryRankOfAnIsland) {
    Hall hall(2);
    for (int64_t rank = 0; rank < 2; ++rank) EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0, rank, 2), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0, 1, 2), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0, 0, 2), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0, 0, 2), Kind::GoOn);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0, 1, 2), Kind::GoOn);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0, 0, 2), Kind::GoOn);
}

TEST(IslandMeetings, GiveAllTheSumInTheOrderOfIslands) {
    Hall hall(3);
    hall.begin(3);
    hall.mean(2, 10, {1e-8f, 3});
    hall.mean(0, 10, {1, 1});
    EXPECT_TRUE(hall.results().empty());
    hall.mean(1, 10, {-1, 2});
    const std::vector<float> expected = {1 + -1 + 1e-8f, 6};
    const auto got = hall.results();
    EXPECT_EQ(got.size(), 3u);
    for (const auto& [island, mean] : got) EXPECT_EQ(mean, expected) << island;
}

TEST(IslandMeetings, GoOnWithoutOneThatIsLost) {
    Hall hall(3);
    hall.begin(3);
    hall.mean(0, 10, {1, 4});
    hall.mean(1, 10, {2, 8});
    hall.meetings.lost(2);
    auto got = hall.results();
    EXPECT_EQ(got.size(), 2u);
    EXPECT_EQ(got.at("0.0"), (std::vector<float>{4.5, 18})) << "3 / 2 of the sum: the mean of those who are there";
    hall.mean(0, 20, {1, 1}), hall.mean(1, 20, {1, 1});
    EXPECT_EQ(hall.results().size(), 2u);
    // What it had sent before counts no longer, and it hears that it is out.
    hall.mean(2, 20, {7, 7});
    EXPECT_EQ(hall.sent.back().header.kind, Kind::LeftOut);
    EXPECT_EQ(hall.said.size(), 1u) << "people hear of it";
}

TEST(IslandMeetings, LetOneThatComesBackTakeAState) {
    Hall hall(2);
    hall.begin(2);
    hall.restart(1);
    hall.mean(0, 10, {1});
    EXPECT_EQ(hall.results().at("0.0"), std::vector<float>{2});
    EXPECT_EQ(hall.ask(Kind::After, 0, 10), Kind::GoOn) << "its job has only been started";
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 5), Kind::Wait);
    hall.mean(0, 20, {1});
    EXPECT_EQ(hall.results().size(), 1u) << "who waits for a state does not meet yet";
    EXPECT_EQ(hall.ask(Kind::After, 0, 20), Kind::DoGive);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 5), Kind::DoTake);
    EXPECT_EQ(hall.sent.back().header.step, 20);
    hall.sent.clear();
    // A piece is handed over when the giver and the taker have both asked.
    Header give = hall.header(Kind::Give, 0, 20), take = hall.header(Kind::Take, 1, 20);
    hall.meetings.take("0.0", give, "state", 0);
    EXPECT_TRUE(hall.sent.empty());
    hall.meetings.take("1.0", take, "", 0);
    ASSERT_EQ(hall.sent.size(), 2u);
    for (const Hall::Sent& s : hall.sent) EXPECT_EQ(s.bytes, s.to == "1.0" ? "state" : "");
    hall.ask(Kind::Done, 0, 20), hall.ask(Kind::Done, 1, 20);
    hall.sent.clear();
    hall.mean(0, 30, {1});
    EXPECT_TRUE(hall.results().empty()) << "now it is waited for";
    hall.mean(1, 30, {3});
    EXPECT_EQ(hall.results().at("1.0"), std::vector<float>{4});
}

// An answer is the same for all ranks of an island, even if somebody comes while they ask; and nobody goes on before the state is
// handed over.
TEST(IslandMeetings, DecideOnceWhoComesIn) {
    Hall hall(3);
    for (int64_t i = 0; i < 3; ++i) {
        for (int64_t rank = 0; rank < 2; ++rank) hall.ask(Kind::Arrive, i, 0, rank, 2);
    }
    hall.restart(2);
    EXPECT_EQ(hall.ask(Kind::After, 0, 10, 0, 2), Kind::GoOn);
    for (int64_t rank = 0; rank < 2; ++rank) EXPECT_EQ(hall.ask(Kind::Arrive, 2, 0, rank, 2), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::After, 0, 10, 1, 2), Kind::GoOn);
    EXPECT_EQ(hall.ask(Kind::After, 1, 20, 1, 2), Kind::DoGive);
    EXPECT_EQ(hall.ask(Kind::After, 0, 20, 0, 2), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::After, 1, 20, 0, 2), Kind::DoGive);
    for (int64_t rank = 0; rank < 2; ++rank) {
        hall.ask(Kind::Done, 1, 20, rank, 2);
        EXPECT_EQ(hall.ask(Kind::After, 0, 20, 0, 2), Kind::Wait);
        EXPECT_EQ(hall.ask(Kind::After, 1, 20, rank, 2), Kind::Wait) << "it gives once";
    }
    for (int64_t rank = 0; rank < 2; ++rank) hall.ask(Kind::Done, 2, 20, rank, 2);
    EXPECT_EQ(hall.ask(Kind::After, 0, 20, 0, 2), Kind::GoOn);
}

// After a restart of all, from checkpoints of several steps.
TEST(IslandMeetings, BeginAtTheStepOfTheFurthest) {
    Hall hall(3);
    hall.ask(Kind::Arrive, 0, 30), hall.ask(Kind::Arrive, 1, 40), hall.ask(Kind::Arrive, 2, 40);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 40), Kind::DoGive);
    EXPECT_EQ(hall.ask(Kind::Arrive, 2, 40), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 30), Kind::DoTake);
    EXPECT_EQ(hall.sent.back().header.step, 40);
    hall.ask(Kind::Done, 1, 40), hall.ask(Kind::Done, 0, 40);
    EXPECT_EQ(hall.ask(Kind::Arrive, 2, 40), Kind::GoOn);
}

// Of the same step, but with other meetings behind it.
TEST(IslandMeetings, BeginWithOneAnchor) {
    Hall hall(2);
    hall.ask(Kind::Arrive, 0, 40, 0, 1, "model", "one"), hall.ask(Kind::Arrive, 1, 40, 0, 1, "model", "another");
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 40, 0, 1, "model", "one"), Kind::DoGive);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 40, 0, 1, "model", "another"), Kind::DoTake);
}

// When all begin again from an earlier step, what was decided at later ones counts no longer.
TEST(IslandMeetings, DecideAnewAfterAllBeginAgain) {
    Hall hall(2);
    hall.begin(2);
    for (int64_t step = 970; step <= 1000; step += 10) EXPECT_EQ(hall.ask(Kind::After, 0, step), Kind::GoOn);
    hall.restart(0), hall.restart(1);
    hall.ask(Kind::Arrive, 0, 900), hall.ask(Kind::Arrive, 1, 900);
    ASSERT_EQ(hall.ask(Kind::Arrive, 0, 900), Kind::GoOn);
    EXPECT_EQ(hall.ask(Kind::After, 0, 910), Kind::GoOn);
    hall.restart(1);
    hall.ask(Kind::Arrive, 1, 900);
    EXPECT_EQ(hall.ask(Kind::After, 0, 910), Kind::GoOn) << "decided before it came";
    EXPECT_EQ(hall.ask(Kind::After, 0, 920), Kind::DoGive);
}

TEST(IslandMeetings, BeginWithoutOneWhoseJobHasFailed) {
    Hall hall(2);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 7), Kind::Wait);
    hall.meetings.lost(0);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 7), Kind::GoOn);
}

// Islands that fail again and again, by turns, are not awaited in the end; one that fails once is, at its step.
TEST(IslandMeetings, WaitForThoseThatAreToComeBack) {
    Hall hall(3);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 5), Kind::Wait);
    for (int turn = 0; turn < 5; ++turn) {
        for (const int64_t fails : {1, 2}) hall.meetings.expect(fails, turn < 4);
        EXPECT_EQ(hall.ask(Kind::Arrive, 0, 5), turn < 4 ? Kind::Wait : Kind::GoOn) << turn;
    }
    Hall two(2);
    two.begin(2);
    two.restart(0);
    two.ask(Kind::Arrive, 0, 900);
    two.restart(1);  // its job has failed and is started again
    EXPECT_EQ(two.ask(Kind::Arrive, 0, 900), Kind::Wait);
    two.ask(Kind::Arrive, 1, 990);
    EXPECT_EQ(two.ask(Kind::Arrive, 1, 990), Kind::DoGive);
    EXPECT_EQ(two.ask(Kind::Arrive, 0, 900), Kind::DoTake);
}

TEST(IslandMeetings, EndATransferWhoseGiverOrTakerIsLost) {
    for (const int64_t lost : {0, 1}) {
        Hall hall(3);
        hall.begin(3);
        hall.restart(1);
        hall.ask(Kind::Arrive, 1, 0);
        ASSERT_EQ(hall.ask(Kind::After, 0, 10), Kind::DoGive);
        ASSERT_EQ(hall.ask(Kind::Arrive, 1, 0), Kind::DoTake);
        hall.sent.clear();
        const Header give = hall.header(Kind::Give, 0, 10), take = hall.header(Kind::Take, 1, 10);
        if (lost == 0) hall.meetings.take("1.0", take, "", 0);
        else hall.meetings.take("0.0", give, "state", 0);
        hall.meetings.lost(lost);
        ASSERT_FALSE(hall.sent.empty());
        // Who took hears that it is out, and is started again; who gave goes on.
        const Hall::Sent& last = hall.sent.back();
        EXPECT_EQ(last.to, lost == 0 ? "1.0" : "0.0");
        EXPECT_EQ(last.header.kind, lost == 0 ? Kind::LeftOut : Kind::GoOn);
        hall.sent.clear();
        if (lost == 1) hall.mean(0, 20, {1});
        hall.mean(2, 20, {1});
        EXPECT_EQ(hall.results().size(), lost == 1 ? 2u : 1u);
    }
}

TEST(IslandMeetings, LeaveOutOneThatIsLate) {
    Hall hall(2);
    hall.begin(2);
    hall.mean(0, 10, {1});
    hall.meetings.look(9);
    EXPECT_TRUE(hall.results().empty());
    hall.meetings.look(11);
    EXPECT_EQ(hall.results().at("0.0"), std::vector<float>{2});
    hall.mean(1, 10, {1});
    EXPECT_EQ(hall.sent.back().header.kind, Kind::LeftOut);
    EXPECT_NE(hall.sent.back().header.text.find("for more than 10 s"), std::string::npos) << hall.sent.back().header.text;
}

// Who lets a state that is handed over stall is left out: one who does not take, one who does not give, one who never asks.
TEST(IslandMeetings, LeaveOutWhoStallsATransfer) {
    for (const std::string stalls : {"taker", "giver", "both"}) {
        Hall hall(3);
        hall.begin(3);
        hall.restart(1);
        hall.ask(Kind::Arrive, 1, 0);
        ASSERT_EQ(hall.ask(Kind::After, 0, 10), Kind::DoGive);
        if (stalls == "taker") hall.meetings.take("0.0", hall.header(Kind::Give, 0, 10), "state", 1);
        if (stalls == "giver") hall.meetings.take("1.0", hall.header(Kind::Take, 1, 10), "", 1);
        hall.meetings.look(9);
        EXPECT_TRUE(hall.meetings.is_present(0) && hall.meetings.is_present(1));
        hall.meetings.look(12);
        EXPECT_EQ(hall.meetings.is_present(0), stalls != "giver") << stalls;
        EXPECT_FALSE(hall.meetings.is_present(1)) << stalls << ": without a giver it has no state";
        EXPECT_EQ(hall.ask(Kind::After, 2, 10), Kind::GoOn) << stalls;
    }
}

// One of several takers is lost when all but it have said that they are done.
TEST(IslandMeetings, EndATransferOfTheOthers) {
    Hall hall(3);
    hall.begin(3);
    hall.restart(1), hall.restart(2);
    hall.ask(Kind::Arrive, 1, 0), hall.ask(Kind::Arrive, 2, 0);
    ASSERT_EQ(hall.ask(Kind::After, 0, 10), Kind::DoGive);
    hall.ask(Kind::Done, 0, 10), hall.ask(Kind::Done, 1, 10);
    hall.meetings.lost(2);
    hall.meetings.lost(0);
    EXPECT_TRUE(hall.meetings.is_present(1)) << "it has the state";
}

TEST(IslandMeetings, RefuseWhatIsNotTheSame) {
    Hall hall(3);
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 2, 0), Kind::Wait);
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0, 0, 1, "another"), Kind::Refused);
    EXPECT_EQ(hall.sent.back().header.text, "its states are not those of island 0: islands have one model and one layout");
    EXPECT_EQ(hall.ask(Kind::Arrive, 1, 0, 0, 1, "another"), Kind::Refused) << "every rank of it is told";
    EXPECT_EQ(hall.ask(Kind::Arrive, 2, 0), Kind::GoOn) << "nobody waits for it";
    EXPECT_EQ(hall.ask(Kind::Arrive, 0, 0), Kind::GoOn);
    hall.sent.clear();
    hall.mean(0, 10, {1, 2});
    hall.mean(2, 10, {1});  // shorter
    EXPECT_FALSE(hall.meetings.is_present(2));
    EXPECT_TRUE(hall.meetings.is_present(0));
    EXPECT_EQ(hall.results().at("0.0"), (std::vector<float>{3, 6}));
    // Nonsense is dropped.
    for (int64_t island : {int64_t{-1}, int64_t{3}}) hall.meetings.take("x", Hall(2).header(Kind::Mean, island, 1), "", 0);
    Header ranks = hall.header(Kind::Arrive, 0, 1);
    ranks.rank = 5;
    hall.meetings.take("x", ranks, "", 0);
    EXPECT_TRUE(hall.sent.empty());
}

TEST(IslandMeetings, AddUpInt8) {
    constexpr size_t kCount = 512;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> x(3, std::vector<float>(kCount));
    std::vector<std::string> q;
    for (std::vector<float>& own : x) {
        for (float& v : own) v = normal(random);
        q.emplace_back(static_cast<size_t>(quantized_bytes(kCount, 8)), '\0');
        to_int8(std::span<const float>(own), std::span(q.back()));
    }
    std::vector<float> mean(kCount);
    from_int8(std::span<const char>(mean_of({&q[0], &q[1], &q[2]}, 3, 8)), std::span(mean));
    for (size_t i = 0; i < kCount; ++i) EXPECT_NEAR(mean[i], x[0][i] + x[1][i] + x[2][i], 4 * 4.0 / 127);
    x[1][300] = std::numeric_limits<float>::infinity();  // reaches all of its block, and no other
    to_int8(std::span<const float>(x[1]), std::span(q[1]));
    from_int8(std::span<const char>(mean_of({&q[0], &q[1], &q[2]}, 3, 8)), std::span(mean));
    EXPECT_TRUE(std::isnan(mean[300]) && std::isnan(mean[256]));
    EXPECT_TRUE(std::isfinite(mean[255]));
}

// ---- Over sockets.

class IslandSockets : public ::testing::Test {
protected:
    static constexpr double kTimeoutS = 20;
    Member member(int64_t island, uint64_t session = 1, int64_t rank = 0, int64_t ranks = 1) {
        return Member(service.invitation(), {island, rank, ranks, session}, kTimeoutS, [] {});
    }
    static float mean_at(Member& m, int64_t step, float x) {
        float mean = 0;
        m.begin(step);
        m.mean(Dtype::F32, &x, &mean, 1, 0);
        return mean;
    }
    void SetUp() override {
        for (int64_t i = 0; i < 2; ++i) service.expect(i);
    }
    Service service{{{2, 5}, "127.0.0.1", 0}, [](const std::string&) {}};
};

// In several pieces, in every type, and with a rest.
TEST_F(IslandSockets, MeansOfManyPieces) {
    uint64_t session = 0;
    const auto run = [&]<class T>(T, Dtype type, int64_t bits, size_t count) {
        ++session;
        std::vector<std::vector<T>> x(2, std::vector<T>(count)), mean(2, std::vector<T>(count));
        for (size_t i = 0; i < count; ++i) x[0][i] = static_cast<T>(i % 1000) / 8, x[1][i] = static_cast<T>(i % 77);
        std::vector<std::thread> threads;
        for (size_t island = 0; island < 2; ++island) {
            threads.emplace_back([&, island] {
                Member m = member(static_cast<int64_t>(island), session);
                m.arrive(0, "p");
                for (int64_t step : {1, 2}) {
                    m.begin(step);
                    m.mean(type, x[island].data(), mean[island].data(), static_cast<int64_t>(count), bits);
                    m.mean(type, x[island].data(), mean[island].data(), static_cast<int64_t>(count), bits);
                    EXPECT_EQ(m.after(step).what, Turn::What::GoOn);
                }
            });
        }
        for (std::thread& t : threads) t.join();
        EXPECT_EQ(mean[0], mean[1]);
        for (size_t i = 0; i < count; ++i) {
            const double sum = static_cast<double>(x[0][i]) + static_cast<double>(x[1][i]);
            ASSERT_NEAR(static_cast<double>(mean[0][i]), sum, bits == 8 ? 2.5 : 0) << i;
        }
        for (int64_t i = 0; i < 2; ++i) service.lost(i), service.expect(i);
    };
    run(float{}, Dtype::F32, 0, 5'000'003);
    run(double{}, Dtype::F64, 0, 300'001);
    run(float{}, Dtype::F32, 8, 256 * 9001);
    run(double{}, Dtype::F64, 8, 256 * 17);
    run(float{}, Dtype::F32, 0, 1);
}

TEST_F(IslandSockets, AStateGoesOver) {
    constexpr size_t kBytes = 9'000'001;
    std::string state(kBytes, '\0'), taken(kBytes, '\0');
    for (size_t i = 0; i < kBytes; ++i) state[i] = static_cast<char>(i * 2654435761u >> 13);
    std::thread behind([&] {
        Member m = member(1);
        const Turn turn = m.arrive(3, "p");
        EXPECT_EQ(turn.what, Turn::What::Take);
        EXPECT_EQ(turn.step, 10);
        m.take(std::span(taken).first(1'000'000));
        m.take(std::span(taken).subspan(1'000'000));
        m.done();
        EXPECT_EQ(mean_at(m, 20, 3), 4);
    });
    Member m = member(0);
    EXPECT_EQ(m.arrive(10, "p").what, Turn::What::Give);
    m.give(std::span(state).first(1'000'000));
    m.give(std::span(state).subspan(1'000'000));
    m.done();
    EXPECT_EQ(mean_at(m, 20, 1), 4);
    behind.join();
    EXPECT_EQ(taken, state);
}

// The service does not hear a rank without the secret of this launch. Such a rank gives up with a message.
TEST_F(IslandSockets, AreClosedToStrangers) {
    const KeyPair own = new_keys();
    Invitation forged = service.invitation();
    forged.public_key = own.public_key, forged.secret_key = own.secret_key;
    Invitation other_service = service.invitation();
    other_service.service_key = new_keys().public_key;
    for (const Invitation& invitation : {forged, other_service}) {
        Member stranger(invitation, {0, 0, 1, 9}, 1, [] {});
        try {
            stranger.arrive(0, "p");
            ADD_FAILURE() << "it was heard";
        } catch (const std::runtime_error& e) {
            EXPECT_NE(std::string(e.what()).find("has said nothing for 1 s (comm.train_timeout_seconds)"), std::string::npos);
        }
    }
    Member m = member(0);
    service.lost(1);
    EXPECT_EQ(m.arrive(0, "p").what, Turn::What::GoOn) << "the service is none the worse for it";
}

TEST_F(IslandSockets, OneThatIsLeftOutSaysWhy) {
    Member m = member(0), other = member(1);
    std::thread second([&] { other.arrive(0, "p"); });
    m.arrive(0, "p");
    second.join();
    service.lost(0);
    m.begin(1);
    float x = 1;
    try {
        m.mean(Dtype::F32, &x, &x, 1, 0);
        ADD_FAILURE() << "it met";
    } catch (const LeftOut& e) {
        EXPECT_STREQ(e.what(), "island 0 takes part in meetings no longer: its job has ended");
    }
}

TEST_F(IslandSockets, OneWithAnotherModelIsRefused) {
    Member m = member(0), other = member(1);
    std::thread begins([&] { m.arrive(0, "p"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    try {
        other.arrive(0, "q");
        ADD_FAILURE() << "it was let in";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "islands.other_model");
        EXPECT_STREQ(
            e.what(),
            "island 1 cannot meet the others: its states are not those of island 0: islands have one model and one layout");
    }
    begins.join();
}

// A rank that waits ends when its job does.
TEST_F(IslandSockets, WaitingEndsWithTheJob) {
    std::atomic<bool> over = false;
    Member m(service.invitation(), {0, 0, 1, 1}, kTimeoutS, [&] {
        if (over) throw std::runtime_error("the job is over");
    });
    std::thread ends([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        over = true;
    });
    EXPECT_THROW(m.arrive(0, "p"), std::runtime_error);
    ends.join();
}

// ---- What no rank sends.

TEST(IslandMessages, ThatAreNoneOfOursAreRefused) {
    Header h;
    h.kind = Kind::Arrive, h.island = 1, h.checksum = ~uint64_t{0}, h.model = "m", h.text = std::string(5000, 'x') + "\xff";
    Header back;
    const std::string good = to_bytes(h);
    ASSERT_LT(good.size(), kHeaderBytes);
    ASSERT_TRUE(from_bytes(good, back));
    EXPECT_EQ(back.island, 1);
    EXPECT_EQ(back.checksum, h.checksum);
    EXPECT_EQ(back.text, std::string(512, 'x'));
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string text = good;
        text.replace(text.find(from), from.size(), to);
        return text;
    };
    const std::string deep = std::string(1500, '[') + std::string(1500, ']');
    for (const std::string& bad :
         {std::string(), std::string(2'000'000, '\x81'), std::string(2'000'000, '['), std::string(4000, '['), deep,
          std::string("{}"), std::string("null"), good + std::string(kHeaderBytes, ' '), good.substr(0, good.size() - 1),
          with("\"island\":1", "\"island\":1e300"), with("\"island\":1", "\"island\":" + deep),
          with("\"island\":1", "\"island\":\"1\""), with("\"kind\":0", "\"kind\":99"), with("\"kind\":0", "\"kind\":-1")})
        EXPECT_FALSE(from_bytes(bad, back)) << bad.substr(0, 60);
}

// What a socket of Internet has, as a peer without the library.
struct RawPeer {
    int descriptor = -1;
    explicit RawPeer(const std::string& address) {
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
        descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
        EXPECT_EQ(::connect(descriptor, reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
        const timeval limit{20, 0};
        ::setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    ~RawPeer() { ::close(descriptor); }
    RawPeer(const RawPeer&) = delete;
    RawPeer& operator=(const RawPeer&) = delete;
    void send(const std::string& bytes) const {
        EXPECT_EQ(::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL), std::ssize(bytes));
    }
    // Reads what comes. True: the other side has closed.
    bool is_closed() const {
        char chunk[256];
        ssize_t got = 0;
        while ((got = ::recv(descriptor, chunk, sizeof chunk, 0)) > 0) {
        }
        return got == 0 || errno == ECONNRESET;
    }
};

// A frame that says that it is long ends the connection before anything of it is held, whoever sends it.
TEST_F(IslandSockets, HoldNothingForAPeerWithoutKeys) {
    const std::string greeting = std::string("\xff\0\0\0\0\0\0\0\0\x7f\x03\x00", 12) + "CURVE" + std::string(15 + 32, '\0');
    for (const int shift : {20, 30, 40, 62}) {
        const RawPeer peer(service.invitation().address);
        std::string frame = "\x06";
        for (int k = 7; k >= 0; --k) frame += static_cast<char>((uint64_t{1} << shift) >> (8 * k));
        peer.send(greeting + frame);
        EXPECT_TRUE(peer.is_closed()) << shift;
    }
    Member m = member(0);
    service.lost(1);
    EXPECT_EQ(m.arrive(0, "p").what, Turn::What::GoOn);
}

// What a rank with the keys sends and no rank of Lockstep would: said once, and the others meet as before.
TEST(IslandService, DropsWhatNoRankSends) {
    std::vector<std::string> said;
    {
        Service service{{{1, 5}, "127.0.0.1", 0}, [&](const std::string& line) { said.push_back(line); }};
        service.expect(0);
        const Invitation& i = service.invitation();
        void* const context = zmq_ctx_new();
        void* const socket = zmq_socket(context, ZMQ_DEALER);
        const auto set = [&](int option, const std::string& key) { zmq_setsockopt(socket, option, key.data(), key.size()); };
        set(ZMQ_CURVE_SERVERKEY, i.service_key), set(ZMQ_CURVE_PUBLICKEY, i.public_key), set(ZMQ_CURVE_SECRETKEY, i.secret_key);
        ASSERT_EQ(zmq_connect(socket, i.address.c_str()), 0);
        const std::string deep(200'000, '\x81');
        for (int k = 0; k < 3; ++k) {
            ASSERT_EQ(zmq_send(socket, deep.data(), deep.size(), ZMQ_SNDMORE), std::ssize(deep));
            ASSERT_EQ(zmq_send(socket, "", 0, 0), 0);
        }
        // An answer to what comes behind them says that they have been read.
        Header question;
        question.kind = Kind::Arrive, question.session = 1, question.checksum = checksum("");
        const std::string header = to_bytes(question);
        ASSERT_EQ(zmq_send(socket, header.data(), header.size(), ZMQ_SNDMORE), std::ssize(header));
        ASSERT_EQ(zmq_send(socket, "", 0, 0), 0);
        std::string answer(kHeaderBytes, '\0');
        const int got = zmq_recv(socket, answer.data(), answer.size(), 0);
        ASSERT_GT(got, 0);
        Header turn;
        ASSERT_TRUE(from_bytes(answer.substr(0, static_cast<size_t>(got)), turn));
        EXPECT_EQ(turn.kind, Kind::GoOn);
        const int linger = 0;
        zmq_setsockopt(socket, ZMQ_LINGER, &linger, sizeof linger);
        zmq_close(socket), zmq_ctx_term(context);
    }
    ASSERT_EQ(said.size(), 2u);
    EXPECT_EQ(said[0],
              "a message that no rank of Lockstep sends has come where islands meet; it is dropped, and so are further ones");
    EXPECT_EQ(said[1], "3 such messages were dropped in all");
}

TEST(IslandInvitation, IsReadByItsOwnerAlone) {
    const std::string folder = ::testing::TempDir() + "/invitation";
    std::filesystem::create_directories(folder);
    const std::string path = folder + "/islands.json";
    const KeyPair keys = new_keys();
    write_invitation(path, {"tcp://h:1", keys.public_key, keys.public_key, keys.secret_key});
    using std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_read | perms::owner_write);
    EXPECT_EQ(read_invitation(path).secret_key, keys.secret_key);
    const auto refusal = [&](const std::string& text) {
        std::ofstream(path) << text;
        try {
            read_invitation(path);
        } catch (const UserError& e) {
            EXPECT_EQ(e.id(), "islands.invitation");
            return std::string(e.what());
        }
        return std::string();
    };
    EXPECT_NE(refusal("{").find("it is not the JSON that lockstep launch writes"), std::string::npos);
    EXPECT_NE(refusal(R"({"address": "tcp://h:1", "service_key": "a", "public_key": "b", "secret_key": "c"})")
                  .find("one of its keys has not 40 characters"),
              std::string::npos);
    std::filesystem::remove(path);
    EXPECT_THROW(read_invitation(path), UserError);
}

}  // namespace
}  // namespace lockstep::comm::islands
