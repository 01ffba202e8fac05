#include "meaning/inputs.h"

#include <algorithm>

#include "base/random.h"
#include "mesh/order.h"

namespace lockstep::meaning {

using ir::PortRole;

Array drawn(std::string_view name, std::vector<int64_t> sizes, double std) {
    Array out = filled(std::move(sizes), 0);
    const uint64_t stream = hash_name(name);
    for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = std * normal_draw(stream, i);
    return out;
}

namespace {

uint64_t draw(std::string_view name, int64_t index) { return splitmix64(hash_name(name) + static_cast<uint64_t>(index)); }

// Ascending, one in each stretch of `stride`.
std::vector<int64_t> positions_of(int64_t seq, const InputOptions& o) {
    std::vector<int64_t> out;
    for (int64_t j = 0; j < seq; ++j) {
        const int64_t begin = j * o.stride;
        int64_t at = begin + static_cast<int64_t>(draw("position", j) % static_cast<uint64_t>(o.stride));
        for (int64_t i = 0; i < j && o.window > 0; ++i) {
            const int64_t edge = out[static_cast<size_t>(i)] + o.window - (j + i) % 2;
            if (edge >= begin && edge < begin + o.stride) at = edge;
        }
        out.push_back(at);
    }
    return out;
}

}  // namespace

std::map<PortRole, Array> inputs_of(int64_t batch, int64_t seq, const InputOptions& o) {
    std::map<PortRole, Array> all;
    for (const PortRole role : {PortRole::Ids, PortRole::Targets, PortRole::Positions, PortRole::Documents, PortRole::Noise})
        all[role] = filled({batch, seq}, 0);
    const std::vector<int64_t> positions = o.positions > 0 ? std::vector<int64_t>() : positions_of(seq, o);
    for (int64_t b = 0; b < batch; ++b) {
        const int64_t second = o.one_document || b % 2 == 1 ? seq : (seq + 1) / 2;  // where the second document begins
        for (int64_t j = 0; j < seq; ++j) {
            const auto i = static_cast<size_t>(b * seq + j);
            const int64_t at = mesh::position_of(seq, o.head_tail, j), begin = at >= second ? second : 0;
            const auto place = [&](int64_t k) { return positions.empty() ? k : positions[static_cast<size_t>(k)]; };
            all[PortRole::Positions].values[i] = static_cast<double>(place(at) - (begin > 0 ? place(begin) : 0));
            all[PortRole::Documents].values[i] = at >= second ? 1 : 0;
            const auto token = [&](const char* name) {
                return static_cast<double>(draw(name, static_cast<int64_t>(i)) % static_cast<uint64_t>(o.vocab));
            };
            all[PortRole::Ids].values[i] = token("id");
            all[PortRole::Targets].values[i] = draw("mask", static_cast<int64_t>(i)) % 5 == 0 ? -1 : token("target");
            all[PortRole::Noise].values[i] = static_cast<double>(static_cast<int32_t>(draw("noise", static_cast<int64_t>(i))));
        }
    }
    return all;
}

}  // namespace lockstep::meaning
