// What model files share: reading the numbers of a shape, and building one block's forward after the other with its parameters.
#pragma once

#include <string>
#include <string_view>

#include "models/model.h"
#include "ops/builder.h"

namespace lockstep::models {

int64_t integer(const ir::Attrs& shape, const char* key);
double number(const ir::Attrs& shape, const char* key);
[[noreturn]] void refuse(const std::string& id, const std::string& key, const std::string& message);

// The keys that every model has, with its defaults, and what they say.
struct CommonShape {
    int64_t dim, layers, heads, head_dim, vocab;  // head_dim 0: dim / heads
    double norm_eps;
    bool tied;
};
std::vector<ModelKey> common_keys(const CommonShape& defaults);
// Ranges of sizes: products of two fit in 64 bits, and each layer is a few calls of the program.
constexpr double kLargest = 1 << 30, kMostLayers = 2048;
// Refuses heads that are no share of the width.
CommonShape read_common(const ir::Attrs& shape);

// The blocks under construction. The first use of a parameter declares it.
class Blocks {
public:
    explicit Blocks(std::vector<ir::Dim> dims) : dims_(std::move(dims)) {}

    // Starts the forward routine of a block of `count` instances, the first of which has the number `first`.
    ir::Routine start(const std::string& name, int64_t count, int64_t first = 0);
    // Ends the routine that `b` appends to, and takes it: `result` leaves by a port of this role.
    void finish(ops::Builder& b, ir::TensorId result, ir::PortRole port);
    Model take() { return std::move(model_); }

    struct Init {
        ir::Init values;
        bool decay;
    };
    ir::TensorId param(ops::Builder& b, const std::string& key, const std::vector<std::string_view>& dims,
                       const std::string& name, const Init& init);

private:
    std::vector<ir::Dim> dims_;
    Model model_;
};

// Matrices and tables decay, norms and biases do not.
inline Blocks::Init normal(double std, bool depth_scaled = false) { return {{ir::InitKind::Normal, std, depth_scaled}, true}; }
inline Blocks::Init ones() { return {{ir::InitKind::Ones, 0, false}, false}; }
inline Blocks::Init zeros() { return {{ir::InitKind::Zeros, 0, false}, false}; }

// One of the loader's inputs, [batch, seq].
ir::TensorId input(ops::Builder& b, ir::PortRole role);
// The same values with kv_seq in the place of seq.
ir::TensorId as_keys(ops::Builder& b, const std::string& name, ir::TensorId x);

}  // namespace lockstep::models
