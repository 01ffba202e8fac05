// Element types after set_precision: what is stored narrow, what stays wide, where a cast stands.
#include "passes/set_precision.h"

#include <gtest/gtest.h>

#include "ops/builder.h"

#include "ops/rule.h"
#include "tests/compile/recipes.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

const Settings kMixed = {{"training.mixed_precision_param", "bfloat16"}};

Settings with(const Settings& more) {
    Settings all = kMixed;
    all.insert(all.end(), more.begin(), more.end());
    return all;
}
ir::Program typed(const Settings& settings = {}) { return program_after("set_precision", with(settings)); }

std::string dtype_of(const ir::Program& p, const std::string& routine, const std::string& tensor) {
    const std::string type = type_of(p, routine, tensor);
    return type.substr(0, type.find('['));
}

TEST(SetPrecision, ALayerComputesInBfloat16AndKeepsStatisticsWide) {
    const ir::Program p = typed();
    for (const char* t : {"x", "y", "qkv", "gate_up"}) EXPECT_EQ(dtype_of(p, "layer.forward", t), "bf16") << t;
    for (const ir::Op& op : p.routine("layer.forward")->ops) {
        EXPECT_NE(op.kind, "cast");
        if (op.kind != "rmsnorm" && op.kind != "attention") continue;
        const ir::Routine& r = *p.routine("layer.forward");
        EXPECT_EQ(r.tensors[op.out[0]].dtype, Dtype::BF16) << op.kind;
        EXPECT_EQ(r.tensors[op.out[1]].dtype, Dtype::F32) << op.kind;  // 1 / rms; lse
    }
    for (const ir::Parameter& param : p.params) EXPECT_EQ(param.dtype, Dtype::BF16);
}

TEST(SetPrecision, LossStaysWideWithoutACastAndLogitsAreAsTheRecipeSays) {
    for (const std::string logits : {"", "bfloat16", "float32"}) {
        const ir::Program p =
            typed({{"model.vocab_size", "15"}, {"parallelism.tensor_parallel_degree", "2"}, {"training.logits", logits}});
        const ir::Routine& forward = *p.routine("head.forward");
        for (const ir::Op& op : forward.ops) {
            EXPECT_NE(op.kind, "cast");
            const bool before_logits = op.kind == "rmsnorm";
            for (ir::TensorId t : op.out) {
                const ir::Tensor& made = forward.tensors[t];
                if (before_logits || made.dtype == Dtype::F64) continue;
                const bool is_narrow = made.name.starts_with("logits") && logits != "float32";
                EXPECT_EQ(made.dtype, is_narrow ? Dtype::BF16 : Dtype::F32) << op.kind << " " << made.name;
            }
        }
        EXPECT_EQ(dtype_of(p, "head.forward", "loss_sum"), "f64");
        // The gradient of the logits is an operand of two products: it is rounded where it is made.
        EXPECT_EQ(dtype_of(p, "head.backward", "d.logits.part"), "bf16");
        EXPECT_EQ(dtype_of(p, "head.backward", "inv_n"), "f32");
    }
}

TEST(SetPrecision, GradientsAddUpInFloat32FromTheProductsThatMakeThem) {
    const ir::Program p = typed();
    for (const char* name : {"embed.backward", "layer.backward", "head.backward"}) {
        const ir::Routine& r = *p.routine(name);
        for (const ir::Op& op : r.ops) {
            EXPECT_NE(op.kind, "cast") << name;
            if (op.kind == "accumulate") {
                EXPECT_EQ(r.tensors[op.in[0]].dtype, Dtype::F32) << name << " " << r.tensors[op.in[0]].name;
                EXPECT_EQ(r.tensors[op.out[0]].dtype, Dtype::F32) << name;
            }
        }
    }
    // select_kernels then lets the products add by themselves.
    const ir::Program selected = program_after("select_kernels", with({}), Backend::Cpu);
    for (const ir::Op& op : selected.routine("layer.backward")->ops) EXPECT_NE(op.kind, "accumulate");
}

TEST(SetPrecision, SavedValuesAreReadInTheTypeTheyHave) {
    for (const NamedSettings& s : sample_settings()) {
        const ir::Program p = program_after("set_precision", with(s.settings));
        for (const ir::Routine& r : p.routines) {
            if (r.kind != ir::RoutineKind::Backward) continue;
            const ir::Routine& f = *p.routine(r.block + ".forward");
            for (const ir::Tensor& t : r.tensors) {
                if (t.port < 0 || r.ports[t.port].kind != ir::PortKind::Frame) continue;
                EXPECT_EQ(t.dtype, f.tensors[f.find(t.source)].dtype) << s.name << " " << t.name;
            }
        }
    }
}

// y = x + x^2 of a sum that the loss and a product both read: one cast, for the product.
TEST(SetPrecision, WhatIsWantedInBothTypesIsCastOnce) {
    ir::Program p;
    ir::Routine r;
    r.name = r.block = "head";
    r.dims = {{"batch", 2, 2}, {"seq", 3, 3}, {"vocab", 4, 4}, {"hidden", 5, 5}};
    ops::Builder b(r);
    const auto rows = b.dims({"batch", "seq"});
    const ir::TensorId x = b.port("x", ir::PortKind::Value, ir::Access::Read, b.dims({"batch", "seq", "vocab"}));
    const ir::TensorId w = b.port("w", ir::PortKind::Params, ir::Access::Read, b.dims({"vocab", "hidden"}));
    const ir::TensorId sum = b.add("sum", {x, x});
    const ir::TensorId m = b.op("max", {sum}, {{"m", rows}}, {{"over", std::string("vocab")}})[0];
    for (int i = 0; i < 2; ++i) {
        const ir::TensorId y = b.einsum("y" + std::to_string(i), b.dims({"batch", "seq", "hidden"}), {sum, w});
        b.leave(y, {r.tensors[y].name, ir::PortKind::Value, ir::Access::Write, {}, ""});
    }
    ir::State s;
    s.name = "m", s.role = ir::StateRole::LossSum, s.scope = ir::Scope::Step;
    b.leave(m, {"m", ir::PortKind::State, ir::Access::Write, {}, "", p.add(s)});
    p.routines.push_back(r);
    p = passes::set_precision(p, {Dtype::F32, Dtype::BF16});
    EXPECT_EQ(op_lines(p, "head"),
              (Strings{"sum: bf16[batch, seq, vocab]? = add(x, x)", "sum.f32: f32[batch, seq, vocab]? = cast(sum)",
                       "m = max(sum.f32) {over='vocab'}", "y0 = einsum(sum, w)", "y1 = einsum(sum, w)"}));
}

// ---- training.fp32_residual_connection

const std::string kWide = "training.fp32_residual_connection";

// Operands of casts, by name.
Strings casts(const ir::Routine& r) {
    Strings out;
    for (const ir::Op& op : r.ops) {
        if (op.kind == "cast") out.push_back(r.tensors[op.in[0]].name);
    }
    return out;
}
std::vector<Dtype> types(const ir::Routine& r, const std::vector<ir::TensorId>& tensors) {
    std::vector<Dtype> out;
    for (ir::TensorId t : tensors) out.push_back(r.tensors[t].dtype);
    return out;
}
constexpr Dtype kF = Dtype::F32, kB = Dtype::BF16;

TEST(SetPrecision, AWideResidualStreamIsNormedIntoBfloat16) {
    for (const char* model : {"llama3", "gpt2"}) {
        const ir::Program p = typed({{"model.name", model}, {kWide, "true"}});
        for (const char* block : {"embed", "layer", "head"}) {
            const ir::Routine& r = *p.routine(std::string(block) + ".forward");
            EXPECT_EQ(casts(r), Strings{}) << model << " " << block;  // products write what is added to it in float32
            for (const ir::Op& op : r.ops) {
                if (op.kind == "add" || op.kind == "bias_dropout_add" || op.kind == "gather") {
                    EXPECT_EQ(r.tensors[op.out[0]].dtype, kF) << model << " " << block;
                }
                if (op.kind != "rmsnorm" && op.kind != "layernorm") continue;
                EXPECT_EQ(types(r, {op.in[0], op.in[1], op.out[0], op.out[1]}), (std::vector{kF, kB, kB, kF})) << block;
            }
        }
        for (const char* t : {"x", "x1", "y", "ao", "mlp"}) EXPECT_EQ(dtype_of(p, "layer.forward", t), "f32") << model << t;
        for (const char* t : {"n1", "n2", "o"}) EXPECT_EQ(dtype_of(p, "layer.forward", t), "bf16") << model << t;
        EXPECT_EQ(dtype_of(p, "head.forward", "n"), "bf16") << model;
    }
}

TEST(SetPrecision, ItsCotangentsAreWideAndRoundedOnceForProducts) {
    for (const char* model : {"llama3", "gpt2"}) {
        const ir::Program p = typed({{"model.name", model}, {kWide, "true"}});
        const ir::Routine& r = *p.routine("layer.backward");
        EXPECT_EQ(casts(r).size(), 2u) << model;  // of d.y and of the cotangent between the halves
        int norms = 0;
        for (const ir::Op& op : r.ops) {
            if (op.kind != "rmsnorm_backward" && op.kind != "layernorm_backward") continue;
            ++norms;
            EXPECT_EQ(types(r, {op.in[0], op.in[1], op.in[2], op.out[0]}), (std::vector{kF, kF, kB, kF})) << model;
        }
        EXPECT_EQ(norms, 2) << model;
        for (const char* t : {"d.y", "d.x"}) EXPECT_EQ(dtype_of(p, "layer.backward", t), "f32") << model << t;
        const ir::Routine& embed = *p.routine("embed.backward");
        EXPECT_EQ(casts(embed), Strings{}) << model;
        for (const ir::Op& op : embed.ops) {
            if (op.kind == "scatter") {
                EXPECT_EQ(embed.tensors[op.in[0]].dtype, kF) << model;
            }
        }
        EXPECT_EQ(casts(*p.routine("head.backward")), Strings{}) << model;
    }
}

TEST(SetPrecision, NormsOfQueriesAndKeysAreNoPartOfIt) {
    const ir::Program p = typed({{"model.qk_norm", "1"}, {"model.qkv_bias", "1"}, {kWide, "true"}});
    for (const char* t : {"q", "qn", "k", "kn", "v"}) EXPECT_EQ(dtype_of(p, "layer.forward", t), "bf16") << t;
    int heads = 0;
    const ir::Routine& r = *p.routine("layer.backward");
    for (const ir::Op& op : r.ops) {
        if (op.kind != "rmsnorm_backward" || op.text("over") != "head_dim") continue;
        ++heads;
        EXPECT_EQ(types(r, {op.in[0], op.in[1], op.out[0]}), (std::vector{kB, kB, kB}));
    }
    EXPECT_EQ(heads, 2);
}

// ---- training.mixed_precision_norm

const std::string kPrecisionOfNorms = "training.mixed_precision_norm";

TEST(SetPrecision, NormsReadFloat32WeightsAndWriteWhatTheyWrote) {
    for (const char* model : {"llama3", "gpt2"}) {
        for (const char* stream : {"false", "true"}) {
            Settings settings = {{"model.name", model}, {kWide, stream}};
            if (model == std::string("llama3")) settings.push_back({"model.qk_norm", "1"});
            const ir::Program before = typed(settings);
            settings.push_back({kPrecisionOfNorms, "float32"});
            const ir::Program p = typed(settings);
            int norms = 0;
            for (size_t k = 0; k < p.routines.size(); ++k) {
                const ir::Routine &r = p.routines[k], &old = before.routines[k];
                ASSERT_EQ(r.tensors.size(), old.tensors.size()) << r.name;
                std::vector<bool> of_norm(r.tensors.size(), false);
                for (const ir::Op& op : r.ops) {
                    const bool forward = op.kind == "rmsnorm" || op.kind == "layernorm";
                    const size_t n = op.kind.starts_with("layernorm") ? 2 : 1, first = forward ? 1 : 2;
                    if (!forward && op.kind != "rmsnorm_backward" && op.kind != "layernorm_backward") continue;
                    ++norms;
                    for (size_t i = first; i < first + n; ++i) {
                        EXPECT_EQ(r.tensors[op.in[i]].dtype, kF) << r.name;
                        of_norm[op.in[i]] = true;
                    }
                }
                for (size_t t = 0; t < r.tensors.size(); ++t) {
                    if (!of_norm[t]) {
                        EXPECT_EQ(r.tensors[t].dtype, old.tensors[t].dtype) << r.name << " " << r.tensors[t].name;
                    }
                }
            }
            EXPECT_GE(norms, 6) << model;
            for (const ir::Parameter& param : p.params) {
                const bool norm = param.key.find("norm") != std::string::npos || param.key.starts_with("ln_");
                EXPECT_EQ(param.dtype, norm ? kF : kB) << param.key;
            }
        }
    }
}

TEST(SetPrecision, WithoutANarrowTypeTheStreamIsAsItWas) {
    for (const char* type : {"float32", "float64"}) {
        const Settings one = {{"training.dtype", type}}, wide = {{"training.dtype", type}, {kWide, "true"}};
        EXPECT_EQ(program_after("set_precision", one), program_after("set_precision", wide)) << type;
    }
}

TEST(SetPrecision, OneTypeForAll) {
    const ir::Program p = program_after("set_precision", {{"training.dtype", "float64"}});
    for (const ir::Routine& r : p.routines) {
        for (const ir::Tensor& t : r.tensors) EXPECT_TRUE(t.dtype == Dtype::F64 || t.dtype == Dtype::I32) << r.name << t.name;
    }
}

}  // namespace
}  // namespace lockstep::testing
