#include "base/storage.h"
#include "kernels/reference/reference.h"

namespace lockstep::kernels {
namespace {

using namespace reference;

template <Dtype type>
bool takes_one_type(const KernelContext& c) {
    return has_one_float_type(c.routine, c.op, type);
}
template <Dtype type>
bool gives(const KernelContext& c) {
    return c.op.out.empty() || c.out(0).dtype == type;
}

// An op on floats: all of one type, float32 or float64, as they are; any mixture by copies in double.
template <Made (*f32)(const KernelContext&), Made (*f64)(const KernelContext&)>
void add_float(std::vector<Registered>& all, const char* op, int accumulates, bool in_place) {
    const auto add = [&](Dtype result, bool (*takes)(const KernelContext&), Made (*make)(const KernelContext&)) {
        Registered r;
        r.op = op, r.kernel = std::string("reference.") + op, r.result = result;
        r.accumulates = accumulates, r.in_place = in_place;
        r.takes = takes, r.make = make;
        all.push_back(std::move(r));
        return &all.back();
    };
    add(Dtype::F32, takes_one_type<Dtype::F32>, f32);
    add(Dtype::F64, takes_one_type<Dtype::F64>, f64);
    const auto convert = [](const KernelContext& c) { return make_converting(c, f64); };
    const auto bytes = [](const KernelContext& c) { return converting_workspace_bytes(c.mesh, c.routine, c.op); };
    for (const Dtype t : kFloatDtypes) {
        with_storage(t, [&]<class T>(std::type_identity<T>) { add(t, gives<kDtypeOf<T>>, convert)->workspace_bytes = bytes; });
    }
}

// From one float type to int8: float32 and float64 as they are, narrow ones by copies in double.
void add_quantize(std::vector<Registered>& all) {
    const auto add = [&](bool (*takes)(const KernelContext&), Made (*make)(const KernelContext&)) {
        Registered r;
        r.op = "quantize", r.kernel = "reference.quantize", r.result = Dtype::I8;
        r.takes = takes, r.make = make;
        all.push_back(std::move(r));
        return &all.back();
    };
    add(takes_one_type<Dtype::F32>, make_quantize<float>);
    add(takes_one_type<Dtype::F64>, make_quantize<double>);
    add(gives<Dtype::I8>, [](const KernelContext& c) { return make_converting(c, make_quantize<double>); })->workspace_bytes =
        [](const KernelContext& c) { return converting_workspace_bytes(c.mesh, c.routine, c.op); };
}

// Elements that are moved and not looked at.
template <Dtype type>
void add_movement(std::vector<Registered>& all) {
    const auto add = [&](const char* op, Made (*make)(const KernelContext&)) {
        Registered r;
        r.op = op, r.kernel = std::string("reference.") + op, r.result = type;
        r.takes = gives<type>, r.make = make;
        all.push_back(std::move(r));
    };
    for (const char* op : {"rename", "copy", "slice", "block", "join_blocks", "append", "reshape", "pack", "unpack"})
        add(op, make_movement);
    if (is_float(type)) add("sum_blocks", make_block_sum);
}

}  // namespace

const std::vector<Registered>& reference_kernels() {
    static const std::vector<Registered> all = [] {
        std::vector<Registered> r;
        add_float<make_einsum<float>, make_einsum<double>>(r, "einsum", 0, false);
        add_float<make_embedding<float>, make_embedding<double>>(r, "scatter", 0, false);
        for (const char* op : {"add", "scale", "unary"})
            add_float<make_elementwise<float>, make_elementwise<double>>(r, op, -1, true);
        for (const char* op : {"stack", "unstack"}) add_float<make_stack<float>, make_stack<double>>(r, op, -1, false);
        add_float<make_dropout<float>, make_dropout<double>>(r, "dropout", -1, true);
        add_float<make_loss<float>, make_loss<double>>(r, "mask_padding", -1, true);
        add_float<make_elementwise<float>, make_elementwise<double>>(r, "cast", -1, false);
        for (const char* op : {"gather", "pick", "unpick"})
            add_float<make_embedding<float>, make_embedding<double>>(r, op, -1, false);
        add_float<make_rope<float>, make_rope<double>>(r, "rope", -1, false);
        add_float<make_qkv<float>, make_qkv<double>>(r, "split_qkv", -1, false);
        add_float<make_qkv<float>, make_qkv<double>>(r, "join_qkv", -1, false);
        for (const char* op : {"attention", "attention_backward", "attention_block", "attention_block_backward"})
            add_float<make_attention<float>, make_attention<double>>(r, op, -1, false);
        for (const char* op : {"max", "exp_shifted"}) add_float<make_loss<float>, make_loss<double>>(r, op, -1, false);
        for (const char* op : {"adamw", "adam", "sgd", "muon_momentum", "muon", "outer_gradient", "meet", "outer_sgd",
                               "zero_padding", "inverse_count"})
            add_float<make_optimizer<float>, make_optimizer<double>>(r, op, -1, false);
        for (const char* op : {"dequantize", "dequantize_sum"})
            add_float<make_quantize<float>, make_quantize<double>>(r, op, -1, false);
        add_quantize(r);
        add_float8(r);
        add_float<make_accumulate<float>, make_accumulate<double>>(r, "accumulate", -1, false);
        for (const Dtype t : kMovedDtypes) with_storage(t, [&]<class T>(std::type_identity<T>) { add_movement<kDtypeOf<T>>(r); });
        for (const char* op : {"sum_squares", "owned", "step_control", "update_loss_scale"}) {
            Registered scalar;
            scalar.op = op, scalar.kernel = std::string("reference.") + op, scalar.result = Dtype::F64;
            if (scalar.op == "sum_squares") scalar.accumulates = 0;
            scalar.takes = gives<Dtype::F64>, scalar.make = make_scalars;
            r.push_back(std::move(scalar));
        }
        return r;
    }();
    return all;
}

}  // namespace lockstep::kernels
