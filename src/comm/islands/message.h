// What ranks of islands and the service where they meet send each other: a header in JSON, then bytes. See service.h.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::comm::islands {

// From a rank. Arrive: may it begin, at its step? Mean: its part of a mean over the islands. After: a meeting has ended; is
// there more to do? Give, Take: a piece of an island's state. Done: with giving or taking.
// From the service. Wait: ask again. GoOn, DoGive, DoTake: answers to Arrive and After. Result: of Mean, Give or Take. LeftOut:
// the island meets the others no longer, Refused: it never will; `text` says why.
enum class Kind { Arrive, Mean, After, Give, Take, Done, Wait, GoOn, DoGive, DoTake, Result, LeftOut, Refused };

struct Header {
    Kind kind = Kind::Wait;
    int64_t island = 0, rank = 0, ranks = 1;  // of an island
    uint64_t session = 0;                     // one start of an island: it differs between two
    int64_t step = 0;                         // of training; the names of a piece: it,
    int64_t launch = 0, piece = 0;            // which launch of the rank in this step, and which piece of that
    int64_t bits = 0;                         // Mean: of an element, as sent: 64 and 32 are floats, 8 is in blocks of int8
    uint64_t checksum = 0;                    // of the bytes that follow
    std::string model;                        // Arrive: a checksum of the states; islands must have equal ones
    std::string anchor;                       // Arrive: a checksum of what meetings have made; else an island takes a state
    std::string text;                         // LeftOut, Refused: why
};

// At most kHeaderBytes; of a longer `text` the beginning.
std::string to_bytes(const Header& header);
// False: it is none.
bool from_bytes(std::string_view bytes, Header& header);

inline constexpr size_t kHeaderBytes = 4096;
// The most bytes of a piece. A peer without keys can make the service hold as many for each of its connections.
inline constexpr int64_t kPieceBytes = int64_t{1} << 18;
// Pieces of a rank on their way at a time.
inline constexpr int64_t kPiecesInFlight = 32;

}  // namespace lockstep::comm::islands
