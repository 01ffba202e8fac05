#include "comm/islands/message.h"

#include <nlohmann/json.hpp>

namespace lockstep::comm::islands {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Header, kind, island, rank, ranks, session, step, launch, piece, bits, checksum, model, anchor,
                                   text)

std::string to_bytes(const Header& header) {
    std::string out;
    nlohmann::json::to_cbor(nlohmann::json(header), out);
    return out;
}

bool from_bytes(const char* data, size_t size, Header& header) {
    const nlohmann::json j = nlohmann::json::from_cbor(data, data + size, true, false);
    if (!j.is_object()) return false;
    try {
        header = j.get<Header>();
    } catch (const nlohmann::json::exception&) {
        return false;
    }
    return header.kind >= Kind::Arrive && header.kind <= Kind::Refused;
}

}  // namespace lockstep::comm::islands
