// For each invariant of ops/verify.h: a program that breaks it, and what is said about it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "ir/text.h"
#include "ops/verify.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

const std::string kLegal = R"(mesh dp_replicate=1 dp_shard=2 cp=1 tp=2 dp_shard:(1)2 tp:(1)2
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims batch=2 hidden=4 ffn=16
  port x value read
    x: f32[batch/dp_shard, hidden]
  port params params read
    w: f32[ffn/tp, hidden] from w
    v: f32[hidden, ffn/tp] from v
  port y value write
    y: f32[batch/dp_shard, hidden]
  h: f32[batch/dp_shard, ffn/tp] = einsum(x, w)
  o: f32[batch/dp_shard, hidden] partial sum tp = einsum(h, v)
  o.ar: f32[batch/dp_shard, hidden] = all_reduce(o) over tp
  y = add(x, o.ar)
)";

struct TextCase {
    const char *name, *from, *to, *invariant, *message;
};
void PrintTo(const TextCase& c, std::ostream* stream) { *stream << c.name; }

std::string replaced_once(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

void expect_violation(const ir::Program& program, const std::string& invariant, const std::string& message) {
    const auto violation = ops::verify(program);
    ASSERT_TRUE(violation) << "accepted";
    EXPECT_EQ(name_of(violation->invariant), invariant);
    EXPECT_EQ(violation->message, message);
}

TEST(Verify, AcceptsTheLegalProgram) {
    const auto violation = ops::verify(ir::parse(kLegal));
    EXPECT_FALSE(violation) << violation->message;
}

class VerifyText : public ::testing::TestWithParam<TextCase> {};

TEST_P(VerifyText, IsRefused) {
    const TextCase& c = GetParam();
    expect_violation(ir::parse(replaced_once(kLegal, c.from, c.to)), c.invariant, c.message);
}

const TextCase kTextCases[] = {
    {"unknown_kind", "einsum(x, w)", "einsam(x, w)", "shape", "f, op einsam: no op kind is called so"},
    {"rule_of_the_op", "add(x, o.ar)", "scale(x)", "shape", "f, op scale: needs the attribute c"},
    {"never_written", "  y = add(x, o.ar)\n", "", "ssa", "f: y is never written"},
    {"read_before_written", "einsum(x, w)", "einsum(y, w)", "ssa", "f, op einsum: reads y before it is written"},
    {"written_twice", "y = add(x, o.ar)", "y = add(x, o.ar)\n  y = add(x, x)", "ssa", "f, op add: y is written twice"},
    {"writes_a_read_port", "y = add(x, o.ar)", "y = add(x, o.ar)\n  x = add(x, x)", "ssa",
     "f, op add: writes x, which it may only read"},
    {"adds_to_a_written_port", "y = add(x, o.ar)", "+y = add(x, o.ar)", "ssa",
     "f, op add: y is added to where its port says otherwise"},
    {"writes_an_accumulated_port", "port y value write", "port y value accumulate", "ssa",
     "f, op add: y is added to where its port says otherwise"},
    {"half_placed", "o.ar: f32[batch/dp_shard, hidden]", "o.ar: f32[batch, hidden]?", "placement",
     "f: some tensors are placed and some are not"},
    {"sub_axis_twice", "h: f32[batch/dp_shard, ffn/tp]", "h: f32[batch/tp, ffn/tp]", "placement", "f: a sub-axis is twice in h"},
    {"sharded_and_partial", "y: f32[batch/dp_shard, hidden]", "y: f32[batch/dp_shard, hidden] partial sum dp_shard", "placement",
     "f: a sub-axis is twice in y"},
    {"uneven", "ffn=16", "ffn=17", "placement", "f: ffn of w is not divisible by tp"},
    {"other_space", "h: f32[batch/dp_shard, ffn/tp]", "h: f32[batch, ffn/tp]", "space",
     "f, op einsum: h is not placed where the op runs"},
    {"axis_on_two_dims", "x: f32[batch/dp_shard, hidden]", "x: f32[batch/tp, hidden]", "space",
     "f, op einsum: 'tp' splits both batch and ffn: each rank would see one pair of blocks, not all"},
    {"lost_axis", " partial sum tp = einsum", " = einsum", "partial", "f, op einsum: o is partial over 'tp', not over ''"},
    {"partial_by_nothing", "h: f32[batch/dp_shard, ffn/tp]", "h: f32[batch/dp_shard, ffn] partial sum tp", "space",
     "f, op einsum: h is not placed where the op runs"},
    {"not_linear", "o.ar: f32[batch/dp_shard, hidden] = all_reduce(o) over tp",
     "o.ar: f32[batch/dp_shard, hidden] partial sum tp = unary(o) {fn='log'}", "partial",
     "f, op unary: is not linear in o, which is a partial sum"},
    {"whole_plus_partial", "add(x, o.ar)", "add(x, o)", "partial", "f, op add: adds terms that are partial over different axes"},
    {"partial_plus_whole", "add(x, o.ar)", "add(o, x)", "partial", "f, op add: adds a whole term to a partial sum"},
    {"product_of_sums", "add(x, o.ar)", "einsum(o, o)", "partial", "f, op einsum: a product of two partial sums"},
    {"group_of_unequal_launches", "all_reduce(o)", "all_reduce(o, o)", "shape",
     "f, op all_reduce: a grouped launch has one result an operand"},
    {"no_group", " over tp", "", "collective", "f, all_reduce of o: its group is empty"},
    {"other_group", " over tp", " over dp_shard", "collective",
     "f, all_reduce of o: it reduces what is not partial over the group"},
    {"other_result", "o.ar: f32[batch/dp_shard, hidden]", "o.ar: f32[batch/dp_shard, hidden/tp]", "collective",
     "f, all_reduce of o: the result is placed otherwise"},
    {"gathers_what_is_whole", "all_reduce(o)", "all_gather(o) {dim=1}", "collective",
     "f, all_gather of o: the dim does not end in the group"},
    {"no_such_dim", "all_reduce(o)", "all_gather(o) {dim=2}", "collective", "f, all_gather of o: it has no such dim"},
    {"scatters_what_is_whole", "o.ar: f32[batch/dp_shard, hidden] = all_reduce(o)",
     "o.ar: f32[batch/dp_shard, hidden/tp] = reduce_scatter(x) {dim=1}", "collective",
     "f, reduce_scatter of x: it reduces what is not partial over the group"},
    {"root_out_of_range", "= all_reduce(o) over tp", "= broadcast(x) {root=2} over tp", "collective",
     "f, broadcast of x: its root 2 is none of 2 ranks"},
    {"root_below_range", "= all_reduce(o) over tp", "= broadcast(x) {root=-1} over tp", "collective",
     "f, broadcast of x: its root -1 is none of 2 ranks"},
    {"broadcast_of_partial", "= all_reduce(o) over tp", "= broadcast(o) {root=0} over tp", "collective",
     "f, broadcast of o: its operand is a partial sum over the group"},
    {"broadcast_of_split", "= all_reduce(o) over tp", "= broadcast(x) {root=0} over dp_shard", "collective",
     "f, broadcast of x: its operand is split over the group"},
    {"shift_by_all", "= all_reduce(o) over tp", "= permute(x) {by=2} over tp", "collective",
     "f, permute of x: its shift by 2 is not between 1 and 1"},
    {"shift_by_none", "= all_reduce(o) over tp", "= permute(x) {by=0} over tp", "collective",
     "f, permute of x: its shift by 0 is not between 1 and 1"},
    {"permute_to_elsewhere", "o.ar: f32[batch/dp_shard, hidden] = all_reduce(o)",
     "o.ar: f32[batch/dp_shard, hidden/tp] = permute(x) {by=1}", "collective", "f, permute of x: the result is placed otherwise"},
    {"exchanges_what_is_whole", "= all_reduce(o) over tp", "= all_to_all(x) {from=1, to=0} over tp", "collective",
     "f, all_to_all of x: the dim does not end in the group"},
    {"exchanges_to_no_dim", "= all_reduce(o) over tp", "= all_to_all(h) {from=1, to=2} over tp", "shape",
     "f, op all_to_all: h and o.ar must have the same dims"},
    {"exchanges_with_itself", "= all_reduce(o) over tp", "= all_to_all(x) {from=1, to=1} over tp", "shape",
     "f, op all_to_all: moves the group from a dim to the same one"},
    {"exchange_elsewhere", "o.ar: f32[batch/dp_shard, hidden] = all_reduce(o) over tp",
     "o.ar: f32[batch/dp_shard, hidden] = all_to_all(x) {from=0, to=1} over dp_shard", "collective",
     "f, all_to_all of x: the result is placed otherwise"},
    {"changes_the_type", "o.ar: f32[batch/dp_shard, hidden] = all_reduce(o)", "o.ar: f64[batch/dp_shard, hidden] = all_reduce(o)",
     "collective", "f, all_reduce of o: makes f64 of f32"},
    {"sends_beside_the_pipeline", "y = add(x, o.ar)", "y = add(x, o.ar)\n   = send(x) {peer=0} over tp", "collective",
     "f, send of x: its group is not that of the pipeline"},
    {"algorithm_of_another_kind", "all_reduce(o) over tp", "all_reduce(o) {gather='ring'} over tp", "collective",
     "f, all_reduce of o: its algorithm is not of such a collective"},
    {"algorithm_of_one_with_none", "= all_reduce(o) over tp", "= permute(x) {by=1, gather='ring'} over tp", "shape",
     "f, op permute: has no attribute gather"},
    {"slice_elsewhere", "= all_reduce(o) over tp", "= slice(x) {dim=1} over tp", "collective",
     "f, slice of x: the result is placed otherwise"},
    {"partial_y", "y: f32[batch/dp_shard, hidden]", "y: f32[batch/dp_shard, hidden] partial sum tp", "border",
     "f: y crosses a block's border as a partial sum"},
    {"partial_x", "x: f32[batch/dp_shard, hidden]", "x: f32[batch/dp_shard, hidden] partial sum tp", "border",
     "f: x crosses a block's border as a partial sum"},
    {"partial_input", "port x value read\n    x: f32[batch/dp_shard, hidden]",
     "port x input read\n    x: f32[batch/dp_shard, hidden] partial sum tp", "border",
     "f: x crosses a block's border as a partial sum"},
    {"half_with_kernels", "einsum(x, w)", "einsum(x, w) kernel cpu.matmul", "kernel",
     "f: some ops have a kernel and some have none"},
    {"view_of_other_bytes", "o.ar: f32[batch/dp_shard, hidden] =", "o.ar: f32[batch/dp_shard, hidden] view h =", "view",
     "f: o.ar does not have the bytes of what it views"},
};
INSTANTIATE_TEST_SUITE_P(Broken, VerifyText, ::testing::ValuesIn(kTextCases),
                         [](const auto& info) { return std::string(info.param.name); });

// Rows of queries, keys and values on two ranks: a list that is joined, cut, or read as heads.
const std::string kSplitQkv = R"(mesh dp_replicate=1 dp_shard=1 cp=1 tp=2 tp:(1)2
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims batch=2 hidden=4 kv_heads=2 group=3 head_dim=4 qkv=5
  port x value read
    x: f32[batch, hidden]
  port pos value read
    pos: i32[batch]
    g: f32[head_dim]
  port params params read
    w: f32[qkv, kv_heads/tp, head_dim, hidden] from w
  port y value write
    q: f32[batch, kv_heads/tp, group, head_dim]
    k: f32[batch, kv_heads/tp, head_dim]
    v: f32[batch, kv_heads/tp, head_dim]
  rows: f32[batch, qkv, kv_heads/tp, head_dim] = einsum(x, w)
  q; k; v = split_qkv(rows)
)";

TEST(Verify, AcceptsQueriesKeysAndValuesInOneList) {
    const auto violation = ops::verify(ir::parse(kSplitQkv));
    EXPECT_FALSE(violation) << violation->message;
}

TEST(Verify, QueriesKeysAndValuesInOneListAreNotLookedInto) {
    const auto refused = [](const std::string& op, const std::string& message) {
        expect_violation(ir::parse(replaced_once(kSplitQkv, "  q; k; v =", op + "  q; k; v =")), "qkv", "f, op " + message);
    };
    const std::string list = "f32[batch, qkv, kv_heads/tp, head_dim]";
    refused("  z: f32[batch, qkv, kv_heads, head_dim] = all_gather(rows) {dim=2} over tp\n",
            "all_gather: it joins or cuts rows along its list of queries, keys and values");
    refused("  z: f32[batch, qkv, kv_heads, head_dim/tp] = scale(rows) {c=2.0}\n",
            "scale: z is cut within its list of queries, keys and values");
    refused(
        "  z: f32[batch, qkv, kv_heads/tp, head_dim]; s: f32[batch, qkv, kv_heads/tp] = rmsnorm(rows, g) "
        "{eps=1e-05, over='head_dim'}\n",
        "rmsnorm: s has the dim qkv without kv_heads and head_dim behind it");
    // It turns queries and keys where they are.
    const auto turned = ops::verify(ir::parse(replaced_once(
        kSplitQkv, "  q; k; v =",
        "  z: " + list +
            " = rope(rows, pos) {factor=1.0, high_freq_factor=4.0, low_freq_factor=1.0, original_positions=8.0, sign=1, "
            "theta=10.0}\n  q; k; v =")));
    EXPECT_FALSE(turned) << turned->message;
    refused("  z: f32[batch, kv_heads/tp, head_dim] = einsum(rows)\n",
            "einsum: it reads queries, keys and values as the heads of z");
    refused("  z: f32[batch, qkv, head_dim] partial sum tp = einsum(rows)\n",
            "einsum: z has the dim qkv without kv_heads and head_dim behind it");
    refused("  z: f32[batch, hidden] partial sum tp = einsum(rows, w)\n  z2: " + list + " = scale(rows) {c=2.0}\n" +
                "  z3: f32[batch, kv_heads/tp, head_dim] = einsum(z2)\n",
            "einsum: it reads queries, keys and values as the heads of z3");
}

struct EditCase {
    const char* name;
    std::function<void(ir::Program&)> edit;
    const char *invariant, *message;
};
void PrintTo(const EditCase& c, std::ostream* stream) { *stream << c.name; }

ir::Routine& update(ir::Program& p) { return p.routines[p.routine_index("update.layer")]; }
ir::Unit& layer(ir::Program& p) { return p.units[1]; }
ir::State& exp_avg(ir::Program& p) { return p.states[static_cast<size_t>(p.state(ir::StateRole::Moment, "layer"))]; }
ir::Buffer& buffer_of(ir::Program& p, ir::StateRole role) {
    return p.buffers[static_cast<size_t>(p.buffer(p.state(role, "layer"), 0))];
}
ir::Call& first_call(ir::Program& p) { return p.entries[0].calls[0]; }

// Of the small recipe on two data ranks.
const EditCase kEditCases[] = {
    {"tensor_twice", [](ir::Program& p) { update(p).tensors[1].name = update(p).tensors[0].name; }, "names",
     "update.layer: two tensors are called weights0"},
    {"port_twice", [](ir::Program& p) { update(p).ports[1].name = "weights"; }, "names",
     "update.layer: two ports are called weights"},
    {"no_such_port", [](ir::Program& p) { update(p).tensors[0].port = 99; }, "names",
     "update.layer: weights0 belongs to no port"},
    {"no_such_dim", [](ir::Program& p) { update(p).tensors[0].dims[0] = 99; }, "names",
     "update.layer: weights0 has an unknown dim"},
    {"no_such_tensor", [](ir::Program& p) { update(p).ops[0].in[0] = -1; }, "names",
     "update.layer, op adamw: an operand or result that is no tensor"},
    {"sub_axis_of_no_mesh", [](ir::Program& p) { update(p).tensors[0].placement.partial = {7}; }, "placement",
     "update.layer: weights0 names a sub-axis that the mesh lacks"},
    {"grouped_launch", [](ir::Program& p) { p.routines[p.routine_index("gather.layer")].ops[0].out.pop_back(); }, "ssa",
     "gather.layer: full1 is never written"},
    {"not_nested", [](ir::Program& p) { layer(p).gradients.clear(); }, "unit", "layer: its splits are not nested"},
    {"gap_between_segments", [](ir::Program& p) { layer(p).segments[1].begin += 32; }, "unit",
     "layer: segments do not follow each other"},
    {"members_overlap", [](ir::Program& p) { layer(p).segments[0].members[1].begin -= 1; }, "unit",
     "layer: wk overlaps its neighbour or its segment's end"},
    {"member_past_the_end", [](ir::Program& p) { layer(p).segments.back().members.back().count += 1000; }, "unit",
     "layer: ffn_norm overlaps its neighbour or its segment's end"},
    {"odd_padding", [](ir::Program& p) { layer(p).segments.back().padded += 1; }, "unit",
     "layer: a segment is not divisible by the optimizer's split"},
    {"other_size", [](ir::Program& p) { layer(p).padded += 2; }, "unit", "layer: its size is not that of its segments"},
    {"parameters_of_another_type", [](ir::Program& p) { layer(p).compute = Dtype::BF16; }, "precision",
     "layer.forward: attention_norm is read as f32, kept as bf16"},
    {"state_of_another_type", [](ir::Program& p) { exp_avg(p).dtype = Dtype::F64; }, "state",
     "update.layer: exp_avg0 is f32, and exp_avg.layer is f64"},
    {"state_split_otherwise", [](ir::Program& p) { exp_avg(p).split.clear(); }, "state",
     "update.layer: exp_avg0 is not split as exp_avg.layer"},
    {"state_of_another_writer", [](ir::Program& p) { exp_avg(p).writer = ir::RoutineKind::Stats; }, "state",
     "update.layer: only stats changes exp_avg.layer"},
    {"port_of_no_state", [](ir::Program& p) { update(p).ports[0].state = 999; }, "state",
     "update.layer: port weights binds no state, or is not of a state's kind"},
    {"state_of_no_unit", [](ir::Program& p) { p.states.push_back(exp_avg(p)), p.states.back().unit = "none"; }, "state",
     "exp_avg.none: it is of no unit"},
    {"state_of_missing_segments",
     [](ir::Program& p) {
         exp_avg(p).segments = {0, 9};
     },
     "state", "exp_avg.layer: it covers segments that its unit lacks"},
    {"state_of_segments_that_do_not_ascend",
     [](ir::Program& p) {
         exp_avg(p).segments = {1, 0};
     },
     "state", "exp_avg.layer: it covers segments that its unit lacks"},
    {"state_twice", [](ir::Program& p) { p.states.push_back(exp_avg(p)); }, "state", "exp_avg.layer: two states are called so"},
    {"state_saved_and_a_copy", [](ir::Program& p) { exp_avg(p).copy_of = 0; }, "state",
     "exp_avg.layer: it is saved, and a copy of what is"},
    {"state_saved_for_a_step", [](ir::Program& p) { p.states[0].saved = "loss_sum"; }, "state",
     "loss_sum: it is saved, and does not outlive the run"},
    {"state_in_two_buffers", [](ir::Program& p) { p.buffers.push_back(buffer_of(p, ir::StateRole::Moment)); }, "state",
     "exp_avg.layer has two buffers for instance 0"},
    {"weights_as_another_instance", [](ir::Program& p) { buffer_of(p, ir::StateRole::Weights).instance = 7; }, "call",
     "train, call 3 of gather.layer: port weights is bound to weights.layer[0], which holds another state"},
    {"attribute_that_the_rule_lacks", [](ir::Program& p) { update(p).ops[0].attrs["beta3"] = 0.5; }, "shape",
     "update.layer, op adamw: has no attribute beta3"},
    {"attribute_of_another_type", [](ir::Program& p) { update(p).ops[0].attrs["beta1"] = int64_t{1}; }, "shape",
     "update.layer, op adamw: the attribute beta1 is a number"},
    {"transient_buffer_of_another_entry",
     [](ir::Program& p) {
         ir::Entry again = p.entries[0];
         again.kind = ir::EntryKind::Eval;
         p.entries.push_back(again);
     },
     "call", "eval, call 2 of gather.embed: buffer full.embed[0]#1 is of the entry train"},
    {"no_such_routine", [](ir::Program& p) { first_call(p).routine = 999; }, "call", "train, call 0: no such routine"},
    {"unbound_port", [](ir::Program& p) { first_call(p).bindings.pop_back(); }, "call",
     "train, call 0 of count: not every port is bound"},
    {"no_such_buffer", [](ir::Program& p) { first_call(p).bindings[0].buffer = -1; }, "call",
     "train, call 0 of count: port count is bound to no buffer"},
    {"past_the_buffer", [](ir::Program& p) { first_call(p).bindings[0].offset_bytes = 64; }, "call",
     "train, call 0 of count: port count reaches past buffer count"},
    {"before_the_buffer", [](ir::Program& p) { first_call(p).bindings[0].offset_bytes = -8; }, "call",
     "train, call 0 of count: port count reaches past buffer count"},
    {"scratch_too_small", [](ir::Program& p) { p.buffers[first_call(p).scratch].bytes = 1; }, "call",
     "train, call 0 of count: its scratch does not fit"},
    {"waits_for_itself", [](ir::Program& p) { first_call(p).waits = {0}; }, "call",
     "train, call 0 of count: it waits for a call that is not before it"},
    {"instances_missing", [](ir::Program& p) { p.routines[p.routine_index("layer.forward")].instances = {1}; }, "instance",
     "layer.forward: not every instance of layer has one forward"},
    {"instance_that_the_block_lacks",
     [](ir::Program& p) {
         p.routines[p.routine_index("layer.forward")].instances = {0, 2};
     },
     "instance", "layer.forward: not every instance of layer has one forward"},
    {"instances_out_of_order",
     [](ir::Program& p) {
         p.routines[p.routine_index("layer.forward")].instances = {1, 0};
     },
     "instance", "layer.forward: its instances do not ascend"},
    {"call_of_another_instance",
     [](ir::Program& p) {
         ir::Routine one = p.routines[p.routine_index("layer.forward")];
         one.name = "layer.forward.2";
         one.instances = {1};
         p.routines[p.routine_index("layer.forward")].instances = {0};
         p.routines.push_back(one);
     },
     "instance", "train, call 10 of layer.forward: it does not serve instance 1"},
    {"off_alignment", [](ir::Program& p) { p.buffers[0].offset_bytes += 4; }, "arena",
     "buffer count lies across the arena's end or off its alignment"},
    {"past_the_arena", [](ir::Program& p) { p.buffers[0].offset_bytes = p.arena_bytes[Place::Device]; }, "arena",
     "buffer count lies across the arena's end or off its alignment"},
    {"negative_arena", [](ir::Program& p) { p.arena_bytes[Place::Host] = -64; }, "arena", "an arena has fewer than no bytes"},
    {"past_the_hosts_arena",
     [](ir::Program& p) {
         p.buffers[0].place = Place::Host, p.buffers[0].offset_bytes = 0, p.arena_bytes[Place::Host] = p.buffers[0].bytes - 1;
     },
     "arena", "buffer count lies across the host's arena's end or off its alignment"},
};

// Each rank has another block: what a gather over the ranks makes is parts of different ones.
TEST(VerifyBlocks, MeetOtherRanksByPermuteAlone) {
    const auto with = [](const std::string& ops) {
        std::string text = replaced_once(kLegal, "hidden=", "hidden.block=2 hidden=");
        return ir::parse(replaced_once(
            text, "  y = add(x, o.ar)",
            "  b: f32[batch/dp_shard, hidden.block] = block(x) {dim=1, shift=1} over tp\n" + ops + "  y = add(x, o.ar)"));
    };
    const auto accepted = ops::verify(with("  c: f32[batch/dp_shard, hidden.block] = permute(b) {by=1} over tp\n"));
    EXPECT_FALSE(accepted) << accepted->message;
    expect_violation(with("  c: f32[batch/dp_shard, hidden.block/tp] = slice(b) {dim=1} over tp\n"
                          "  d: f32[batch/dp_shard, hidden.block] = all_gather(c) {dim=1} over tp\n"),
                     "blocks", "f: all_gather over tp is given c, but each rank there has another block of it");
}

// A ring of two ranks: the sequence and its keys are split over the same ranks, and each block of keys is of one rank.
TEST(VerifyRing, BlocksHaveQueriesAndKeysOnTheSameRanks) {
    const std::string ring = R"(mesh dp_replicate=1 dp_shard=1 cp=2 tp=1 cp:(1)2
microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims batch=1 seq=8 kv_seq=8(seq/1) kv_heads=1 group=2 head_dim=4
  port q value read
    q: f32[batch, seq/cp, kv_heads, group, head_dim]
  port k value read
    k: f32[batch, kv_seq/cp, kv_heads, head_dim]
  port pos input read
    pos: i32[batch, seq/cp]
  port kv_pos input read
    kv_pos: i32[batch, kv_seq/cp]
  port o value write
    o: f32[batch, seq/cp, kv_heads, group, head_dim]
  port lse value write
    lse: f32[batch, seq/cp, kv_heads, group]
  o; lse = attention_block(q, k, k, pos, kv_pos, pos, kv_pos) {hops=2, scale=1.0, shift=0, window=0} over cp
  k.1: f32[batch, kv_seq/cp, kv_heads, head_dim] = permute(k) {by=1} over cp
  kv_pos.1: i32[batch, kv_seq/cp] = permute(kv_pos) {by=1} over cp
  o; lse = attention_block(q, k.1, k.1, pos, kv_pos.1, pos, kv_pos.1, o, lse) {hops=2, scale=1.0, shift=1, window=0} over cp
)";
    const auto accepted = ops::verify(ir::parse(ring));
    EXPECT_FALSE(accepted) << accepted->message;
    EXPECT_EQ(ir::print(ir::parse(ring)), ring);
    expect_violation(ir::parse(replaced_once(ring, "kv_seq=8(seq/1)", "kv_seq=8")), "space",
                     "f, op attention_block: 'cp' splits both seq and kv_seq: each rank would see one pair of blocks, not all");
    std::string whole = ring;
    for (size_t at; (at = whole.find("kv_seq/cp")) != std::string::npos;) whole.replace(at, 9, "kv_seq");
    expect_violation(ir::parse(whole), "ring", "f, op attention_block: k is not split over its ring");
}

class VerifyEdit : public ::testing::TestWithParam<EditCase> {};

TEST_P(VerifyEdit, IsRefused) {
    ir::Program p = program_after("plan_memory", {{"parallelism.data_parallel_shard_degree", "2"}});
    ASSERT_FALSE(ops::verify(p));
    GetParam().edit(p);
    expect_violation(p, GetParam().invariant, GetParam().message);
}
INSTANTIATE_TEST_SUITE_P(Broken, VerifyEdit, ::testing::ValuesIn(kEditCases),
                         [](const auto& info) { return std::string(info.param.name); });

class VerifyCompiled : public ::testing::TestWithParam<NamedSettings> {};

TEST_P(VerifyCompiled, IsAcceptedAfterEveryPass) {
    for (const std::string& pass : compile::pass_names()) {
        for (Backend backend : {Backend::Reference, Backend::Cpu}) {
            const auto violation = ops::verify(program_after(pass, GetParam().settings, backend));
            EXPECT_FALSE(violation) << "after " << pass << ": " << name_of(violation->invariant) << ", " << violation->message;
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Recipes, VerifyCompiled, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep::testing
