#include "comm/islands/member.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/quantized.h"
#include "comm/islands/mean.h"

namespace lockstep::comm::islands {
namespace {

constexpr int kLookMilliseconds = 50;
constexpr auto kAskAgain = std::chrono::milliseconds(100);
constexpr int64_t kCopies = -1, kQuestions = -2;  // in place of a launch
// A piece has whole elements of each kind, and whole blocks of int8.
constexpr int64_t kUnit = quantized_bytes(quantized_block(8), 8) * 8;
constexpr auto kPiece = static_cast<size_t>(kPieceBytes / kUnit * kUnit);

}  // namespace

Member::Member(const Invitation& invitation, const Place& place, double timeout_s, std::function<void()> attend)
    : place_(place), address_(invitation.address), timeout_s_(timeout_s), attend_(std::move(attend)), socket_(invitation) {}

Header Member::header(Kind kind) const {
    Header h;
    h.kind = kind;
    h.island = place_.island, h.rank = place_.rank, h.ranks = place_.ranks, h.session = place_.session;
    h.step = step_, h.launch = launch_;
    return h;
}

// The next message, which f is given.
void Member::receive(const std::function<void(const Header&, std::span<const char>)>& f) {
    const auto start = std::chrono::steady_clock::now();
    const auto take = [&](const Header& h, std::span<const char> bytes) {
        if (h.kind == Kind::LeftOut)
            throw LeftOut(fmt::format("island {} takes part in meetings no longer: {}", place_.island, h.text));
        if (h.kind == Kind::Refused)
            throw UserError("islands.other_model", "fault_tolerance",
                            fmt::format("island {} cannot meet the others: {}", place_.island, h.text));
        f(h, bytes);
    };
    while (!socket_.receive(kLookMilliseconds, take)) {
        attend_();
        if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > timeout_s_ && timeout_s_ > 0)
            throw std::runtime_error(
                fmt::format("the service at {}, where islands meet, has said nothing for {:.3g} s (comm.train_timeout_seconds)",
                            address_, timeout_s_));
    }
}

// What is asked again until the answer is not to wait. Questions have numbers, as pieces have; an answer has that of its
// question.
Header Member::ask(Header question) {
    question.launch = kQuestions;
    for (;; std::this_thread::sleep_for(kAskAgain)) {
        question.piece = ++asked_;
        socket_.send(question, {});
        Header answer;
        while (answer.launch != kQuestions || answer.piece != asked_)
            receive([&](const Header& h, std::span<const char>) { answer = h; });
        if (answer.kind != Kind::Wait) return answer;
        attend_();
    }
}

Turn Member::turn_of(const Header& answer) const {
    const Turn::What what = answer.kind == Kind::DoGive   ? Turn::What::Give
                            : answer.kind == Kind::DoTake ? Turn::What::Take
                                                          : Turn::What::GoOn;
    return {what, answer.step};
}

Turn Member::arrive(int64_t step, const std::string& model, const std::string& anchor) {
    begin(step);
    Header question = header(Kind::Arrive);
    question.model = model, question.anchor = anchor;
    const Turn turn = turn_of(ask(question));
    begin(turn.step);
    return turn;
}

Turn Member::after(int64_t step) {
    begin(step);
    return turn_of(ask(header(Kind::After)));
}

void Member::done() {
    socket_.send(header(Kind::Done), {});
    copied_ = 0, nobody_takes_ = false;
}

// In pieces, some of them on their way at a time. What comes back of a piece is put where the piece was.
void Member::exchange(Kind kind, std::span<const char> in, std::span<char> out, int64_t bits) {
    const size_t whole = std::max(in.size(), out.size()), pieces = (whole + kPiece - 1) / kPiece;
    Header h = header(kind);
    h.bits = bits;
    const int64_t first = kind == Kind::Mean ? 0 : copied_;
    if (kind != Kind::Mean) h.launch = kCopies, copied_ += static_cast<int64_t>(pieces);
    size_t sent = 0, received = 0;
    while (received < pieces && !nobody_takes_) {
        for (; sent < pieces && sent - received < static_cast<size_t>(kPiecesInFlight); ++sent) {
            h.piece = first + static_cast<int64_t>(sent);
            const size_t begin = sent * kPiece, size = std::min(kPiece, whole - begin);
            socket_.send(h, in.empty() ? in : in.subspan(begin, size));
        }
        receive([&](const Header& answer, std::span<const char> bytes) {
            const int64_t piece = answer.piece - first;
            nobody_takes_ |= kind == Kind::Give && answer.kind == Kind::GoOn && answer.launch == kCopies;
            if (answer.kind != Kind::Result || answer.step != h.step || answer.launch != h.launch || piece < 0 ||
                piece >= static_cast<int64_t>(pieces))
                return;
            const size_t begin = static_cast<size_t>(piece) * kPiece, size = std::min(kPiece, whole - begin);
            if (!out.empty()) {
                if (bytes.size() != size)
                    throw std::runtime_error(
                        fmt::format("{} bytes of another island's came where {} were asked for", bytes.size(), size));
                std::memcpy(out.data() + begin, bytes.data(), size);
            }
            ++received;
        });
    }
}

namespace {

template <class T>
std::span<const char> bytes_of_all(std::span<const T> x) {
    return {reinterpret_cast<const char*>(x.data()), x.size_bytes()};
}

}  // namespace

void Member::mean(Dtype type, const void* in, void* out, int64_t count, int64_t bits) {
    ensure(type == Dtype::F32 || type == Dtype::F64, "a mean over islands of another type");
    const auto n = static_cast<size_t>(count);
    const auto through = [&]<class T>(T) {
        const std::span<const T> from(static_cast<const T*>(in), n);
        const std::span<T> to(static_cast<T*>(out), n);
        if (bits == 0) {
            exchange(Kind::Mean, bytes_of_all(from), {reinterpret_cast<char*>(to.data()), to.size_bytes()}, 8 * sizeof(T));
        } else {
            std::vector<char> q(static_cast<size_t>(quantized_bytes(count, bits)));
            to_int8(from, std::span(q));
            exchange(Kind::Mean, q, q, bits);
            from_int8(std::span<const char>(q), to);
        }
    };
    if (type == Dtype::F64) through(double{});
    else through(float{});
    ++launch_;
}

}  // namespace lockstep::comm::islands
