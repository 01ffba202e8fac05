// What this program was built from and with: for --version, and for processes of one job that must be the same build.
#pragma once

#include <string>

namespace lockstep {

struct BuildInfo {
    std::string version;   // "0.1.0"
    std::string commit;    // "9a1af66b2c", with "-dirty" if the checkout had changes; "unknown commit" outside of one
    std::string compiler;  // "GCC 12.2.0"
};
const BuildInfo& build_info();

}  // namespace lockstep
