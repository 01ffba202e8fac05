// Numbers that a caller of the tests may set: how many random layouts, from which seed.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace lockstep::testing {

inline int64_t from_environment(const char* name, int64_t otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoll(text) : otherwise;
}

}  // namespace lockstep::testing
