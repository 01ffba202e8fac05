#include "runtime/float8_shares.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/elements.h"
#include "base/float8.h"
#include "base/json.h"
#include "compile/conversion.h"
#include "ir/sources.h"
#include "kernels/float8_groups.h"
#include "ops/rule.h"

namespace lockstep::runtime {
namespace {

using ir::Op;
using ir::PortKind;
using ir::Routine;

// A product, and whether it reads a cast as its first factor.
struct Reader {
    const Routine* routine;
    const Op* product;
    size_t factor;
};

bool is_cast(const Op& op) { return op.kind == ir::kToFloat8 || op.kind == ir::kToBlocks; }

// One direction of a block: its routines, whose parts call a value by one name.
class Direction {
public:
    Direction(const ir::Program& program, const std::string& block, bool backward) {
        for (const Routine& r : program.routines) {
            if (r.block != block || r.entry != ir::EntryKind::Train) continue;
            if (backward ? !ir::is_backward(r.kind) : r.kind != ir::RoutineKind::Forward) continue;
            for (const Op& op : r.ops) {
                for (const ir::TensorId t : op.in) readers_[name(r, t)].push_back({&r, &op});
                for (const ir::TensorId t : op.out) makers_[name(r, t)] = {&r, &op};
                if (is_cast(op)) casts_.push_back({&r, &op});
            }
            for (const ir::Tensor& t : r.tensors) {
                if (t.port >= 0 && r.ports[static_cast<size_t>(t.port)].kind == PortKind::Params) params_[t.name] = t.source;
            }
        }
    }
    struct At {
        const Routine* routine = nullptr;
        const Op* op = nullptr;
    };

    const std::vector<At>& casts() const { return casts_; }

    // The products that read codes, also moved ones.
    std::vector<Reader> products_of(const std::string& codes) const {
        std::vector<Reader> out;
        std::set<std::string> seen = {codes};
        std::vector<std::string> left = {codes};
        while (!left.empty()) {
            const std::string now = std::move(left.back());
            left.pop_back();
            const auto readers = readers_.find(now);
            if (readers == readers_.end()) continue;
            for (const auto& [r, op] : readers->second) {
                for (size_t i = 0; i < op->in.size(); ++i) {
                    if (op->kind == ir::kScaledEinsum && i < 2 && name(*r, op->in[i]) == now) out.push_back({r, op, i});
                }
                for (const ir::TensorId t : op->out) {
                    if (is_float8(r->tensors[static_cast<size_t>(t)].dtype) && seen.insert(name(*r, t)).second)
                        left.push_back(name(*r, t));
                }
            }
        }
        return out;
    }
    // Keys of the parameters that a factor is; none: it is no weight.
    std::string weights(const Reader& p, size_t factor) const {
        std::string now = name(*p.routine, p.product->in[factor]);
        while (true) {
            if (const auto known = params_.find(now); known != params_.end()) return known->second;
            const auto maker = makers_.find(now);
            if (maker == makers_.end() || maker->second.op->in.empty()) return "";
            const std::string before = name(*maker->second.routine, maker->second.op->in[0]);
            if (before == now) return "";
            now = before;
            if (!params_.contains(now) && is_cast(*maker->second.op)) return "";
        }
    }
    // The same of the gradient to which a product adds.
    std::string gradient(const Reader& p) const {
        const auto source = [](const Routine& r, ir::TensorId t) {
            const ir::Tensor& x = r.tensors[static_cast<size_t>(t)];
            const bool is_sum = x.port >= 0 && r.ports[static_cast<size_t>(x.port)].kind == PortKind::Gradients;
            return is_sum ? x.source : "";
        };
        if (const std::string own = source(*p.routine, p.product->out[0]); !own.empty()) return own;
        const auto readers = readers_.find(name(*p.routine, p.product->out[0]));
        if (readers == readers_.end()) return "";
        for (const auto& [r, op] : readers->second) {
            if (const std::string sum = source(*r, op->out[0]); !sum.empty()) return sum;
        }
        return "";
    }
    static std::string name(const Routine& r, ir::TensorId t) { return r.tensors[static_cast<size_t>(t)].name; }

private:
    std::map<std::string, std::vector<At>> readers_;
    std::map<std::string, At> makers_;
    std::map<std::string, std::string> params_;  // sources, by name
    std::vector<At> casts_;
};

using Keys = std::set<std::string>;
Keys keys_of(std::string_view source) {
    Keys out;
    for (const std::string_view key : ir::sources_of(source)) out.emplace(key);
    return out;
}

// "layers.{}.attention.wq+wk+wv", in the model's order.
std::string label_of(const ir::Program& program, const Keys& keys) {
    std::string out;
    for (const ir::Parameter& p : program.params) {
        if (!keys.contains(p.key)) continue;
        const std::string name = compile::module_name(p, 0);
        const size_t dot = name.rfind('.');
        if (dot == std::string::npos) continue;
        const std::string folder = name.substr(0, dot + 1);
        out += out.empty() ? "layers.{}" + folder.substr(folder.find('.', folder.find('.') + 1)) + name.substr(dot + 1)
                           : "+" + name.substr(dot + 1);
    }
    return out;
}

// Which kind of port the largest sizes of a cast come by; nothing: its routine finds them.
std::optional<PortKind> port_of_amax(const Routine& r, const Op& cast) {
    const int port = cast.in.size() > 1 ? r.tensors[static_cast<size_t>(cast.in[1])].port : -1;
    return port < 0 ? std::nullopt : std::optional(r.ports[static_cast<size_t>(port)].kind);
}

constexpr const char *kInput = "input", *kWeight = "weight", *kGradOutput = "grad_output";

}  // namespace

void Float8Share::add(const Float8Share& other) {
    if (other.amax > amax || std::isnan(other.amax)) amax = other.amax;
    elements += other.elements, flushed += other.flushed, clipped += other.clipped;
}

Float8Counter::Casts Float8Counter::casts_of(const ir::Program& program) {
    Casts out;
    for (const ir::Block& block : program.blocks) {
        const Direction forward(program, block.name, false), backward(program, block.name, true);
        // Weights that multiply the same rows are one layer here, packed or not.
        std::map<std::string, Keys> groups;
        for (const auto& [r, op] : forward.casts()) {
            Keys all;
            for (const Reader& p : forward.products_of(Direction::name(*r, op->out[0]))) {
                if (p.factor == 0) all.merge(keys_of(forward.weights(p, 1)));
            }
            for (const std::string& key : all) groups[key].insert(all.begin(), all.end());
        }
        const auto layers = [&](const std::string& source) {
            Keys all = keys_of(source);
            for (const std::string& key : keys_of(source)) all.insert(groups[key].begin(), groups[key].end());
            return label_of(program, all);
        };
        std::set<std::string> have_one_scale;  // weights in forward, of which backward makes the same codes
        const auto add = [&](const Routine& r, const Op& op, const std::string& source, const std::string& operand) {
            if (source.empty()) return;
            out[&op] = {{layers(source), operand, r.tensors[static_cast<size_t>(op.in[0])].placement.used()}};
        };
        for (const auto& [r, op] : forward.casts()) {
            for (const Reader& p : forward.products_of(Direction::name(*r, op->out[0]))) {
                add(*r, *op, forward.weights(p, 1), p.factor == 0 ? kInput : kWeight);
                if (p.factor == 1 && port_of_amax(*r, *op) == PortKind::State) have_one_scale.insert(forward.weights(p, 1));
            }
        }
        for (const auto& [r, op] : backward.casts()) {
            if (op->attrs.contains("recomputed")) continue;
            std::string source, operand;
            for (const Reader& p : backward.products_of(Direction::name(*r, op->out[0]))) {
                const std::string weights = backward.weights(p, 1);
                if (!weights.empty()) {  // of the gradient of rows
                    source = weights, operand = p.factor == 0 ? kGradOutput : fmt::format("{} of grad_input", kWeight);
                    if (p.factor == 1 && have_one_scale.contains(weights)) source.clear();
                    break;
                }
                source = backward.gradient(p);
                operand = fmt::format("{} of grad_weight", p.factor == 0 ? kGradOutput : kInput);
            }
            const bool is_of_forward = port_of_amax(*r, *op) == PortKind::Frame;
            if (!is_of_forward) add(*r, *op, source, operand);
        }
        // Codes of weights that are made where they cross ranks.
        for (const Routine& r : program.routines) {
            const ir::Unit* unit = program.unit(r.unit);
            if (!unit || unit->block != block.name) continue;
            for (const Op& op : r.ops) {
                if (op.kind != ir::kMemberFloat8) continue;
                const ir::Tensor& x = r.tensors[static_cast<size_t>(op.in[0])];
                const ir::Segment& segment = unit->segments.at(static_cast<size_t>(x.dims[0]));
                for (const ir::Member& m : segment.members)
                    out[&op].push_back({layers(m.param), kWeight, mesh::unite(x.placement.used(), segment.shards)});
            }
        }
    }
    return out;
}

Float8Counter::Float8Counter(Ranks& ranks) : ranks_(ranks) {
    for (const std::unique_ptr<Executor>& e : ranks_.here()) casts_.push_back(casts_of(e->program()));
}

Float8Counter::~Float8Counter() {
    try {
        watch(false);
    } catch (const std::exception&) {  // the job is over anyway
    }
}

void Float8Counter::watch(bool on) {
    ranks_.parallel([&](Executor& e) {
        if (!on) return e.set_watcher({});
        const Casts& casts = casts_[ranks_.place(e.rank())];
        e.set_watcher([this, &e, &casts](const Produced& p) { see(e, casts, p); });
    });
}

void Float8Counter::see(Executor& executor, const Casts& casts, const Produced& p) {
    const auto found = casts.find(p.op);
    if (found == casts.end() || p.tensor != p.op->out.back()) return;  // behind all of its results
    const ir::Program& program = executor.program();
    const Routine& r = *p.routine;
    const bool of_weights = found->second[0].operand.starts_with(kWeight);
    if (of_weights) {  // each microbatch makes the same
        const std::lock_guard lock(mutex_);
        if (!once_.insert({executor.rank(), p.op, p.call->instance}).second) return;
    }
    const kernels::KernelContext c{program.mesh, r, *p.op, executor.rank(), 1};
    const ir::Tensor &x = c.in(0), &q = c.out(0);
    const bool is_of_members = p.op->kind == ir::kMemberFloat8;
    kernels::Float8Groups groups;
    std::vector<char> scales;
    const auto read = [&](const void* from, int64_t first, int64_t bytes, char* to) {
        executor.device().read(*p.queue, static_cast<const char*>(from) + first, bytes,
                               [&](const char* data) { std::copy_n(data, bytes, to); });
    };
    if (!is_of_members) {
        groups = kernels::float8_groups(c, x, c.out(1));
        scales.resize(static_cast<size_t>(groups.count * bytes_of(c.out(1).dtype)));
        for (int64_t at = 0; at < std::ssize(scales); at += device::kAccessBytes)
            read(p.out[1], at, std::min<int64_t>(device::kAccessBytes, std::ssize(scales) - at), scales.data() + at);
    }
    const int64_t n = c.elements(x), each = bytes_of(x.dtype), most = device::kAccessBytes / each;
    const int64_t begins_at = is_of_members ? c.first_index(x, 0) : 0;
    const double top = static_cast<double>(largest_of(q.dtype));
    std::vector<char> values(static_cast<size_t>(most * each)), codes(static_cast<size_t>(most));
    const auto count = [&](Float8Share& share, int64_t begin, int64_t end) {
        for (int64_t first = begin; first < end; first += most) {
            const int64_t some = std::min(most, end - first);
            read(p.in[0], first * each, some * each, values.data());
            read(p.out[0], first, some, codes.data());
            for (int64_t i = 0; i < some; ++i) {
                const double size = std::abs(element(values.data(), x.dtype, i));
                const double code = element(codes.data(), q.dtype, i);
                if (size > share.amax || std::isnan(size)) share.amax = size;
                share.flushed += size > 0 && code == 0 ? 1 : 0;
                if (!is_of_members && std::abs(code) == top) {
                    const double scale = element(scales.data(), c.out(1).dtype, groups.of(first + i));
                    share.clipped += size > top * scale * (1 + 1e-6) ? 1 : 0;
                }
            }
            share.elements += some;
        }
    };
    const auto is_first = [&](const Cast& cast) {
        for (const int a : mesh::subtract(program.mesh.all(), cast.varies)) {
            if (program.mesh.coordinate(executor.rank(), a) != 0) return false;
        }
        return true;
    };
    const auto& ranges = is_of_members ? std::get<std::vector<int64_t>>(p.op->attrs.at("ranges")) : std::vector<int64_t>{};
    for (size_t k = 0; k < found->second.size(); ++k) {
        const Cast& cast = found->second[k];
        if (!is_first(cast)) continue;
        Float8Share share;
        const int64_t begin = is_of_members ? std::clamp<int64_t>(ranges[3 * k + 1] - begins_at, 0, n) : 0,
                      end = is_of_members ? std::clamp<int64_t>(ranges[3 * k + 2] - begins_at, 0, n) : n;
        count(share, begin, end);
        const std::lock_guard lock(mutex_);
        counted_[{fmt::format(fmt::runtime(cast.layers), p.call->instance), cast.operand}].add(share);
    }
}

Float8Shares Float8Counter::take() {
    std::unique_lock lock(mutex_);
    Float8Shares own = std::exchange(counted_, {});
    once_.clear();
    lock.unlock();
    if (ranks_.group().is_alone()) return own;
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [at, s] : own) all.push_back({at.first, at.second, s.amax, s.elements, s.flushed, s.clipped});
    Float8Shares whole;
    for (const std::string& text : ranks_.group().exchange(cbor_of(all))) {
        for (const nlohmann::json& j : json_of_cbor<nlohmann::json>(text)) whole[{j[0], j[1]}].add({j[2], j[3], j[4], j[5]});
    }
    return whole;
}

}  // namespace lockstep::runtime
