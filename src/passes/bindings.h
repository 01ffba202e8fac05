// Binds the ports of a call to the buffers of a step: one for each state, input and scalar, for each activation and frame of a
// microbatch, and for each time that a unit's parameters are gathered or its gradients added up (a window). The program gets a
// buffer where a port first needs it. What schedule() uses; it decides which calls there are, and in what order.
// Requires: routines with ports, units. Calls are bound in their order. Routines, units and blocks stay where they are.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ir/program.h"

namespace lockstep::passes {

class Bindings {
public:
    // Lays the tensors of each port one behind the other, where partition_parameters has not placed them, and sets its size.
    Bindings(ir::Program& program, bool names_buffers);

    // Calls are of this entry from now on.
    void begin_entry(ir::EntryKind kind);

    // One binding a port, of a call of `routine` for an instance of its block or unit.
    std::vector<ir::Binding> bind(const ir::Routine& routine, int64_t instance, int64_t microbatch, int64_t chunk);

    struct Maker {  // of what crosses a border between blocks
        std::string_view block;
        int64_t instance;
    };
    // The block instance that comes before this one in the model.
    Maker before(std::string_view block, int64_t instance) const;

private:
    // "eval.act.layer[3]@7", in parts: the text is made once a buffer.
    struct Name {
        int stem = -1;  // "act.layer": index into stems_
        bool in_all_entries = false;
        char mark = 0;          // of `number`: '@' a microbatch, '#' a window
        int64_t instance = -1;  // -1: none
        int64_t number = 0;
    };
    // What each instance of each stem has; -1 is one of them. Most of what schedule() does is to look here.
    template <class Value>
    class ByInstance {
    public:
        Value& at(int stem, int64_t instance) {
            const auto s = static_cast<size_t>(stem), i = static_cast<size_t>(instance + 1);
            if (s >= of_stem_.size()) of_stem_.resize(s + 1);
            if (i >= of_stem_[s].size()) of_stem_[s].resize(i + 1);
            return of_stem_[s][i];
        }
        void clear() { of_stem_.clear(); }
        void for_each(const auto& f) {
            for (std::vector<Value>& values : of_stem_) std::for_each(values.begin(), values.end(), f);
        }

    private:
        std::vector<std::vector<Value>> of_stem_;
    };
    struct Stem {
        std::string_view what, of;
        auto operator<=>(const Stem&) const = default;
    };
    int stem(std::string_view what, std::string_view of = {});
    std::string text(const Name& name) const;
    // A buffer that ports add to, or of parameters; of a state, or of a unit's window.
    struct Place {
        int buffer = -1;
        int number = 0;                 // windows opened so far: the buffer is the last one's
        bool open = false;              // of gradients: they are being added up
        std::vector<int64_t> added_to;  // in this entry, and in this window: offsets
    };
    // Of the tensors of a port.
    struct Contents {
        std::vector<int64_t> offsets_bytes;
        Dtype type = Dtype::F32;
        bool has_batch = false;
        const ir::Unit* unit = nullptr;
        bool is_of_unit = false;           // calls of its routine are of the unit's instances
        ir::StateId state = -1;            // that the port binds: its own, or that of its unit's weights or gradients
        int64_t state_bytes = 0;           // of one instance
        const ir::Block* block = nullptr;  // of a value
        int stem = -1;                     // of the names of its buffers,
        int stem_before = -1;              // and of those that the block before makes, for x and d.x
        int stem_of_state = -1;
    };
    struct PortOfCall {
        const ir::Routine& routine;
        const ir::Port& port;
        const Contents& contents;
        int64_t instance, microbatch, chunk;
    };

    void lay_out(ir::Routine& routine);
    ir::Binding bind(const PortOfCall& at);
    ir::Binding of_microbatch(int stem, int64_t instance, const PortOfCall& at, ir::MemoryKind kind, bool resident);
    ir::Binding value(const PortOfCall& at);
    int stem_of_value(const ir::Port& port, std::string_view block);
    ir::Binding params(const PortOfCall& at);
    ir::Binding gradients(const PortOfCall& at);
    ir::Binding state(const PortOfCall& at);
    Place& place_of_state(const PortOfCall& at, int64_t instance);
    // The buffer is `known`; if that is -1 it is made.
    void make_or_check(int& known, const Name& name, ir::MemoryKind kind, int64_t bytes, bool resident);
    static bool first_write(const PortOfCall& at, Place& place);

    ir::Program& program_;
    const bool names_buffers_;
    std::vector<std::vector<Contents>> contents_;  // by routine and port
    std::string_view entry_;
    std::vector<Stem> stems_;
    std::map<Stem, int> index_of_stem_;
    ByInstance<std::vector<int>> of_microbatches_;  // of this entry: by microbatch
    ByInstance<Place> windows_;                     // of this entry
    ByInstance<Place> states_of_entry_, states_;    // of this entry, and of all
};

}  // namespace lockstep::passes
