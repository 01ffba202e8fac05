#include "tests/equivalence/defects.h"

namespace lockstep::testing {
namespace {

class AlteredSource : public data::Source {
public:
    AlteredSource(const data::Source& source, const std::function<void(Sample)>& alter) : source_(source), alter_(alter) {}
    int seq_len() const override { return source_.seq_len(); }
    int vocab_size() const override { return source_.vocab_size(); }
    void sample(int64_t seen, std::span<int32_t> ids, std::span<int32_t> targets, std::span<int32_t> positions,
                std::span<int32_t> documents) const override {
        source_.sample(seen, ids, targets, positions, documents);
        if (alter_) alter_({ids, targets, positions, documents});
    }

private:
    const data::Source& source_;
    const std::function<void(Sample)>& alter_;
};

}  // namespace

Outcome run(const compile::Recipe& recipe, const Subject& subject, int steps) {
    const data::SyntheticSource source = synthetic_data(recipe, subject.compiled);
    return run(recipe, subject.compiled, AlteredSource(source, subject.alter_data), steps);
}

}  // namespace lockstep::testing
