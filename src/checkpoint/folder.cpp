#include "checkpoint/folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "base/error.h"
#include "base/json.h"
#include "base/output_file.h"
#include "base/round.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const std::string kManifestFile = "manifest.json";
constexpr int64_t kVersion = 2;
constexpr int64_t kMostBytes = int64_t{1} << 60;          // of a file
constexpr int64_t kMostManifestBytes = int64_t{1} << 30;  // 20 a piece, so files of 50 TB

Json to_json(const Manifest& m) {
    Json files = Json::object();
    for (const auto& [name, sums] : m.files) {
        std::vector<std::string> pieces;
        for (uint64_t sum : sums.xxh3) pieces.push_back(hex_checksum(sum));
        files[name] = {{"bytes", sums.bytes}, {"piece_bytes", sums.piece_bytes}, {"xxh3", pieces}};
    }
    return {{"version", m.version},     {"steps", m.steps}, {"samples_seen", m.samples_seen}, {"tokens_seen", m.tokens_seen},
            {"values", m.values},       {"dtype", m.dtype}, {"program_hash", m.program_hash}, {"recipe", m.recipe},
            {"tokenizer", m.tokenizer}, {"files", files}};
}

// Ends the parse of what no manifest is: keys of an ordered object are looked up one by one, and brackets take up the stack.
class ManifestBounds {
public:
    bool operator()(int depth, Json::parse_event_t event, Json&) {
        constexpr int kMostKeys = 10'000;
        if (depth > kDeepestJson) throw std::invalid_argument("brackets are nested too deeply in it");
        if (event == Json::parse_event_t::key && ++keys_ > kMostKeys) throw std::invalid_argument("it has too many keys");
        return true;
    }

private:
    int keys_ = 0;
};

Manifest from_json(const Json& j) {
    Manifest m;
    const auto number = [&](const char* key) { return whole_number(j.at(key)); };
    m.version = number("version"), m.steps = number("steps");
    if (!j.contains("values")) m.values["steps"] = static_cast<double>(number("optimizer_steps"));  // the old form
    else m.values = j.at("values").get<std::map<std::string, double>>();
    m.samples_seen = number("samples_seen"), m.tokens_seen = number("tokens_seen");
    m.dtype = j.at("dtype"), m.program_hash = j.at("program_hash"), m.recipe = j.at("recipe");
    m.tokenizer = j.value("tokenizer", "");
    for (const auto& [name, file] : j.at("files").items()) {
        if (!is_plain_file_name(name)) throw std::invalid_argument(shortened(name) + " is no name of a file next to it");
        PieceSums& sums = m.files[name];
        sums.bytes = whole_number(file.at("bytes")), sums.piece_bytes = whole_number(file.at("piece_bytes"));
        for (const std::string text : file.at("xxh3")) sums.xxh3.push_back(std::stoull(text, nullptr, 16));
        const bool are_sizes =
            std::min(sums.bytes, sums.piece_bytes - 1) >= 0 && std::max(sums.bytes, sums.piece_bytes) <= kMostBytes;
        if (!are_sizes || ceil_div(sums.bytes, sums.piece_bytes) != std::ssize(sums.xxh3))
            throw std::invalid_argument(name + " has another number of checksums than pieces");
    }
    return m;
}

}  // namespace

std::string folder_of(const std::string& root, int64_t step) { return fmt::format("{}/step-{:08}", root, step); }

NewFolder::NewFolder(const std::string& path, const Writers& writers)
    : writers_(writers), path_(fs::path(path).lexically_normal().string()) {
    while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
    temporary_ = partial(path_);
    std::error_code ignored;
    writers_.together([&] {
        if (!writers_.is_first()) return;
        fs::remove_all(temporary_, ignored);
        make_folder(temporary_);
    });
    writers_.together([&] {
        if (fs::is_directory(temporary_, ignored)) return;
        throw UserError("checkpoint.not_shared", temporary_,
                        fmt::format("{} was made by the first process, and this one does not see it: the folder of the "
                                    "checkpoints must be on a file system that all hosts of the job share",
                                    temporary_));
    });
}

NewFolder::~NewFolder() {
    std::error_code error;
    if (!published_ && writers_.is_first()) fs::remove_all(temporary_, error);
}

void NewFolder::publish() {
    writers_.together([&] {
        if (!writers_.is_first()) return;
        sync_folder(temporary_);
        lockstep::publish(path_);
    });
    published_ = true;
}

NewCheckpoint::NewCheckpoint(const std::string& root, int64_t step, const Writers& writers)
    : writers_(writers), name_(folder_of(root, step)), folder_(name_, writers) {}

void NewCheckpoint::write(const std::string& file, const SafetensorsLayout& layout, FillTensor fill, OwnElements own) {
    files_[file] = write_safetensors(temporary() + "/" + file, layout, fill, writers_, own);
}

void NewCheckpoint::add(const FileSums& files) { files_.insert(files.begin(), files.end()); }

std::string NewCheckpoint::publish(Manifest manifest) {
    manifest.files = files_;
    Json j = to_json(manifest);
    j["xxh3"] = hex_checksum(json_text(j));  // of what comes before it
    writers_.together([&] {
        if (!writers_.is_first()) return;
        OutputFile out(temporary() + "/" + kManifestFile);
        out.append(json_text(j, 1) + "\n");
        out.close();
    });
    folder_.publish();
    return name_;
}

std::optional<int64_t> step_of(const std::string& folder) {
    const size_t end = folder.find_last_not_of('/');
    const std::string name = fs::path(folder.substr(0, end + 1)).filename().string();
    const std::string digits = name.starts_with("step-") ? name.substr(5) : "";
    if (digits.empty() || digits.size() > 18 || digits.find_first_not_of("0123456789") != std::string::npos) return std::nullopt;
    return std::stoll(digits);
}

std::vector<int64_t> complete_steps(const std::string& root) {
    std::vector<int64_t> steps;
    std::error_code error;
    for (const fs::directory_entry& e : fs::directory_iterator(root, error)) {
        const auto step = step_of(e.path().string());
        if (step && e.path().filename() == fs::path(folder_of("", *step)).filename()) steps.push_back(*step);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
}

namespace {

// A folder that was renamed would be resumed at the step of its manifest under the name of another.
void require_own_name(const std::string& folder, const Manifest& m) {
    const auto named = step_of(folder);
    if (!named || *named == m.steps) return;
    throw UserError(kOtherStep, folder,
                    fmt::format("{} holds the checkpoint of step {}: it was renamed. Give it its own name back ({}), or take it "
                                "out of the folder of checkpoints",
                                folder, m.steps, fs::path(folder_of("", m.steps)).filename().string()));
}

}  // namespace

Manifest read_manifest(const std::string& folder) {
    const std::string file = folder + "/" + kManifestFile;
    const auto refuse = [&](const std::string& why) -> void {
        throw UserError("checkpoint.manifest", file,
                        fmt::format("checkpoint {}: {}; choose another step with checkpoint.load_step", file, why));
    };
    std::string text;
    try {
        text = read_whole(file, kMostManifestBytes);
    } catch (const UserError& e) {
        refuse(fmt::format("has no readable manifest ({})", e.what()));
    }
    try {
        Json j = Json::parse(text, ManifestBounds());
        if (const int64_t version = whole_number(j.at("version")); version != kVersion)
            refuse(fmt::format("has version {}, and this program reads version {}", version, kVersion));
        const std::string written = j.at("xxh3");
        j.erase("xxh3");
        if (hex_checksum(json_text(j)) != written) refuse("has changed since it was written: its checksum is another");
        const Manifest m = from_json(j);
        require_own_name(folder, m);
        return m;
    } catch (const UserError&) {
        throw;
    } catch (const std::exception& e) {  // of the JSON, or of a checksum that is no number
        refuse(fmt::format("is damaged ({})", json_reason(e)));
    }
    throw InternalError("read_manifest: unreachable");
}

SafetensorsReader open_file(const std::string& folder, const Manifest& manifest, const std::string& file) {
    const auto found = manifest.files.find(file);
    if (found == manifest.files.end()) {
        throw UserError(kNoSuchFile, folder, fmt::format("checkpoint {} holds no {}: only the model was saved", folder, file));
    }
    return SafetensorsReader(folder + "/" + file, found->second);
}

namespace {

enum class Look { AtSizes, AtEveryByte };

std::optional<std::string> what_is_wrong(const std::string& folder, Look look) {
    try {
        const Manifest manifest = read_manifest(folder);
        for (const auto& [name, sums] : manifest.files) {
            const PieceReader reader(folder + "/" + name, sums);
            if (look == Look::AtSizes) continue;
            PieceReader::Cursor cursor;
            std::vector<char> piece(static_cast<size_t>(std::min(sums.piece_bytes, sums.bytes)));
            for (int64_t at = 0; at < sums.bytes; at += sums.piece_bytes)
                reader.read(at, std::min(sums.piece_bytes, sums.bytes - at), piece.data(), cursor);
        }
    } catch (const UserError& e) {
        return e.what();
    }
    return std::nullopt;
}

}  // namespace

std::optional<std::string> what_is_wrong(const std::string& folder) { return what_is_wrong(folder, Look::AtEveryByte); }
std::optional<std::string> what_is_wrong_at_first_sight(const std::string& folder) {
    return what_is_wrong(folder, Look::AtSizes);
}

void remove_checkpoint(const std::string& folder) {
    std::error_code error;
    fs::rename(folder, partial(folder), error);  // first out of the list of complete ones, then away
    fs::remove_all(partial(folder), error);
}

void remove_old(const std::string& root, int64_t keep) {
    const std::vector<int64_t> steps = complete_steps(root);
    for (size_t i = 0; keep > 0 && i + static_cast<size_t>(keep) < steps.size(); ++i)
        remove_checkpoint(folder_of(root, steps[i]));
}

}  // namespace lockstep::checkpoint
