#include "interop/read.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_folder.h"
#include "interop/deepspeed.h"
#include "interop/megatron.h"
#include "interop/transformers.h"

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;
using compile::Recipe;

struct File {
    std::string path, text;
    nlohmann::json json;  // of a text that is a JSON object; else null
};

const char* const kPrinted = "Running with configs: {";

Reading of_recipe(Recipe recipe) {
    Reading r;
    r.kind = "recipe";
    r.recipe = std::move(recipe);
    return r;
}

// Without what torchrun puts before each line: "[rank0]:".
std::string without_ranks(const std::string& log) {
    std::string out;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
        const size_t end = line.find("]:");
        out += (line.starts_with("[rank") && end != std::string::npos ? line.substr(end + 2) : line) + "\n";
    }
    return out;
}

// The JSON of torchtitan's job.print_config: a log stands around it.
bool is_torchtitan_log(const File& f) { return f.text.find(kPrinted) != std::string::npos; }
Reading read_torchtitan_log(const File& f) {
    const std::string log = without_ranks(f.text);
    const size_t brace = log.find('{', log.find(kPrinted));
    return of_recipe(Recipe::from_json(log.substr(brace, log.rfind("\n}") + 2 - brace), f.path));
}

// By what each is known, and how it is read. The first that knows a file reads it.
struct Format {
    bool (*knows)(const File&);
    Reading (*read)(const File&);
};
constexpr Format kFormats[] = {
    {is_torchtitan_log, read_torchtitan_log},
    {[](const File& f) { return f.json.contains("model_type"); }, [](const File& f) { return read_transformers(f.path); }},
    {[](const File& f) { return is_deepspeed(f.json); }, [](const File& f) { return read_deepspeed_alone(f.text, f.path); }},
    // torchtitan's job.save_config_file
    {[](const File& f) {
         return f.text.find_first_not_of(" \t\r\n") != std::string::npos && f.text[f.text.find_first_not_of(" \t\r\n")] == '{';
     },
     [](const File& f) { return of_recipe(Recipe::from_json(f.text, f.path)); }},
    {[](const File& f) { return is_megatron(f.text); }, [](const File& f) { return read_megatron(f.text, f.path); }},
    {[](const File&) { return true; }, [](const File& f) { return of_recipe(Recipe::from_text_of(f.path, f.text)); }},
};

}  // namespace

Reading read(const std::string& path) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored) && checkpoint::HuggingFaceFolder::is_at(path))
        return read_transformers((fs::path(path) / "config.json").string());
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("recipe.unreadable", path,
                        fmt::format("recipe {}: cannot be read ({}); give the path of a TOML file", path, file.reason));
    File f{path, file.text, json_or_discarded<nlohmann::json>(file.text)};
    if (!f.json.is_object()) f.json = nullptr;
    for (const Format& format : kFormats) {
        if (format.knows(f)) return format.read(f);
    }
    throw InternalError("the last format knows every file");
}

}  // namespace lockstep::interop
