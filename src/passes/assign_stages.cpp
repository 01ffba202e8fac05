#include "passes/assign_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/parallel.h"
#include "ir/sources.h"
#include "ops/builder.h"
#include "passes/select_kernels.h"

namespace lockstep::passes {
namespace {

using ir::BlockInstance;
using ir::PortKind;
using ir::Routine;
using ir::RoutineKind;

// The blocks that read each parameter.
using Users = std::map<std::string, std::set<std::string>>;

Users users_of(const ir::Program& program) {
    Users users;
    for (const Routine& r : program.routines) {
        for (const ir::Tensor& t : r.tensors) {
            if (t.port < 0 || r.ports[t.port].kind != PortKind::Params) continue;
            for (const std::string_view param : ir::sources_of(t)) users[std::string(param)].insert(r.block);
        }
    }
    return users;
}

// What crosses a cut behind a block: `y` of its forward, or `d.y` of its backward.
struct Crossing {
    BlockInstance from;  // the block before the cut
    ir::PortRole port = ir::PortRole::Y;
    ir::EntryKind entry = ir::EntryKind::Train;
    int64_t peer = 0;
    mesh::Collective kind = mesh::Collective::Send;
};

std::string name_of(const Crossing& c) {
    const bool receives = c.kind == mesh::Collective::Recv;
    return fmt::format("{}{}{}.{}{}.{}{}", c.kind == mesh::Collective::Wait ? "wait." : "",
                       c.entry == ir::EntryKind::Train ? "" : std::string(ir::name_of(c.entry)) + ".",
                       receives ? "receive" : "send", c.port == ir::PortRole::Y ? "" : "d.", c.from.block,
                       receives ? "from" : "to", c.peer);
}

class StageProgram {
public:
    StageProgram(const ir::Program& whole, const Users& users, const Cut& cut, int64_t rank)
        : whole_(whole), users_(users), cut_(cut), rank_(rank) {}

    ir::Program make(const ops::KernelCatalog& catalog) {
        out_.mesh = whole_.mesh;
        out_.pipeline_rank = rank_;
        out_.microbatches = whole_.microbatches;
        out_.head_tail = whole_.head_tail;
        out_.blocks = whole_.blocks;
        out_.states = whole_.states;
        for (size_t s = 0; s < cut_.stages.size(); ++s) {
            if (cut_.rank_of[s] == rank_) out_.stages.push_back({static_cast<int64_t>(s), cut_.stages[s]});
        }
        hold_blocks();
        keep_routines();
        keep_parameters();
        for (size_t s = 0; s + 1 < cut_.stages.size(); ++s) cross(s);
        for (auto& [name, r] : transfers_) {
            std::sort(r.instances.begin(), r.instances.end());
            select_kernels(out_.mesh, r, catalog);
            out_.routines.push_back(std::move(r));
        }
        return std::move(out_);
    }

private:
    void hold_blocks() {
        for (ir::Block& b : out_.blocks) b.held.emplace();
        for (const ir::Stage& s : out_.stages) {
            for (const BlockInstance& b : s.blocks) {
                const auto at = std::find_if(out_.blocks.begin(), out_.blocks.end(), [&](auto& x) { return x.name == b.block; });
                at->held->push_back(b.instance);
            }
        }
        for (ir::Block& b : out_.blocks) std::sort(b.held->begin(), b.held->end());
    }

    // Routines of blocks that are not here go; so do those that end an evaluation where there is no loss.
    void keep_routines() {
        for (const Routine& r : whole_.routines) {
            const ir::Block* block = r.block.empty() ? nullptr : out_.block(r.block);
            if (block && block->held->empty()) continue;
            std::vector<int64_t> instances = r.instances;
            std::erase_if(instances, [&](int64_t i) { return block && !block->holds(i); });
            if (instances.empty() && !r.instances.empty()) continue;
            out_.routines.push_back(r);
            out_.routines.back().instances = std::move(instances);
        }
        const ir::StateId loss_sum = out_.state(ir::StateRole::LossSum);
        const auto binds_loss = [&](const Routine& r) { return r.port_of_state(loss_sum) >= 0; };
        const bool has_loss = std::any_of(out_.routines.begin(), out_.routines.end(),
                                          [&](const Routine& r) { return !r.block.empty() && binds_loss(r); });
        if (!has_loss) std::erase_if(out_.routines, [&](const Routine& r) { return r.block.empty() && binds_loss(r); });
    }

    // Those that the routines here read; of a shared one, who else has it.
    void keep_parameters() {
        const Users used = users_of(out_);
        std::copy_if(whole_.params.begin(), whole_.params.end(), std::back_inserter(out_.params),
                     [&](const ir::Parameter& p) { return used.contains(p.key); });
        for (ir::Parameter& p : out_.params) {
            const std::vector<int64_t> all = holders_of(p);
            if (all.size() > 1) p.holders = all;
        }
    }

    // Its owner has its own block; mirrors have others that read it.
    std::vector<int64_t> holders_of(const ir::Parameter& p) const {
        std::vector<int64_t> out;
        const auto add = [&](const std::string& block) {
            for (size_t s = 0; s < cut_.stages.size(); ++s) {
                const bool here =
                    std::any_of(cut_.stages[s].begin(), cut_.stages[s].end(), [&](auto& b) { return b.block == block; });
                if (here && p.shared && std::find(out.begin(), out.end(), cut_.rank_of[s]) == out.end())
                    out.push_back(cut_.rank_of[s]);
            }
        };
        add(p.block);
        for (const std::string& block : users_.at(p.key)) add(block);
        return out;
    }

    // The transfers of this rank between stages s and s + 1.
    void cross(size_t s) {
        const int64_t before = cut_.rank_of[s], after = cut_.rank_of[s + 1];
        if (before == after || (before != rank_ && after != rank_)) return;
        const BlockInstance& from = cut_.stages[s].back();
        for (const Routine& r : whole_.routines) {
            if (r.block != from.block || !r.serves(from.instance)) continue;
            for (const ir::PortRole port : {ir::PortRole::Y, ir::PortRole::DY}) {
                const int at = r.port(port);
                if (at < 0) continue;
                const int64_t peer = before == rank_ ? after : before;
                if ((port == ir::PortRole::Y) != (before == rank_)) {
                    add({from, port, r.entry, peer, mesh::Collective::Recv}, r, at);
                } else {
                    add({from, port, r.entry, peer, mesh::Collective::Send}, r, at);
                    add({from, port, r.entry, peer, mesh::Collective::Wait}, r, at);
                }
            }
        }
    }

    void add(const Crossing& c, const Routine& like, int port) {
        Routine& r = transfers_[name_of(c)];
        if (std::find(r.instances.begin(), r.instances.end(), c.from.instance) != r.instances.end()) return;
        r.instances.push_back(c.from.instance);
        if (!r.name.empty()) return;
        r.name = name_of(c);
        r.block = c.from.block;
        r.kind = RoutineKind::Transfer;
        r.entry = c.entry;
        r.dims = like.dims;
        const bool receives = c.kind == mesh::Collective::Recv;
        const std::string name(ir::name_of(c.port));
        r.ports = {{name, PortKind::Value, receives ? ir::Access::Write : ir::Access::Read, c.port}};
        ir::Tensor t = like.tensors[like.port_tensors(port).at(0)];
        t.name = name;
        t.port = 0;
        t.source.clear();
        r.tensors = {t};
        r.ops = {ir::point_to_point(out_.mesh, c.kind, 0, c.peer)};
    }

    const ir::Program& whole_;
    const Users& users_;
    const Cut& cut_;
    ir::Program out_;
    const int64_t rank_;
    std::map<std::string, Routine> transfers_;
};

}  // namespace

std::vector<ir::Program> assign_stages(ir::Program whole, const Cut& cut, const ops::KernelCatalog& catalog,
                                       std::optional<int64_t> only_rank) {
    const Users users = users_of(whole);
    for (ir::Parameter& p : whole.params) p.shared = users.at(p.key).size() > 1;
    const int64_t ranks = whole.mesh.degree(mesh::Axis::pp);
    if (ranks == 1) return {std::move(whole)};
    if (only_rank) return {StageProgram(whole, users, cut, *only_rank).make(catalog)};
    std::vector<ir::Program> out(static_cast<size_t>(ranks));
    parallel_for(out.size(),
                 [&](size_t rank) { out[rank] = StageProgram(whole, users, cut, static_cast<int64_t>(rank)).make(catalog); });
    return out;
}

}  // namespace lockstep::passes
