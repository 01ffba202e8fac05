// What a job has to know to meet other islands: where the service is, and the secret of this launch. `lockstep launch` writes
// it to a file that nobody else can read, and names the file in the environment.
#pragma once

#include <string>

namespace lockstep::comm::islands {

inline constexpr const char* kThisHost = "127.0.0.1";
inline constexpr const char* kInvitation = "LOCKSTEP_ISLANDS";  // of the environment: the file

// Keys are of CurveZMQ, in Z85: the service's public one, and a pair that is the launch's secret.
struct Invitation {
    std::string address;  // tcp://host:port
    std::string service_key, public_key, secret_key;
};

// Readable only by its owner. UserError file.cannot_write.
void write_invitation(const std::string& path, const Invitation& invitation);
// UserError islands.invitation.
Invitation read_invitation(const std::string& path);

}  // namespace lockstep::comm::islands
