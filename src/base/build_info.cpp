#include "base/build_info.h"

#include "commit.h"  // cmake/commit.cmake

namespace lockstep {

const BuildInfo& build_info() {
#if defined(__clang__)
    static const BuildInfo info{LOCKSTEP_VERSION, LOCKSTEP_COMMIT, "clang " __clang_version__};
#else
    static const BuildInfo info{LOCKSTEP_VERSION, LOCKSTEP_COMMIT, "GCC " __VERSION__};
#endif
    return info;
}

}  // namespace lockstep
