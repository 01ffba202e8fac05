#include "report/run_page.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"

namespace lockstep::report {

// Written by cmake/embed.cmake.
extern const std::string_view kPageHtml, kPageCss, kPageJs, kChartJs;

namespace {

// Of data inside a <script>: "<" could end it.
std::string embedded(const nlohmann::ordered_json& data) {
    std::string out;
    for (char c : data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)) {
        if (c == '<') out += "\\u003c";
        else out += c;
    }
    return out;
}

}  // namespace

std::string run_page(const nlohmann::ordered_json& run) {
    const std::pair<std::string_view, std::string> parts[] = {{"<!--STYLE-->", std::string(kPageCss)},
                                                              {"<!--DATA-->", embedded(run)},
                                                              {"<!--CHART-->", std::string(kChartJs)},
                                                              {"<!--SCRIPT-->", std::string(kPageJs)}};
    std::string page;
    size_t at = 0;
    for (const auto& [mark, text] : parts) {  // in the order of the page
        const size_t found = kPageHtml.find(mark, at);
        ensure(found != std::string_view::npos, "run_page: page.html has no mark " + std::string(mark));
        page += kPageHtml.substr(at, found - at);
        page += text;
        at = found + mark.size();
    }
    page += kPageHtml.substr(at);
    return page;
}

}  // namespace lockstep::report
