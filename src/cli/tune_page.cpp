#include "cli/tune_page.h"

#include <nlohmann/json.hpp>

namespace lockstep::cli {

using Json = nlohmann::ordered_json;

Json tune_page_data(const tune::Problem& problem, const tune::Found& found, const std::string& name, const std::string& recipe,
                    const Json& printed) {
    Json points = Json::array();
    for (const tune::Planned& p : found.all) {
        Json keys = Json::object();
        for (const auto& [key, value] : tune::settings_of(problem.config(p.choice))) keys[key] = value;
        points.push_back({{"layout", tune::text_of(p.choice)},
                          {"microbatch", p.choice.microbatch},
                          {"step_s", p.step_s},
                          {"bytes", p.bytes},
                          {"fits", p.fits},
                          {"keys", keys}});
    }
    return {{"name", name},
            {"search", printed},
            {"recipe", recipe},
            {"capacity", problem.machine.capacity.bytes.value_or(0)},
            {"points", points}};
}

}  // namespace lockstep::cli
