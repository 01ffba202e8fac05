// Element types of files turned into each other: exact where the wider type holds the value, else rounded to nearest, ties to
// even.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::checkpoint {

// Types that can be weights: F64, F32, BF16, F16.
bool is_float(std::string_view dtype);
// `count` elements; from and to do not overlap.
void convert(std::string_view from_dtype, const void* from, std::string_view to_dtype, void* to, int64_t count);

}  // namespace lockstep::checkpoint
