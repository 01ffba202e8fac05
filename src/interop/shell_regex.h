// Regular expressions as sed, grep and [[ =~ ]] have them, by PCRE2.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::interop {

class Regex {
public:
    enum class Kind { Basic, Extended, Perl };
    // Where groups begin and end; npos: a group that took no part.
    using Groups = std::vector<std::pair<size_t, size_t>>;

    // Nothing: it is none.
    static std::optional<Regex> compile(const std::string& pattern, Kind kind, bool ignores_case = false);
    // The first match from `begin` on, the longest of those that begin there (of Perl's the first). Nothing: there is none.
    // Matches that take too long count as none, and set failed().
    std::optional<Groups> find(const std::string& text, size_t begin) const;
    bool failed() const { return failed_; }

private:
    std::shared_ptr<void> code_;
    bool has_choices_ = false;
    mutable bool failed_ = false;
};

}  // namespace lockstep::interop
