// Checkpoints as folders: <root>/step-00000100 with model.safetensors, optimizer.safetensors and manifest.json. A checkpoint is
// written under <name>.tmp and renamed when everything in it is on the disk, so a folder with its final name is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct Manifest {
    int64_t version = 1;
    int64_t steps = 0, samples_seen = 0, tokens_seen = 0;
    int64_t optimizer_steps = 0;  // steps that were committed
    std::string dtype;            // of all tensors
    std::string program_hash;     // equal hash: resuming is bitwise
    std::string recipe;           // TOML
    bool operator==(const Manifest&) const = default;
};

// Any folder that nobody sees half written: <path>.tmp until publish().
class NewFolder {
public:
    explicit NewFolder(const std::string& path);  // UserError checkpoint.cannot_write
    ~NewFolder();                                 // removes it unless it was published
    NewFolder(const NewFolder&) = delete;
    NewFolder& operator=(const NewFolder&) = delete;

    const std::string& temporary() const { return temporary_; }
    // Gives it its name once what is in it is on the disk.
    void publish();

private:
    std::string path_, temporary_;
    bool published_ = false;
};

class NewCheckpoint {
public:
    // Makes the temporary folder; leftovers of an earlier attempt are removed. UserError checkpoint.cannot_write.
    NewCheckpoint(const std::string& root, int64_t step);
    ~NewCheckpoint();  // removes the temporary folder unless it was published
    NewCheckpoint(const NewCheckpoint&) = delete;
    NewCheckpoint& operator=(const NewCheckpoint&) = delete;

    std::string path(const std::string& file) const { return temporary_ + "/" + file; }
    // Writes the manifest and gives the folder its name, which is returned. An older checkpoint of the same step is replaced.
    std::string publish(const Manifest& manifest);

private:
    std::string root_, name_, temporary_;
    bool published_ = false;
};

// Steps of the complete checkpoints under `root`, ascending; empty where there is no such folder.
std::vector<int64_t> complete_steps(const std::string& root);
std::string folder_of(const std::string& root, int64_t step);
// UserError checkpoint.manifest where it is missing, damaged or of another version.
Manifest read_manifest(const std::string& folder);
// Removes all but the latest `keep` checkpoints (0: none is removed).
void remove_old(const std::string& root, int64_t keep);

}  // namespace lockstep::checkpoint
