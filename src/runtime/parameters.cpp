#include "runtime/parameters.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/random.h"

namespace lockstep::runtime {
namespace {

// Walks a local tensor row by row of its last sharded-or-padded extent; rows are contiguous in both orders.
class Rows {
public:
    Rows(const ir::Program& program, const ir::Parameter& param, int64_t rank) {
        int64_t stride = 1;
        const size_t n = param.dims.size();
        local_.resize(n), first_.resize(n), stride_.resize(n), valid_.resize(n);
        for (size_t i = n; i-- > 0;) {
            const mesh::AxisList& axes = param.placement.dims[i];
            local_[i] = param.dims[i].size / program.mesh.size(axes);
            first_[i] = program.mesh.index(rank, axes) * local_[i];
            valid_[i] = param.dims[i].valid;
            stride_[i] = stride;
            stride *= param.dims[i].valid;  // global order knows no padding
        }
        // The trailing dims that are whole on the rank make one contiguous row.
        row_dims_ = n;
        row_ = 1;
        while (row_dims_ > 0 && local_[row_dims_ - 1] == valid_[row_dims_ - 1]) row_ *= local_[--row_dims_];
        if (row_dims_ > 0) {  // and a part of the next dim
            --row_dims_;
            part_ = std::clamp<int64_t>(valid_[row_dims_] - first_[row_dims_], 0, local_[row_dims_]) * row_;
            full_ = local_[row_dims_] * row_;
            base_ = first_[row_dims_] * row_;
        } else {
            part_ = full_ = row_;
        }
    }

    // f(local_begin, global_begin, count) for every contiguous stretch of valid elements.
    template <class F>
    void for_each(const F& f) const {
        std::vector<int64_t> index(row_dims_, 0);
        for (int64_t local = 0;; local += full_) {
            int64_t global = base_;
            bool valid = part_ > 0;
            for (size_t i = 0; i < row_dims_; ++i) {
                global += (first_[i] + index[i]) * stride_[i];
                valid = valid && first_[i] + index[i] < valid_[i];
            }
            if (valid) f(local, global, part_);
            size_t i = row_dims_;
            while (i > 0 && ++index[i - 1] == local_[i - 1]) index[--i] = 0;
            if (i == 0) return;
        }
    }

private:
    std::vector<int64_t> local_, first_, stride_, valid_;
    size_t row_dims_;
    int64_t row_, part_ = 0, full_ = 0, base_ = 0;
};

}  // namespace

void for_each_run(const ir::Program& program, const ir::State& state, int64_t instance, int64_t rank,
                  const std::function<void(const Run&)>& f) {
    const ir::Unit& unit = *program.unit(state.unit);
    const int64_t parts = program.mesh.size(state.split), part = program.mesh.index(rank, state.split);
    for (size_t k = 0; k < unit.segments.size(); ++k) {
        if (!ir::Program::covers(state, static_cast<int>(k))) continue;
        const ir::Segment& s = unit.segments[k];
        const int64_t first = program.begin_in(state, static_cast<int>(k)) / parts;
        const int64_t length = s.padded / parts, begin = part * length;  // this rank's shard of the segment
        for (const ir::Member& m : s.members) {
            const ir::Parameter& param = *program.param(m.param);
            Rows(program, param, rank).for_each([&](int64_t local, int64_t global, int64_t count) {
                const int64_t from = std::max(m.begin + local, begin), to = std::min(m.begin + local + count, begin + length);
                if (from < to) f({&unit, &param, instance, first + from - begin, global + from - m.begin - local, to - from});
            });
        }
    }
}

bool is_owner(const ir::Program& program, const ir::Parameter& param, const mesh::AxisList& split, int64_t rank) {
    const mesh::AxisList inside = mesh::unite(split, param.placement.used());
    for (int a : mesh::subtract(program.mesh.all(), inside)) {
        if (program.mesh.coordinate(rank, a) != 0) return false;
    }
    return true;
}

void for_each_parameter(const std::vector<ir::Program>& programs, const std::function<void(const ir::Parameter&, int64_t)>& f) {
    for_each_member(programs, [&](const ir::Program&, const ir::Unit&, const ir::Parameter& param, int64_t i) { f(param, i); });
}

void for_each_member(const std::vector<ir::Program>& programs, const OfMember& f) {
    for (const ir::Block& block : programs[0].blocks) {
        for (int64_t i : block.all()) {
            for (const ir::Program& p : programs) {
                if (!p.block(block.name)->holds(i)) continue;
                for (const ir::Unit& u : p.units) {
                    if (u.block != block.name || u.mirror) continue;
                    for (const ir::Segment& s : u.segments) {
                        for (const ir::Member& m : s.members) f(p, u, *p.param(m.param), i);
                    }
                }
            }
        }
    }
}

int64_t parameter_count(const std::vector<ir::Program>& programs) {
    int64_t count = 0;
    for_each_parameter(programs, [&](const ir::Parameter& param, int64_t) {
        const std::vector<int64_t> shape = global_shape(param);
        count += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    });
    return count;
}

std::string global_name(const ir::Parameter& param, int64_t instance) {
    std::string name = param.name;
    if (const size_t at = name.find("{}"); at != std::string::npos) name.replace(at, 2, std::to_string(instance));
    return name;
}

std::vector<int64_t> global_shape(const ir::Parameter& param) {
    std::vector<int64_t> shape;
    for (const ir::Dim& d : param.dims) shape.push_back(d.valid);
    return shape;
}

InitialValues::InitialValues(const ir::Parameter& param, int64_t instance, uint64_t seed)
    : kind_(param.init.kind), std_(param.init.std), stream_(splitmix64(seed) ^ hash_name(global_name(param, instance))) {
    if (param.init.depth_scaled) std_ /= std::sqrt(2.0 * static_cast<double>(instance + 1));
}

double InitialValues::operator()(int64_t global_index) const {
    if (kind_ != ir::InitKind::Normal) return kind_ == ir::InitKind::Ones ? 1 : 0;
    return std_ * std::clamp(normal_draw(stream_, static_cast<uint64_t>(global_index)), -3.0, 3.0);
}

}  // namespace lockstep::runtime
