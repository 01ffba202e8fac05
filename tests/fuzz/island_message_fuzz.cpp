// The header of what a rank sends to the service where islands meet. What is taken is written and read again as the same.
#include "comm/islands/message.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;
using comm::islands::from_bytes, comm::islands::Header, comm::islands::to_bytes;

const fuzz::Declare declare_island_message("island_message", [](std::string_view bytes) {
    Header header, again;
    if (!from_bytes(bytes, header)) return;
    const std::string written = to_bytes(header);
    if (!from_bytes(written, again)) return;  // its model or anchor is longer as JSON writes it
    ensure(to_bytes(again) == written, "a header is another one when it is read again");
});

}  // namespace
