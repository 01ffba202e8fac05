// Checkpoints as folders: <root>/step-00000100 with model.safetensors, optimizer.safetensors (not where only the model was
// saved) and manifest.json, which holds the checksums of all and of itself. A checkpoint is written under <name>.partial and
// gets its name when everything in it is on the disk, so a folder with its final name is complete.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "checkpoint/pieces.h"
#include "checkpoint/safetensors.h"

namespace lockstep::checkpoint {

// Refusals that a run tells apart from damage.
inline constexpr ErrorId kNoSuchFile{"checkpoint.no_such_file"};
inline constexpr ErrorId kOtherStep{"checkpoint.other_step"};

inline const std::string kModelFile = "model.safetensors", kOptimizerFile = "optimizer.safetensors";

struct Manifest {
    int64_t version = 2;
    int64_t steps = 0, samples_seen = 0, tokens_seen = 0;
    std::map<std::string, double> values;  // states of the whole program; "steps": steps that were committed
    std::string dtype;                     // of the weights
    std::string program_hash;              // equal hash: resuming is bitwise
    std::string recipe;                    // TOML
    std::string tokenizer;                 // checksum of the tokenizer of the text that it was trained on; empty: not known
    FileSums files;
    bool operator==(const Manifest&) const = default;
    bool has_optimizer() const { return files.contains(kOptimizerFile); }
};

// A folder that nobody sees half written: <path>.partial until publish(). What an earlier attempt left is removed. UserError
// file.cannot_write.
class NewFolder {
public:
    // Of several writers the first makes it. UserError checkpoint.not_shared where another does not see it.
    explicit NewFolder(const std::string& path, const Writers& writers = {});
    ~NewFolder();  // removes it unless it was published
    NewFolder(const NewFolder&) = delete;
    NewFolder& operator=(const NewFolder&) = delete;

    const std::string& temporary() const { return temporary_; }
    // What is in it must be on the disk. An older folder of that name is replaced.
    void publish();

private:
    const Writers writers_;
    std::string path_, temporary_;
    bool published_ = false;
};

class NewCheckpoint {
public:
    NewCheckpoint(const std::string& root, int64_t step, const Writers& writers = {});

    // The folder under its temporary name. A file that is put there by others has no checksum unless it is added.
    const std::string& temporary() const { return folder_.temporary(); }
    void write(const std::string& file, const SafetensorsLayout& layout, FillTensor fill, OwnElements own = kOwnAll);
    void add(const FileSums& files);
    // Writes the manifest, with the checksums of the files written, and gives the folder its name, which is returned. An older
    // checkpoint of the same step is replaced.
    std::string publish(Manifest manifest);

private:
    const Writers writers_;
    std::string name_;
    NewFolder folder_;
    FileSums files_;
};

// The step that a folder's name says, "out/checkpoint/step-00000058/"; nothing where it is another name.
std::optional<int64_t> step_of(const std::string& folder);
// Steps of the complete checkpoints under `root`, ascending; empty where there is no such folder.
std::vector<int64_t> complete_steps(const std::string& root);
std::string folder_of(const std::string& root, int64_t step);

// Reading: the manifest, then a file of it; SafetensorsReader lists tensors and reads whole ones or slices, checked.
// UserError checkpoint.manifest where it is missing, damaged or of another version, checkpoint.other_step where the folder's
// name step-N is that of another step.
Manifest read_manifest(const std::string& folder);
SafetensorsReader open_file(const std::string& folder, const Manifest& manifest, const std::string& file);
// Reads everything. What is wrong with the checkpoint, or nothing.
std::optional<std::string> what_is_wrong(const std::string& folder);

// The same, only by sizes: the manifest is read, the files are opened.
std::optional<std::string> what_is_wrong_at_first_sight(const std::string& folder);

// Removes a checkpoint. Killed at any moment, it leaves no folder that looks complete.
void remove_checkpoint(const std::string& folder);
// Removes all but the latest `keep` checkpoints (0: none is removed).
void remove_old(const std::string& root, int64_t keep);

}  // namespace lockstep::checkpoint
