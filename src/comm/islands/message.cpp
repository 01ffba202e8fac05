#include "comm/islands/message.h"

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace lockstep::comm::islands {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Header, kind, island, rank, ranks, session, step, launch, piece, bits, checksum, model, anchor,
                                   text)

std::string to_bytes(const Header& header) {
    Header h = header;
    constexpr size_t kLongestText = 512;
    if (h.text.size() > kLongestText) h.text.resize(kLongestText);
    return json_text(nlohmann::json(h));
}

bool from_bytes(std::string_view bytes, Header& header) {
    if (bytes.size() > kHeaderBytes) return false;
    const auto j = json_or_discarded<nlohmann::json>(bytes);
    if (!j.is_object()) return false;
    for (const auto& [key, value] : j.items()) {
        if (!value.is_number_integer() && !value.is_string()) return false;
    }
    try {
        header = j.get<Header>();
    } catch (const nlohmann::json::exception&) {
        return false;
    }
    return header.kind >= Kind::Arrive && header.kind <= Kind::Refused;
}

}  // namespace lockstep::comm::islands
