#include "runtime/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "base/elements.h"
#include "base/error.h"

namespace lockstep::runtime {

using ir::DimRole;
using ir::EntryKind;
using ir::PortRole;

namespace {

const ir::Dim& dim(const ir::Routine& r, DimRole role) { return r.dims[static_cast<size_t>(r.dim(role))]; }

// The first routine of an entry that has such a port, and the call that binds it.
template <class Is>
std::pair<const ir::Routine*, const ir::Call*> find_port(const ir::Program& p, EntryKind entry, const Is& is) {
    ensure(p.entry(entry), fmt::format("generator: the program has no entry {}", name_of(entry)));
    for (const ir::Call& c : p.entry(entry)->calls) {
        const ir::Routine& r = p.routines[c.routine];
        if (std::any_of(r.ports.begin(), r.ports.end(), is)) return {&r, &c};
    }
    throw InternalError(fmt::format("generator: no routine of {} has the port", name_of(entry)));
}

bool is_logits(const ir::Port& port) { return port.role == PortRole::Logits; }

}  // namespace

Generator::Generator(Ranks& ranks) : ranks_(ranks) {
    const ir::Program& p = ranks.first().program();
    ensure(p.microbatches == 1, "generator: caches belong to one microbatch");
    const auto is_cache = [&](const ir::Port& port) { return p.has_role(port, ir::StateRole::Cache); };
    const ir::Routine& layer = *find_port(p, EntryKind::Prefill, is_cache).first;
    const ir::Routine& head = *find_port(p, EntryKind::Decode, is_logits).first;
    sequences_ = dim(layer, DimRole::Batch).size;
    context_ = dim(layer, DimRole::KvSeq).size;
    prefill_tokens_ = dim(layer, DimRole::Seq).size;
    vocab_ = dim(head, DimRole::Vocab).valid;
    for (const auto& e : ranks.here()) {
        prefill_inputs_.push_back(inputs_of(p, EntryKind::Prefill, e->rank()));
        decode_inputs_.push_back(inputs_of(p, EntryKind::Decode, e->rank()));
    }
    const int each = ranks.group().ranks_a_process(ranks.count());
    size_t bytes = 0;  // of a process
    for (int r = 0; r < ranks.count(); ++r) {
        if (r % each == 0) bytes = 0;
        Output& out = outputs_.emplace_back(output_of(p, r));
        out.begin = bytes;
        bytes += out.bytes();
        if (r / each == ranks.group().process()) told_.resize(bytes);
    }
    ids_.resize(static_cast<size_t>(sequences_ * prefill_tokens_));
    pos_.resize(ids_.size());
    places_.resize(static_cast<size_t>(sequences_));
    logits_.resize(static_cast<size_t>(sequences_ * vocab_));
}

std::vector<Generator::Input> Generator::inputs_of(const ir::Program& p, EntryKind entry, int64_t rank) const {
    std::vector<Input> out;
    std::set<int> seen;
    for (const ir::Call& call : p.entry(entry)->calls) {
        const ir::Routine& r = p.routines[call.routine];
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[t.port].kind != ir::PortKind::Input || !seen.insert(call.bindings[t.port].buffer).second)
                continue;
            constexpr PortRole roles[] = {PortRole::Ids, PortRole::Positions, PortRole::KvPositions, PortRole::Documents,
                                          PortRole::KvDocuments};
            const auto source = std::find(std::begin(roles), std::end(roles), r.ports[t.port].role) - roles;
            ensure(source < std::ssize(roles), "generator: it has no input for port " + r.ports[t.port].name);
            Input in{call.bindings[t.port].buffer, static_cast<Input::Source>(std::min<long>(source, Input::Doc)), 0, 0, 0, 0};
            in.batch = ir::local_size(p.mesh, r, t, 0), in.first_batch = p.mesh.index(rank, t.placement.dims[0]) * in.batch;
            in.tokens = ir::local_size(p.mesh, r, t, 1), in.first_token = p.mesh.index(rank, t.placement.dims[1]) * in.tokens;
            out.push_back(in);
        }
    }
    return out;
}

Generator::Output Generator::output_of(const ir::Program& p, int64_t rank) const {
    const auto [r, call] = find_port(p, EntryKind::Decode, is_logits);
    const int port = r->port(PortRole::Logits);
    const ir::Tensor& t = r->tensors[r->port_tensors(port)[0]];
    for (int a : mesh::subtract(p.mesh.all(), t.placement.used())) {
        if (p.mesh.coordinate(rank, a) != 0) return {};  // another rank has the same
    }
    Output out{call->bindings[port].buffer, t.dtype};
    out.batch = ir::local_size(p.mesh, *r, t, 0), out.first_batch = p.mesh.index(rank, t.placement.dims[0]) * out.batch;
    out.stride = ir::local_size(p.mesh, *r, t, 2), out.first_column = p.mesh.index(rank, t.placement.dims[2]) * out.stride;
    out.columns = std::clamp<int64_t>(vocab_ - out.first_column, 0, out.stride);  // the rest is padding
    return out;
}

// `tokens`: of a sequence in this step; kv inputs are as long as the cache.
void Generator::load(Executor& executor, const std::vector<Input>& inputs, int64_t tokens) const {
    for (const Input& in : inputs) {
        for (int64_t b = 0; b < in.batch; ++b) {
            executor.write(in.buffer, b * in.tokens * 4, in.tokens * 4, [&](char* data) {
                auto* to = reinterpret_cast<int32_t*>(data);
                for (int64_t t = 0; t < in.tokens; ++t, ++to) {
                    const auto at = static_cast<size_t>((in.first_batch + b) * tokens + in.first_token + t);
                    if (in.source == Input::Ids) *to = std::max(ids_[at], 0);
                    if (in.source == Input::Pos) *to = pos_[at];
                    if (in.source == Input::KvPos) *to = static_cast<int32_t>(in.first_token + t);
                    if (in.source == Input::Doc) *to = 0;
                }
            });
        }
    }
}

void Generator::begin(std::span<const std::vector<int32_t>> prompts) {
    ensure(static_cast<int64_t>(prompts.size()) <= sequences_, "generator: more prompts than sequences");
    std::fill(places_.begin(), places_.end(), 0);
    int64_t longest = 0;
    for (size_t s = 0; s < prompts.size(); ++s) {
        const auto length = static_cast<int64_t>(prompts[s].size());
        ensure(length >= 1 && length <= context_, "generator: a prompt is empty or longer than the cache");
        places_[s] = length - 1;
        longest = std::max(longest, length - 1);
    }
    for (int64_t first = 0; first < longest; first += prefill_tokens_) {
        for (int64_t s = 0; s < sequences_; ++s) {
            for (int64_t t = 0; t < prefill_tokens_; ++t) {
                const auto at = static_cast<size_t>(s * prefill_tokens_ + t);
                const bool real = first + t < places_[static_cast<size_t>(s)];
                ids_[at] = real ? prompts[static_cast<size_t>(s)][static_cast<size_t>(first + t)] : kNoToken;
                pos_[at] = real ? static_cast<int32_t>(first + t) : -1;
            }
        }
        ranks_.parallel([&](Executor& e) {
            load(e, prefill_inputs_[ranks_.place(e.rank())], prefill_tokens_);
            e.run(EntryKind::Prefill);
        });
    }
}

bool Generator::step(std::span<const int32_t> tokens) {
    ensure(static_cast<int64_t>(tokens.size()) == sequences_, "generator: a step takes one token a sequence");
    share_tokens(tokens);
    bool any = false;
    for (size_t s = 0; s < tokens.size(); ++s) {
        pos_[s] = -1;
        if (ids_[s] == kNoToken) continue;
        ensure(places_[s] < context_, "generator: the cache is full");
        pos_[s] = static_cast<int32_t>(places_[s]++);
        any = true;
    }
    if (!any) return false;
    const bool alone = ranks_.group().is_alone();
    ranks_.parallel([&](Executor& e) {
        load(e, decode_inputs_[ranks_.place(e.rank())], 1);
        e.run(EntryKind::Decode);
        const Output& out = outputs_[static_cast<size_t>(e.rank())];
        if (out.buffer < 0) return;
        const auto row_bytes = static_cast<int64_t>(out.bytes()) / out.batch;
        for (int64_t b = 0; b < out.batch; ++b) {
            e.read(out.buffer, b * row_bytes, row_bytes, [&](const char* row) {
                if (alone) read_logits(row, out, b);
                else std::memcpy(told_.data() + out.begin + b * row_bytes, row, static_cast<size_t>(row_bytes));
            });
        }
    });
    if (!alone) share_logits();
    return true;
}

// The first process's, as ids_.
void Generator::share_tokens(std::span<const int32_t> tokens) {
    if (ranks_.group().is_alone()) {
        std::copy(tokens.begin(), tokens.end(), ids_.begin());
        return;
    }
    std::string own;
    if (ranks_.group().is_first()) own.assign(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
    std::memcpy(ids_.data(), ranks_.group().exchange(own)[0].data(), tokens.size_bytes());
}

void Generator::share_logits() {
    const std::vector<std::string> of_each = ranks_.group().exchange(told_);
    if (!ranks_.group().is_first()) return;
    const size_t each = outputs_.size() / of_each.size();
    for (size_t r = 0; r < outputs_.size(); ++r) {
        const Output& out = outputs_[r];
        for (int64_t b = 0; out.buffer >= 0 && b < out.batch; ++b)
            read_logits(of_each[r / each].data() + out.begin + b * out.stride * bytes_of(out.dtype), out, b);
    }
}

// Those of a sequence, from a row of a rank's part.
void Generator::read_logits(const char* row, const Output& out, int64_t sequence) {
    double* to = logits_.data() + (out.first_batch + sequence) * vocab_ + out.first_column;
    for (int64_t i = 0; i < out.columns; ++i) to[i] = element(row, out.dtype, i);
}

}  // namespace lockstep::runtime
