// Text generation by a program's entries prefill and decode. Each sequence of the batch has its own prompt and its own place;
// caches of keys and values, inputs and logits have their memory from the start, so a step allocates nothing. Of several
// processes the first one gets all logits and says which tokens come next;
// only what they tell each other of these is allocated.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/ranks.h"

namespace lockstep::runtime {

inline constexpr int32_t kNoToken = -1;

class Generator {
public:
    // `ranks` run the program and outlive this. Every process of their process group makes one and makes the same calls.
    explicit Generator(Ranks& ranks);

    int64_t sequences() const { return sequences_; }
    int64_t context() const { return context_; }  // tokens that a cache holds
    int64_t vocab() const { return vocab_; }

    // Begins anew: fills the caches with all but the last token of each prompt. At most sequences() prompts of 1 to context()
    // tokens, the same on every process; sequences without a prompt idle.
    void begin(std::span<const std::vector<int32_t>> prompts);
    // Takes the next token of every sequence, or kNoToken where it idles; the first time that must be the prompt's last. The
    // first process's tokens are those of all. False, and nothing is done, where all sequences idle.
    bool step(std::span<const int32_t> tokens);
    // After a step, on the first process: what follows the token that the sequence took, [vocab]. Valid until the next step.
    std::span<const double> logits(int64_t sequence) const {
        return std::span(logits_).subspan(static_cast<size_t>(sequence * vocab_), static_cast<size_t>(vocab_));
    }
    // Tokens that the sequence has taken.
    int64_t place(int64_t sequence) const { return places_[static_cast<size_t>(sequence)]; }

private:
    struct Input {  // one buffer of an entry on one rank
        int buffer;
        enum Source { Ids, Pos, KvPos, Doc } source;
        int64_t first_batch, batch, first_token, tokens;
    };
    struct Output {  // a rank's part of the logits, [batch, stride]
        int buffer = -1;
        Dtype dtype = Dtype::F32;
        int64_t first_batch = 0, batch = 0, first_column = 0, columns = 0, stride = 0;
        size_t begin = 0;  // in what its process tells the first one
        size_t bytes() const { return static_cast<size_t>(batch * stride * bytes_of(dtype)); }
    };
    std::vector<Input> inputs_of(const ir::Program& program, ir::EntryKind entry, int64_t rank) const;
    Output output_of(const ir::Program& program, int64_t rank) const;
    void load(Executor& executor, const std::vector<Input>& inputs, int64_t tokens) const;
    void share_tokens(std::span<const int32_t> tokens);
    void share_logits();
    void read_logits(const char* row, const Output& output, int64_t sequence);

    Ranks& ranks_;
    int64_t sequences_ = 0, context_ = 0, vocab_ = 0, prefill_tokens_ = 0;
    std::vector<std::vector<Input>> prefill_inputs_, decode_inputs_;  // by place
    std::vector<Output> outputs_;                                     // by rank of the job
    std::string told_;                                                // logits of the ranks here, to the first process
    std::vector<int32_t> ids_, pos_;                                  // of the step at hand, [sequences, tokens]
    std::vector<int64_t> places_;
    std::vector<double> logits_;  // [sequences, vocab]
};

}  // namespace lockstep::runtime
