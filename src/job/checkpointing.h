// A run's checkpoints as the keys of [checkpoint] ask for them: what to go on from, when to save, what to keep.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "job/job.h"
#include "runtime/load_states.h"
#include "runtime/saver.h"

namespace lockstep::job {

class Checkpointing {
public:
    // `root`: the folder of the run's own checkpoints. It is locked where the run saves; the caller holds job.dump_folder,
    // which may be the same.
    Checkpointing(Job& job, std::string root);

    // Loads the latest complete checkpoint that is whole, or that of checkpoint.load_step, else initial_load_path.
    void resume();
    // Saves where the keys want a checkpoint after this step. A step that did not count is never saved.
    void after_step(const runtime::StepResult& r);
    // Would it, if the step counts?
    bool saves_after(int64_t step) const;
    // The checkpoint at the end of a run, unless there is one of this step. Waits until it is complete.
    enum class End { LastStep, Stopped };
    void at_end(End end);
    void wait();  // until what is being written is complete

    bool saves() const { return saver_ != nullptr; }
    std::string latest() const { return saver_ ? saver_->latest() : loaded_; }  // folder; empty: none
    int64_t written() const { return saver_ ? saver_->saves() : 0; }
    double stall_s() const { return saver_ ? saver_->stall_s() : 0; }
    // How long a save takes until it is complete: the longest so far.
    double longest_save_s() const { return saver_ ? saver_->longest_write_s() : 0; }

private:
    void lock_root();
    void save_now(runtime::SaveContents contents);
    bool load(const std::string& folder, const runtime::LoadParts& parts);
    void load_step(int64_t wanted, const std::vector<int64_t>& complete);
    void load_initial();
    void require_same_step();
    void load_hugging_face(const std::string& path);
    void carry(const std::string& folder);

    Job& job_;
    const compile::Config& config_;
    const compile::Recipe& recipe_;
    const std::string root_;
    std::optional<FolderLock> lock_;  // of root_
    runtime::LoadParts parts_;
    const bool last_is_model_only_;
    std::optional<checkpoint::HuggingFaceForm> hugging_face_;  // of the last checkpoint
    const runtime::ModelForm form_;                            // of the last checkpoint, if it holds only the model
    std::unique_ptr<runtime::Saver> saver_;
    std::string loaded_, why_not_;  // why the last folder tried could not be loaded
    bool begins_ = false;           // with weights of another run or folder, from which it may differ in what can grow
    int64_t last_saved_ = -1;       // step
};

}  // namespace lockstep::job
