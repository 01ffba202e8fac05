#include "plugins/architectures.h"

#include <charconv>

namespace lockstep::plugins {

Compiled compiled_for(std::string_view architectures, int compute_capability) {
    Compiled found = Compiled::No;
    while (!architectures.empty()) {
        const std::string_view one = architectures.substr(0, architectures.find(','));
        architectures.remove_prefix(one.size() < architectures.size() ? one.size() + 1 : one.size());
        int number = 0;
        std::from_chars(one.data(), one.data() + one.size(), number);
        const bool only_this = one.find('a') != std::string_view::npos && one.find('a') < one.find('-'),
                   has_code = !one.ends_with("-virtual"), has_ptx = !one.ends_with("-real") && !only_this;
        const bool runs_code =
            only_this ? number == compute_capability : number / 10 == compute_capability / 10 && number <= compute_capability;
        if (has_code && runs_code) return Compiled::Yes;
        if (has_ptx && number <= compute_capability) found = Compiled::AtFirstStart;
    }
    return found;
}

}  // namespace lockstep::plugins
