// Binds the ports of a call to the buffers of a step: one for each state, input and scalar, for each activation and frame of a
// microbatch, and for each time that a unit's parameters are gathered or its gradients added up (a window). The program gets a
// buffer where a port first needs it. What schedule() uses; it decides which calls there are, and in what order.
// Requires: routines with ports, units. Calls are bound in their order. Routines, units and blocks stay where they are.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
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
    // "eval.act.layer[3]@7", in parts: they are looked up for every port of every call, and the text is made once a buffer.
    struct Name {
        int stem = -1;  // "act.layer": index into stems_
        bool in_all_entries = false;
        char mark = 0;          // of `number`: '@' a microbatch, '#' a window
        int64_t instance = -1;  // -1: none
        int64_t number = 0;
        bool operator==(const Name&) const = default;
    };
    struct HashOfName {
        size_t operator()(const Name& name) const;
    };
    // A table of names, open addressed: most of what schedule() does is to look names up.
    template <class Value>
    class ByName {
    public:
        // The value of the name, and whether it is new: then it is `value`.
        std::pair<Value*, bool> try_emplace(const Name& name, const Value& value) {
            if (2 * (count_ + 1) > slots_.size()) grow();
            Slot& slot = slots_[place_of(name)];
            const bool is_new = !slot.is_used;
            if (is_new) slot = {name, value, true}, ++count_;
            return {&slot.value, is_new};
        }
        Value& operator[](const Name& name) { return *try_emplace(name, {}).first; }
        void clear() { slots_.clear(), count_ = 0; }

    private:
        struct Slot {
            Name name;
            Value value = {};
            bool is_used = false;
        };
        size_t place_of(const Name& name) const {
            size_t at = HashOfName()(name) & (slots_.size() - 1);
            while (slots_[at].is_used && !(slots_[at].name == name)) at = (at + 1) & (slots_.size() - 1);
            return at;
        }
        void grow() {
            std::vector<Slot> before(std::max<size_t>(64, 2 * slots_.size()));
            before.swap(slots_);
            for (const Slot& s : before) {
                if (s.is_used) slots_[place_of(s.name)] = s;
            }
        }

        std::vector<Slot> slots_;  // a power of two of them, at most half of them used
        size_t count_ = 0;
    };
    struct Stem {
        std::string_view what, of;
        auto operator<=>(const Stem&) const = default;
    };
    int stem(std::string_view what, std::string_view of = {});
    std::string text(const Name& name) const;
    struct Window {
        int number = 0;     // windows opened so far
        bool open = false;  // of gradients: they are being added up
    };
    // Of the tensors of a port.
    struct Contents {
        std::vector<int64_t> offsets_bytes;
        Dtype type = Dtype::F32;
        bool has_batch = false;
        const ir::Unit* unit = nullptr;
        ir::StateId state = -1;  // that the port binds: its own, or that of its unit's weights or gradients
        int stem = -1;           // of the names of its buffers,
        int stem_before = -1;    // and of those that the block before makes, for x and d.x
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
    ir::Binding of_microbatch(Name name, const PortOfCall& at, ir::MemoryKind kind, bool resident);
    Name value(const PortOfCall& at) const;
    int stem_of_value(const ir::Port& port, std::string_view block);
    int params(const PortOfCall& at);
    ir::Binding gradients(const PortOfCall& at);
    ir::Binding state(const PortOfCall& at);
    int state_buffer(const PortOfCall& at, int64_t instance);
    int buffer(const Name& name, ir::MemoryKind kind, int64_t bytes, bool resident);
    bool first_write(const PortOfCall& at, int buffer);

    ir::Program& program_;
    const bool names_buffers_;
    std::vector<std::vector<Contents>> contents_;  // by routine and port
    std::string_view entry_;
    std::vector<Stem> stems_;
    std::map<Stem, int> index_of_stem_;
    ByName<int> buffers_;                            // of all entries,
    ByName<int> buffers_of_entry_;                   // and of this one
    ByName<Window> windows_;                         // of this entry
    std::vector<std::vector<int64_t>> accumulated_;  // in this entry, by buffer: offsets that have been added to
};

}  // namespace lockstep::passes
