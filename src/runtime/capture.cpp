#include "runtime/capture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/elements.h"
#include "base/json.h"
#include "compile/conversion.h"
#include "ir/timeline.h"
#include "mesh/order.h"

namespace lockstep::runtime {
namespace {

// Where one local dim lies in the global tensor: from `first` on, or at `places`.
struct Extent {
    int64_t local, whole, first;
    std::vector<int64_t> places{};

    int64_t place(int64_t i) const { return places.empty() ? first + i : places[static_cast<size_t>(i)]; }
};

// The dims qkv, kv_heads and head_dim as one: a rank's list of queries, keys and values (ir::DimRole::Qkv) within that of all.
Extent list_of(const Extent& qkv, const Extent& heads, const Extent& head_dim) {
    const int64_t width = head_dim.whole;
    Extent list{qkv.local * heads.local * width, qkv.whole * heads.whole * width, 0};
    int64_t before = 0;  // rows of a head in the parts before this one
    for (const int64_t rows : {qkv.whole - 2, int64_t{1}, int64_t{1}}) {
        const int64_t begin = (before * heads.whole + rows * heads.first) * width;
        for (int64_t i = 0; i < rows * heads.local * width; ++i) list.places.push_back(begin + i);
        before += rows;
    }
    return list;
}

// What a routine of a block does, without the numbers of its variants (an instance has one of them) and of its parts. A
// backward in two parts has the name of the whole one.
std::string word_of(const ir::Routine& r) {
    const bool trains = r.entry == ir::EntryKind::Train;
    if (ir::is_backward(r.kind)) return "backward";
    if (r.kind == ir::RoutineKind::Loss) return trains ? "loss" : fmt::format("{}.loss", ir::name_of(r.entry));
    return trains ? "forward" : std::string(ir::name_of(r.entry));
}

// Empty where the tensor has no value for each sample of the batch.
std::string name_of(const ir::Routine& r, const ir::Call& call, ir::TensorId tensor) {
    const ir::Tensor& t = r.tensors[tensor];
    if (!(ir::is_forward(r.kind) || ir::is_backward(r.kind)) || t.dims.empty() || r.dims[t.dims[0]].role != ir::DimRole::Batch)
        return "";
    return fmt::format("{}[{}].{}.{}", compile::name_in_model(r.block), call.instance, word_of(r), t.name);
}

}  // namespace

std::set<std::string> capturable(const ir::Program& program, ir::EntryKind entry) {
    std::set<std::string> names;
    for (const ir::Call& call : program.entry(entry)->calls) {
        const ir::Routine& r = program.routines[call.routine];
        for (const ir::Op& op : r.ops) {
            if (ir::is_view(r, op)) continue;
            for (const ir::TensorId t : op.out) names.insert(name_of(r, call, t));
        }
    }
    names.erase("");
    return names;
}

Capture::Capture(Ranks& ranks, std::function<bool(const std::string&)> wanted) : ranks_(ranks), wanted_(std::move(wanted)) {
    ranks_.parallel([this](Executor& e) { e.set_watcher([this, &e](const Produced& p) { see(e, p); }); });
}

Capture::~Capture() {
    try {
        ranks_.parallel([](Executor& e) { e.set_watcher({}); });
    } catch (const std::exception&) {  // the job is over anyway
    }
}

std::map<std::string, Captured> Capture::take() {
    std::unique_lock lock(mutex_);
    std::map<std::string, Captured> own = std::exchange(captured_, {});
    lock.unlock();
    if (ranks_.group().is_alone()) return own;
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [name, t] : own) all.push_back({name, t.shape, t.values, t.order, t.is_max});
    std::map<std::string, Captured> whole;
    for (const std::string& text : ranks_.group().exchange(cbor_of(all))) {
        for (const nlohmann::json& j : json_of_cbor<nlohmann::json>(text)) {
            const Captured part{j[1], j[2], j[3], j[4]};
            const auto [it, is_new] = whole.try_emplace(j[0], part);
            for (size_t i = 0; !is_new && i < part.values.size(); ++i) {
                double& value = it->second.values[i];
                value = part.is_max ? std::max(value, part.values[i]) : value + part.values[i];
            }
        }
    }
    return whole;
}

void Capture::see(Executor& executor, const Produced& p) {
    const ir::Program& program = executor.program();
    const ir::Routine& r = *p.routine;
    const ir::Tensor& t = r.tensors[p.tensor];
    const std::string name = name_of(r, *p.call, p.tensor);
    if (name.empty() || !wanted_(name)) return;

    // One copy of each part: coordinate 0 on every sub-axis along which the tensor is the same.
    const mesh::AxisList varies = mesh::unite(t.placement.used(), t.placement.partial);
    for (int a : mesh::subtract(program.mesh.all(), varies)) {
        if (program.mesh.coordinate(executor.rank(), a) != 0) return;
    }
    // A chunked routine's batch and seq are slices of the first block's; chunks run over batch first, then seq.
    const ir::Routine& first_block = program.routines.front();
    int64_t cuts[2] = {1, 1};
    for (int k = 0; k < 2; ++k) {
        const ir::DimRole dim = k == 0 ? ir::DimRole::Batch : ir::DimRole::Seq;
        if (r.dim(dim) >= 0) cuts[k] = first_block.dims[first_block.dim(dim)].size / r.dims[r.dim(dim)].size;
    }
    std::vector<Extent> extents;
    size_t list = t.dims.size();  // where one of queries, keys and values begins
    Captured fresh;
    for (size_t i = 0; i < t.dims.size(); ++i) {
        const ir::Dim& dim = r.dims[t.dims[i]];
        const int64_t local = ir::local_size(program.mesh, r, t, static_cast<int>(i)),
                      index = program.mesh.index(executor.rank(), t.placement.dims[i]);
        const bool is_batch = dim.role == ir::DimRole::Batch, is_seq = dim.role == ir::DimRole::Seq;
        const int64_t parts = is_batch ? cuts[0] : is_seq ? cuts[1] : 1;
        const int64_t part = is_batch ? p.call->chunk / cuts[1] : is_seq ? p.call->chunk % cuts[1] : 0;
        Extent e{local, dim.size * parts, (index * parts + part) * local};
        if (is_batch) {
            e.first += p.call->microbatch * e.whole;
            e.whole *= program.microbatches;
        }
        extents.push_back(e);
        fresh.shape.push_back(e.whole);
        if (dim.role == ir::DimRole::Qkv) list = i;
        if (program.head_tail > 1 && (is_seq || dim.role == ir::DimRole::KvSeq)) {
            Extent& own = extents.back();
            for (int64_t k = 0; k < local; ++k)
                own.places.push_back(mesh::position_of(own.whole, program.head_tail, own.first + k));
        }
    }
    if (list < t.dims.size()) {
        extents[list] = list_of(extents[list], extents[list + 1], extents[list + 2]);
        extents.erase(extents.begin() + static_cast<long>(list) + 1, extents.begin() + static_cast<long>(list) + 3);
    }
    int64_t total = 1, count = 1;
    for (const Extent& e : extents) total *= e.whole, count *= e.local;

    std::lock_guard lock(mutex_);
    const auto [it, is_new] = captured_.try_emplace(name, std::move(fresh));
    Captured& into = it->second;
    const bool is_max = t.placement.reduce == ir::Reduce::Max;
    if (is_new) {
        into.values.assign(static_cast<size_t>(total), is_max ? -INFINITY : 0.0);
        into.order = clock_++;
        into.is_max = is_max;
    }
    const int64_t each = bytes_of(t.dtype), most = device::kAccessBytes / each;
    const auto add = [&](int64_t i, double x) {
        int64_t rest = i, at = 0, stride = 1;
        for (size_t d = extents.size(); d-- > 0;) {
            at += extents[d].place(rest % extents[d].local) * stride;
            rest /= extents[d].local;
            stride *= extents[d].whole;
        }
        double& value = into.values[static_cast<size_t>(at)];
        value = is_max ? std::max(value, x) : t.placement.partial.empty() ? x : value + x;
    };
    for (int64_t first = 0; first < count; first += most) {
        const int64_t n = std::min(most, count - first);
        const char* from = static_cast<const char*>(p.address) + first * each;
        executor.device().read(*p.queue, from, n * each, [&](const char* data) {
            for (int64_t i = 0; i < n; ++i) add(first + i, element(data, t.dtype, i));
        });
    }
}

}  // namespace lockstep::runtime
