#include "cli/page_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "telemetry/console.h"

namespace lockstep::cli {

namespace {

void publish(AtomicFile& file, const std::string& path, const std::string& text) {
    file.append(text);
    file.finish();
    file.publish();
    telemetry::info(fmt::format("written: {}", path));
}

}  // namespace

void write_text_file(const std::string& path, const std::string& text) {
    AtomicFile file(path);
    publish(file, path, text);
}

PageFile::PageFile(const std::string& path, report::Page page) : path_(path), page_(page) {
    if (!path.empty()) file_.emplace(path);
}

void PageFile::write(const nlohmann::ordered_json& data) { publish(*file_, path_, report::page_of(page_, data)); }

}  // namespace lockstep::cli
