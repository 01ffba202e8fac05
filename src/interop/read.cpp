#include "interop/read.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/json.h"
#include "base/text_file.h"
#include "checkpoint/hugging_face_folder.h"
#include "interop/deepspeed.h"
#include "interop/hjson.h"
#include "interop/later_torchtitan.h"
#include "interop/megatron.h"
#include "interop/other_systems.h"
#include "interop/transformers.h"

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;
using compile::Recipe;

struct File {
    std::string path, text;
    nlohmann::json json;  // of a text that is a JSON object, or hjson of DeepSpeed; else null
    ReadOptions options;
};

const char* const kPrinted = "Running with configs: {";

Reading of_recipe(Recipe recipe) {
    Reading r;
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

// What torchtitan's job.save_config_file holds, or since its jobs are Python debug.save_config_file.
Reading read_torchtitan_json(const std::string& text, const std::string& path) {
    const nlohmann::json json = json_or_discarded<nlohmann::json>(text);
    return is_later_torchtitan(json) ? read_later_torchtitan(json, path) : of_recipe(Recipe::from_json(text, path));
}

bool begins_with_brace(const std::string& text) { return without_comments_before(text).starts_with("{"); }

// The JSON of torchtitan's job.print_config: a log is around it.
bool is_torchtitan_log(const File& f) { return f.text.find(kPrinted) != std::string::npos; }
Reading read_torchtitan_log(const File& f) {
    const std::string log = without_ranks(f.text);
    const size_t brace = log.find('{', log.find(kPrinted));
    return read_torchtitan_json(log.substr(brace, log.rfind("\n}") + 2 - brace), f.path);
}

// By what each is known, and how it is read. The first that knows a file reads it.
struct Format {
    bool (*knows)(const File&);
    Reading (*read)(const File&);
};
constexpr Format kFormats[] = {
    {is_torchtitan_log, read_torchtitan_log},
    {[](const File& f) { return f.json.contains("model_type"); }, [](const File& f) { return read_transformers(f.path); }},
    {[](const File& f) { return f.json.contains("per_device_train_batch_size"); },
     [](const File& f) -> Reading { refuse_other_system(f.text, f.path); }},
    {[](const File& f) { return is_deepspeed(f.json); },
     [](const File& f) { return read_deepspeed_alone(f.text, f.path, f.options); }},
    {[](const File& f) { return begins_with_brace(f.text); }, [](const File& f) { return read_torchtitan_json(f.text, f.path); }},
    {[](const File& f) { return is_python(f.text) || f.path.ends_with(".py"); },
     [](const File& f) -> Reading { refuse_other_system(f.text, f.path); }},
    {[](const File& f) { return is_megatron(f.text); }, [](const File& f) { return read_megatron(f.text, f.path, f.options); }},
    {[](const File& f) { return is_yaml(f.text); }, [](const File& f) -> Reading { refuse_other_system(f.text, f.path); }},
    {[](const File&) { return true; }, [](const File& f) { return of_recipe(Recipe::from_text_of(f.path, f.text)); }},
};

void require_left_out(const Reading& r, const ReadOptions& options, const std::string& path) {
    for (const std::string& name : options.leave_out) {
        const auto is_it = [&](const Item& item) {
            return item.said.starts_with("--" + name) || item.said.starts_with(name + " ");
        };
        if (!std::any_of(r.left_out.begin(), r.left_out.end(), is_it))
            throw UserError("recipe.leave_out", "--leave-out",
                            fmt::format("{}: --leave-out {}: it has no argument of this name", path, name));
    }
}

}  // namespace

Reading read(const std::string& path, const ReadOptions& options) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored) && checkpoint::HuggingFaceFolder::is_at(path))
        return read_transformers((fs::path(path) / "config.json").string());
    const TextFile file = read_text_file(path);
    if (!file.is_readable())
        throw UserError("recipe.unreadable", path,
                        fmt::format("recipe {}: cannot be read ({}); give the path of a TOML file", path, file.reason));
    if (file.text.find_first_not_of(" \t\r\n") == std::string::npos && !path.ends_with(".toml"))
        throw UserError("recipe.unreadable", path, fmt::format("recipe {}: is empty; give a file that says what to train", path));
    File f{path, file.text, json_or_discarded<nlohmann::json>(file.text), options};
    if (!f.json.is_object()) f.json = nullptr;
    if (f.json.is_null() && (begins_with_brace(f.text) || is_yaml(f.text))) {
        if (is_neox(f.text)) refuse_other_system(f.text, path);
        try {
            f.json = parse_hjson(f.text);
        } catch (const std::runtime_error&) {
            f.json = nullptr;  // whoever reads it says what is wrong
        }
        if (!is_deepspeed(f.json)) f.json = nullptr;
    }
    for (const Format& format : kFormats) {
        if (!format.knows(f)) continue;
        Reading r = format.read(f);
        require_left_out(r, options, path);
        return r;
    }
    throw InternalError("the last format knows every file");
}

}  // namespace lockstep::interop
