// Writes a trainer's checkpoints. Where the program has an entry `snapshot` (checkpoint.async_mode), a second thread
// copies the states with it and writes the copies: the next update waits for the copying, the next save for the writing.
// Elsewhere save() returns when all is on the disk. Every rank of a process is written by one thread, front to back; the
// processes of a job write the same files together, and each call is made by all of them.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/folder.h"
#include "checkpoint/hugging_face_folder.h"
#include "runtime/state_tensors.h"
#include "runtime/trainer.h"

namespace lockstep::runtime {

enum class SaveContents { All, ModelOnly };
// How a checkpoint of only the model is written.
struct ModelForm {
    std::string dtype;                                          // of its tensors, as safetensors names it; empty: as they are
    const checkpoint::HuggingFaceForm* hugging_face = nullptr;  // as a folder that transformers loads; outlives the save
};

class Saver {
public:
    // Removes what an interrupted save has left under `root`. Every checkpoint records the recipe, with all keys of its model,
    // and the checksum of the data's tokenizer (empty: there is none).
    Saver(Trainer& trainer, const compile::Recipe& recipe, std::string root, std::string tokenizer = "");
    ~Saver();  // waits for the writer
    Saver(const Saver&) = delete;
    Saver& operator=(const Saver&) = delete;

    // What every checkpoint carries for those who serve the model; none at first. Before the first save.
    void carry(checkpoint::ServingFiles files) { serving_ = std::move(files); }

    // The states and the progress as they are, between two steps. Throws what this save, or the one before, failed with:
    // UserError file.cannot_write and the like, with the last complete checkpoint in the text.
    void save(SaveContents contents, const ModelForm& form = {});
    // Throws what the writer has failed with by now. Cheap: for every step.
    void check();
    // Waits for the writer; throws as save().
    void finish();

    std::string latest();  // folder of the last checkpoint that was completed or loaded; empty: none
    void set_latest(const std::string& folder);
    int64_t saves() const { return saves_; }
    // For how long training has been held by saves so far: save() itself, and updates that waited for copies.
    double stall_s() const;
    // From the beginning of a save until it was complete: the longest so far.
    double longest_write_s() const { return longest_write_s_; }

private:
    void write(checkpoint::Manifest manifest, SaveContents contents, const ModelForm& form);
    void write_file(checkpoint::NewCheckpoint& folder, const std::string& file, const std::string& dtype) const;

    Trainer& trainer_;
    const std::string root_, recipe_, tokenizer_, program_hash_;
    const int64_t keep_;
    const bool async_;
    const checkpoint::Writers writers_;
    checkpoint::ServingFiles serving_;
    std::optional<StateTensors> states_;  // once something was saved
    std::thread writer_;
    std::atomic<bool> failed_{false};
    std::atomic<double> longest_write_s_{0};
    std::exception_ptr error_;
    std::mutex mutex_;
    std::string latest_;
    int64_t saves_ = 0;
    double held_s_ = 0;
};

}  // namespace lockstep::runtime
