// Configuration -> program: the layout, then the passes in order. `compile()` is the table of contents of Lockstep.
//
// A compile has two halves. The first makes the model, its derivative and its element types; it does not depend on the layout.
// A search over layouts makes that Prefix once and asks compile() for the rest. What a layout asks for and cannot have is then
// a value (refusal.h); the forms for commands throw it.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "compile/config.h"
#include "compile/layout.h"
#include "compile/recipe.h"
#include "compile/refusal.h"
#include "compile/stages.h"
#include "compile/work.h"
#include "ir/program.h"
#include "ops/catalog.h"
#include "passes/route.h"

namespace lockstep::compile {

struct PassReport {
    std::string name;
    double time_s = 0;
    bool skipped = false;
    // Only with CompileOptions::report: what a step does before and after the pass.
    bool changed = false;
    Work before, after;
};

// What ranks compute in: the host's memory, or that of devices; then the host's holds what is there (Place).
enum class ComputesIn { HostMemory, DeviceMemory };
// Bytes of that memory that the arenas of a program take, and of the host's apart from it: 0 where that is the same.
int64_t bytes_computed_in(const ir::Program& program, ComputesIn memory);
int64_t bytes_beside(const ir::Program& program, ComputesIn memory);

struct CompileOptions {
    ops::KernelCatalog catalog;
    std::string stop_after;                   // a pass's name; empty: all
    std::vector<std::string> skip;            // passes switched off where the program stays legal (see optional_passes)
    std::vector<ir::EntryKind> entries = {};  // what is compiled; empty: train, and eval where validation.enable
    Microbatches microbatches = Microbatches::All;
    passes::RouteOptions route = {};  // where ranks run; not said: all in one process
    bool verify = true;               // the programs after each pass. A search verifies what it chooses
    bool report = false;              // fill PassReport's comparison of before and after
    ComputesIn memory = ComputesIn::HostMemory;
    std::optional<int64_t> capacity_bytes = {};  // of a rank, of that memory: who needs more is refused, as check.does_not_fit
    // false: buffers have neither names nor offsets, and the arena is the least that any offsets need. Such a program has a time
    // on devices.
    bool place_buffers = true;
    bool is_narrow_by_default = true;                // where the recipe leaves it open: kept weights, and logits
    std::optional<int64_t> only_pipeline_rank = {};  // only the program of this one is made: nobody asks for the others
};

struct Compiled {
    Layout layout;
    Stages stages;                      // once assign_stages has run
    std::vector<ir::Program> programs;  // by pipeline rank; before assign_stages one, of the whole model
    std::vector<PassReport> passes;
    ComputesIn memory = ComputesIn::HostMemory;

    const ir::Program& of_rank(int64_t rank) const { return programs[static_cast<size_t>(layout.mesh.pipeline_rank_of(rank))]; }
    std::vector<const ir::Program*> of_ranks() const;
    // Microbatches of the step for each that the programs have: 1, unless fewer were asked for.
    double microbatches_for_each() const;
    // Of the memory in which ranks compute, with the inputs of all microbatches.
    int64_t arena_bytes(const ir::Program& program) const;
    int64_t arena_bytes() const;      // of the rank with the most
    int64_t all_arena_bytes() const;  // of all ranks together
    // Of the host's memory, apart from that: of the rank with the most.
    int64_t host_bytes() const;
};

// The questions to layout and kernels that a prefix answers.
struct PrefixAnswers {
    bool keeps_groups_whole = true;  // has each tensor-parallel rank all query heads of its key heads? (passes/pack_products)
    bool shares_keys = false;        // do ranks add up gradients of keys that each has from its queries? (passes/set_precision)
    bool fuses_gelu = false;         // are GELU and its bias part of a product? (passes/keep_preactivations)
    auto operator<=>(const PrefixAnswers&) const = default;
};

// What does not depend on the layout but for these answers, up to and with set_precision: one program over one sequence, on one
// rank. compile() makes it again for a configuration with other answers.
struct Prefix {
    Config config;  // that it was made for
    PrefixAnswers answers;
    std::vector<ir::Dim> dims;  // of the model's blocks
    ir::Program program;
    std::vector<PassReport> passes;
    bool stopped = false;  // stop_after is among its passes
};

// Reads [model] with its converters, the element types, the sequence's length and which entries there are. Programs that
// generate have no converters. Throws UserError model.* where the model contradicts itself; InternalError naming the pass that
// broke an invariant.
Prefix compile_prefix(const Config& config, const CompileOptions& options);

// The prefixes of a search over layouts, one for each set of answers, made when it is first asked for. Threads share it.
class Prefixes {
public:
    Prefixes(const Config& config, const CompileOptions& options) : first_(compile_prefix(config, options)), options_(options) {}
    const Prefix& first() const { return first_; }
    // For a configuration of the search.
    const Prefix& of(const Config& config);

private:
    const Prefix first_;
    const CompileOptions options_;
    std::mutex mutex_;
    std::map<PrefixAnswers, Prefix> others_;
};

// The rest, for a configuration that has the prefix's model, converters, types, sequence length and entries, and for the same
// options.
OrRefusal<Compiled> compile(const Prefix& prefix, const Config& config, const CompileOptions& options);

// Gives offsets to the buffers of programs that were compiled without, those of the fullest ranks first. It ends at ranks that
// would be the fullest only if they lost more than twice as much to gaps as those before, and 2 % of their bytes in addition.
void place_fullest(Compiled& compiled);

// Both halves. Throws the refusal.
Compiled compile(const Config& config, const CompileOptions& options);
Compiled compile(const Recipe& recipe, const CompileOptions& options);

// The first of them: the model's forward routines, one a block, before any pass changes them.
ir::Program build_blocks(const Config& config);

// All passes in their order, and which of them may be switched off.
const std::vector<std::string>& pass_names();
const std::vector<std::string>& optional_passes();

}  // namespace lockstep::compile
