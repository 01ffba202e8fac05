// What a drawn recipe really exercises, and how often every pair of techniques has met.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "tests/equivalence/draw.h"

namespace lockstep::testing {

enum class Technique {
    TensorParallel,
    SequenceParallel,
    AsyncTensorParallel,
    FewKvHeads,  // fewer key and value heads than tensor-parallel ranks
    DpShard,
    DpReplicate,
    Zero1,  // optimizer states split, gradients whole
    Zero2,  // gradients split, weights whole
    Zero3,
    Recompute,
    SelectiveRecompute,  // some values or some layers
    Microbatches,
    Tied,
    Gpt,
    Dropout,
    QkNorm,
    QkvBias,
    SlidingWindow,
    DocumentMask,
    MaskedTargets,
    PaddedVocab,
    PaddedBatch,
    FusedLoss,
    Prefetch,
    CommThread,
    DebugFill,
    Clipping,
    Pipeline,
    Looped,           // several stages a pipeline rank
    ZeroBubble,       // backwards in two parts
    FewMicrobatches,  // than pipeline ranks
    UnevenStages,
    ReducedOnce,   // split gradients, several microbatches
    KeptGathered,  // split weights
    Adam,
    Sgd,
    Muon,
    LossScale,
    PackedProducts,
    SecondaryWeights,
    QuantizedWeights,
    Validation,
    ContextGather,  // of keys and values
    ContextRing,
    ContextHeads,  // all context ranks exchange sequence for heads
    ContextBoth,   // some do, and the others gather or are a ring
    HeadTail,
    Float8,
    NarrowMoments
};
constexpr int kTechniques = 49;
std::string_view name_of(Technique technique);

// `outcome`: of the draw's run; it says whether gradients were clipped.
std::vector<Technique> techniques(const Draw& draw, const Outcome& outcome);

class PairCounts {
public:
    void add(const std::vector<Technique>& techniques);
    // A table: on the diagonal how often a technique occurred, below it how often two met.
    std::string table() const;
    // Possible pairs that met less than `least` times, one a line; empty where there are none.
    std::string rarer_than(int least) const;

private:
    std::array<std::array<int, kTechniques>, kTechniques> counts_ = {};
};

// Why two techniques never meet; empty where they can.
std::string_view impossible(Technique a, Technique b);

}  // namespace lockstep::testing
