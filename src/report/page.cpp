#include "report/page.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace lockstep::report {

// Written by cmake/embed.cmake.
extern const std::string_view kShellHtml, kPageCss, kBaseJs, kChartJs, kRunHtml, kRunJs, kCurvesJs, kCompareHtml, kCompareJs,
    kPlanHtml, kPlanJs, kTuneHtml, kTuneJs;

namespace {

// Of data inside a <script>: "<" could end it.
std::string embedded(const nlohmann::ordered_json& data) {
    std::string out;
    for (char c : json_text(data)) {
        if (c == '<') out += "\\u003c";
        else out += c;
    }
    return out;
}

struct Parts {
    std::string_view title, body;
    std::vector<std::string_view> scripts;
};
Parts parts_of(Page page) {
    switch (page) {
        case Page::Run: return {"Lockstep run", kRunHtml, {kCurvesJs, kRunJs}};
        case Page::Compare: return {"Lockstep runs", kCompareHtml, {kCurvesJs, kCompareJs}};
        case Page::Plan: return {"Lockstep plan", kPlanHtml, {kPlanJs}};
        case Page::Tune: return {"Lockstep search", kTuneHtml, {kTuneJs}};
    }
    throw InternalError("page_of: a page of no kind");
}

}  // namespace

std::string page_of(Page page, const nlohmann::ordered_json& data) {
    const Parts of = parts_of(page);
    std::string script;
    for (const std::string_view s : of.scripts) script += s;
    const std::pair<std::string_view, std::string> parts[] = {{"<!--TITLE-->", std::string(of.title)},
                                                              {"<!--STYLE-->", std::string(kPageCss)},
                                                              {"<!--BODY-->", std::string(of.body)},
                                                              {"<!--DATA-->", embedded(data)},
                                                              {"<!--CHART-->", std::string(kChartJs)},
                                                              {"<!--BASE-->", std::string(kBaseJs)},
                                                              {"<!--SCRIPT-->", script}};
    std::string out;
    size_t at = 0;
    for (const auto& [mark, text] : parts) {  // in the order of the page
        const size_t found = kShellHtml.find(mark, at);
        ensure(found != std::string_view::npos, "page_of: shell.html has no mark " + std::string(mark));
        out += kShellHtml.substr(at, found - at);
        out += text;
        at = found + mark.size();
    }
    return out += kShellHtml.substr(at);
}

}  // namespace lockstep::report
