// Pages and pictures that commands write.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/output_file.h"
#include "report/page.h"

namespace lockstep::cli {

// Whole or not at all, with a line that says so. UserError file.cannot_write.
void write_text_file(const std::string& path, const std::string& text);

// A page that is written when its data are known. The file is opened at once: what cannot be written is said before the work.
class PageFile {
public:
    // An empty path: there is none.
    PageFile(const std::string& path, report::Page page);
    explicit operator bool() const { return file_.has_value(); }
    void write(const nlohmann::ordered_json& data);

private:
    std::string path_;
    report::Page page_;
    std::optional<AtomicFile> file_;
};

}  // namespace lockstep::cli
