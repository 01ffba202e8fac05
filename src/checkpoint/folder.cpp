#include "checkpoint/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kVersion = 1;

[[noreturn]] void cannot_write(const std::string& path, const std::string& why) {
    throw UserError("checkpoint.cannot_write", path, fmt::format("checkpoint {}: cannot be written: {}", path, why));
}

void sync(const std::string& path, int flags) {
    const int file = open(path.c_str(), flags);
    if (file < 0 || fsync(file) != 0) {
        const std::string why = std::strerror(errno);
        if (file >= 0) close(file);
        cannot_write(path, why);
    }
    close(file);
}

}  // namespace

std::string folder_of(const std::string& root, int64_t step) { return fmt::format("{}/step-{:08}", root, step); }

NewFolder::NewFolder(const std::string& path) : path_(fs::path(path).lexically_normal().string()) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    temporary_ = path_ + ".tmp";
    std::error_code error;
    fs::remove_all(temporary_, error);
    fs::create_directories(temporary_, error);
    if (error) cannot_write(temporary_, error.message());
}

NewFolder::~NewFolder() {
    std::error_code error;
    if (!published_) fs::remove_all(temporary_, error);
}

void NewFolder::publish() {
    sync(temporary_, O_RDONLY | O_DIRECTORY);
    std::error_code error;
    fs::rename(temporary_, path_, error);
    if (error) cannot_write(path_, error.message());
    published_ = true;
    const std::string parent = fs::path(path_).parent_path().string();
    sync(parent.empty() ? "." : parent, O_RDONLY | O_DIRECTORY);
}

NewCheckpoint::NewCheckpoint(const std::string& root, int64_t step)
    : root_(root), name_(folder_of(root, step)), temporary_(name_ + ".tmp") {
    std::error_code error;
    fs::remove_all(temporary_, error);
    fs::create_directories(temporary_, error);
    if (error) cannot_write(temporary_, error.message());
}

NewCheckpoint::~NewCheckpoint() {
    std::error_code error;
    if (!published_) fs::remove_all(temporary_, error);
}

std::string NewCheckpoint::publish(const Manifest& m) {
    const json j = {{"version", m.version},
                    {"steps", m.steps},
                    {"samples_seen", m.samples_seen},
                    {"tokens_seen", m.tokens_seen},
                    {"optimizer_steps", m.optimizer_steps},
                    {"dtype", m.dtype},
                    {"program_hash", m.program_hash},
                    {"recipe", m.recipe}};
    const std::string file = path("manifest.json");
    std::ofstream out(file);
    out << j.dump(2) << "\n";
    out.close();
    if (!out) cannot_write(file, "the disk may be full");
    sync(file, O_RDONLY);
    sync(temporary_, O_RDONLY | O_DIRECTORY);
    std::error_code error;
    const std::string old = name_ + ".old.tmp";
    fs::remove_all(old, error);
    if (fs::exists(name_)) fs::rename(name_, old, error);
    fs::rename(temporary_, name_, error);
    if (error) cannot_write(name_, error.message());
    published_ = true;
    sync(root_, O_RDONLY | O_DIRECTORY);
    fs::remove_all(old, error);
    return name_;
}

std::vector<int64_t> complete_steps(const std::string& root) {
    std::vector<int64_t> steps;
    std::error_code error;
    for (const fs::directory_entry& e : fs::directory_iterator(root, error)) {
        const std::string name = e.path().filename().string();
        const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
        if (!digits.empty() && digits.size() <= 18 && digits.find_first_not_of("0123456789") == std::string::npos)
            steps.push_back(std::stoll(digits));
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}

Manifest read_manifest(const std::string& folder) {
    const std::string file = folder + "/manifest.json";
    std::ifstream in(file);
    const auto refuse = [&](const std::string& why) -> void {
        throw UserError("checkpoint.manifest", file,
                        fmt::format("checkpoint {}: {}; choose another step with checkpoint.load_step", file, why));
    };
    if (!in) refuse("has no readable manifest");
    Manifest m;
    try {
        const json j = json::parse(in);
        m.version = j.at("version");
        if (m.version != kVersion) refuse(fmt::format("has version {}, and this program reads version {}", m.version, kVersion));
        m.steps = j.at("steps"), m.samples_seen = j.at("samples_seen"), m.tokens_seen = j.at("tokens_seen"),
        m.optimizer_steps = j.at("optimizer_steps");
        m.dtype = j.at("dtype"), m.program_hash = j.at("program_hash"), m.recipe = j.at("recipe");
    } catch (const json::exception& e) {
        refuse(fmt::format("is damaged ({})", e.what()));
    }
    return m;
}

void remove_old(const std::string& root, int64_t keep) {
    const std::vector<int64_t> steps = complete_steps(root);
    std::error_code error;
    for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < steps.size(); ++i) {
        // First out of the list of complete ones, then away.
        const std::string name = folder_of(root, steps[i]), going = name + ".old.tmp";
        fs::rename(name, going, error);
        fs::remove_all(going, error);
    }
}

}  // namespace lockstep::checkpoint
