#include "meaning/arrays.h"

#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "base/function_ref.h"

namespace lockstep::meaning {
namespace {

int64_t product(const std::vector<int64_t>& sizes) {
    int64_t n = 1;
    for (const int64_t s : sizes) n *= s;
    return n;
}

// f(place in the rank's part, place in an array of `sizes`), the latter -1 in the padding.
void each_element(const Lying& lying, int64_t rank, const std::vector<int64_t>& sizes, FunctionRef<void(int64_t, int64_t)> f) {
    const size_t dims = lying.sizes.size();
    std::vector<int64_t> local(dims), first(dims), at(dims, 0);
    for (size_t k = 0; k < dims; ++k) {
        const mesh::AxisList& axes = lying.placement.dims[k];
        local[k] = lying.sizes[k] / lying.mesh->size(axes);
        first[k] = lying.mesh->index(rank, axes) * local[k];
    }
    const int64_t n = product(local);
    for (int64_t i = 0; i < n; ++i) {
        int64_t place = 0;
        for (size_t k = 0; k < dims; ++k) {
            const int64_t index = first[k] + at[k];
            place = place < 0 || index >= sizes[k] ? -1 : place * sizes[k] + index;
        }
        f(i, place);
        for (size_t k = dims; k-- > 0 && ++at[k] == local[k];) at[k] = 0;
    }
}

int64_t local_elements(const Lying& lying) {
    int64_t n = product(lying.sizes);
    for (const mesh::AxisList& axes : lying.placement.dims) n /= lying.mesh->size(axes);
    return n;
}

}  // namespace

Array filled(std::vector<int64_t> sizes, double value) {
    const auto n = static_cast<size_t>(product(sizes));
    return {std::move(sizes), Values(n, value)};
}

std::vector<int64_t> sizes_of(const ir::Routine& r, const ir::Tensor& t) {
    std::vector<int64_t> sizes;
    for (const ir::DimId d : t.dims) sizes.push_back(r.dims[static_cast<size_t>(d)].size);
    return sizes;
}

ByRank cut_up(const Array& whole, const Lying& lying) {
    ByRank out(static_cast<size_t>(lying.mesh->ranks()), Values(static_cast<size_t>(local_elements(lying)), 0));
    for (int64_t r = 0; r < lying.mesh->ranks(); ++r) {
        if (lying.mesh->index(r, lying.placement.partial) != 0) continue;
        each_element(lying, r, whole.sizes, [&](int64_t i, int64_t place) {
            if (place >= 0) out[static_cast<size_t>(r)][static_cast<size_t>(i)] = whole.values[static_cast<size_t>(place)];
        });
    }
    return out;
}

Array put_together(const ByRank& parts, const Lying& lying, const std::vector<int64_t>& sizes, bool& differ) {
    Array out = filled(sizes, 0);
    const mesh::AxisList own = mesh::unite(lying.placement.used(), lying.placement.partial);
    const mesh::AxisList shared = mesh::subtract(lying.mesh->all(), own);
    std::map<int64_t, int64_t> first;  // by place along `own`: the rank with coordinates 0 elsewhere
    for (int64_t r = 0; r < lying.mesh->ranks(); ++r) {
        if (lying.mesh->index(r, shared) == 0) first[lying.mesh->index(r, own)] = r;
    }
    for (int64_t r = 0; r < lying.mesh->ranks(); ++r) {
        const Values& mine = parts[static_cast<size_t>(r)];
        const int64_t other = first.at(lying.mesh->index(r, own));
        if (other != r) {
            for (size_t i = 0; i < mine.size(); ++i) {
                const double theirs = parts[static_cast<size_t>(other)][i];
                differ = differ || !(std::abs(mine[i] - theirs) <= 1e-9 * (1 + std::abs(theirs)));
            }
            continue;
        }
        each_element(lying, r, sizes, [&](int64_t i, int64_t place) {
            if (place >= 0) out.values[static_cast<size_t>(place)] += mine[static_cast<size_t>(i)];
        });
    }
    return out;
}

Array first_of(const Array& padded, const std::vector<int64_t>& sizes, bool& is_zero) {
    const mesh::Mesh one = mesh::Mesh::build(mesh::kNoAxes, {});
    ir::Placement whole;
    whole.dims.resize(sizes.size());
    Array out = filled(sizes, 0);
    each_element({&one, padded.sizes, whole}, 0, sizes, [&](int64_t i, int64_t place) {
        const double value = padded.values[static_cast<size_t>(i)];
        if (place >= 0) out.values[static_cast<size_t>(place)] = value;
        else is_zero = is_zero && value == 0;
    });
    return out;
}

}  // namespace lockstep::meaning
