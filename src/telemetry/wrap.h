// Text for people: lines that end between words, and numbers that keep a column narrow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::telemetry {

// Characters of UTF-8.
int columns_of(std::string_view text);

// Lines of at most `columns` characters. A word longer than that has a line of its own. Line breaks of the text stay, and a
// line's indentation is that of the lines it becomes. Counts characters of UTF-8.
std::vector<std::string> wrap(std::string_view text, int columns);

// "0.4s", "45s", "12m30s", "1h02m", "3d04h": six characters at most, up to 99 days.
std::string short_duration(double seconds);
// "812", "2,977", "29.8k", "1.23M", "2.31G": of a number that is not negative, six characters at most.
std::string short_count(double count);
// "0.031 GiB"
std::string gib(int64_t bytes);
// "1,866,624"
std::string grouped(int64_t count);
// "1 rank", "2 ranks", "1 process", "2 processes"
std::string plural(int64_t count, std::string_view noun);

}  // namespace lockstep::telemetry
