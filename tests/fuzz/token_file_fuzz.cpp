// A token file: as it is, and with the checksums that its bytes would have.
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "data/token_file.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

void read(const std::string& bytes) {
    fuzz::accepts_or_refuses([&] {
        const fuzz::MemoryFile file(bytes);
        const data::TokenFile tokens = data::TokenFile::open(file.path());
        std::vector<int32_t> some(static_cast<size_t>(std::min<int64_t>(tokens.tokens(), 64)));
        tokens.read(0, some);
        tokens.read(tokens.tokens() - std::ssize(some), some);
    });
}

const fuzz::Declare declare_token_file("token_file", [](std::string_view given) {
    std::string bytes(given);
    read(bytes);
    data::TokenFileHeader header;
    if (bytes.size() < sizeof header) return;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.checksum = XXH3_64bits(bytes.data() + sizeof header, bytes.size() - sizeof header);
    header.header_checksum = XXH3_64bits(&header, offsetof(data::TokenFileHeader, header_checksum));
    std::memcpy(bytes.data(), &header, sizeof header);
    read(bytes);
});

}  // namespace
