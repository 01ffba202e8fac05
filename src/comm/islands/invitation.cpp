#include "comm/islands/invitation.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/text_file.h"

namespace lockstep::comm::islands {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Invitation, address, service_key, public_key, secret_key)

void write_invitation(const std::string& path, const Invitation& invitation) {
    const mode_t before = umask(S_IRWXG | S_IRWXO);
    try {
        write_whole_file(path, json_text(nlohmann::json(invitation), 2));
    } catch (...) {
        umask(before);
        throw;
    }
    umask(before);
}

Invitation read_invitation(const std::string& path) {
    const auto wrong = [&](const std::string& what) {
        return UserError("islands.invitation", kInvitation,
                         fmt::format("{} = {}: {}; lockstep launch writes this file and sets the variable: start islands with it",
                                     kInvitation, path, what));
    };
    const TextFile file = read_text_file(path);
    if (!file.is_readable()) throw wrong(file.reason);
    const nlohmann::json j = json_or_discarded<nlohmann::json>(file.text);
    try {
        const auto invitation = j.get<Invitation>();
        constexpr size_t kKey = 40;  // characters of Z85
        for (const std::string* key : {&invitation.service_key, &invitation.public_key, &invitation.secret_key})
            if (key->size() != kKey) throw wrong("one of its keys has not 40 characters");
        return invitation;
    } catch (const nlohmann::json::exception&) {
        throw wrong("it is not the JSON that lockstep launch writes");
    }
}

}  // namespace lockstep::comm::islands
