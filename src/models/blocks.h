// What model files share: reading the numbers of a shape, and building one block's forward after the other with its parameters.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "models/model.h"
#include "ops/builder.h"

namespace lockstep::models {

int64_t integer(const ir::Attrs& shape, const char* key);
double number(const ir::Attrs& shape, const char* key);
[[noreturn]] void refuse(const std::string& id, const std::string& key, const std::string& message);

// Refuses integers below 0 or so large that products of two do not fit in 64 bits, and `positive` ones below 1.
void check_range(const ir::Attrs& shape, std::initializer_list<const char*> positive);
// model.head_dim, or dim / n_heads where that is 0.
int64_t head_dim_of(const ir::Attrs& shape);
void check_norm_eps(const ir::Attrs& shape);

// The blocks under construction. The first use of a parameter declares it.
class Blocks {
public:
    explicit Blocks(std::vector<ir::Dim> dims) : dims_(std::move(dims)) {}

    // Starts a block's forward routine.
    ir::Routine start(const std::string& name, int64_t count);
    // Ends it: `result` leaves by `port`.
    void finish(ir::Routine r, ir::TensorId result, const std::string& port);
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
ir::TensorId input(ops::Builder& b, const std::string& name);
// The same values with kv_seq in the place of seq.
ir::TensorId as_keys(ops::Builder& b, const std::string& name, ir::TensorId x);

}  // namespace lockstep::models
