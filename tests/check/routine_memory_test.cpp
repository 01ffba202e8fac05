// The memory of one routine, for ops whose operands are their results.
#include "check/routine_memory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/round.h"
#include "ir/text.h"
#include "kernels/kernel.h"
#include "passes/plan_memory.h"
#include "passes/select_kernels.h"

namespace lockstep::testing {
namespace {

// A block of a ring behind another; o and lse stay where the first has made them.
ir::Program ring(bool drops) {
    const std::string attrs = drops ? "dropout=0.5, hops=2, rng_key=7, scale=1.0" : "hops=2, scale=1.0",
                      noise = drops ? ", pos" : "", of_queries = "f32[batch, seq, kv_heads, group, head_dim]";
    return ir::parse(fmt::format(R"(mesh dp_replicate=1 dp_shard=1 cp=1 tp=1
microbatches 1
arena 0
block b x1
routine f block b kind forward entry train chunks 1 scratch 0
  dims batch=1 seq=8 kv_seq=8 kv_heads=1 group=2 head_dim=4
  port q value read
    q: {2}
  port k value read
    k: f32[batch, kv_seq, kv_heads, head_dim]
  port pos input read
    pos: i32[batch, seq]
  port kv_pos input read
    kv_pos: i32[batch, kv_seq]
  port y value write
    y: {2}
  o: {2}; lse: f32[batch, seq, kv_heads, group] = attention_block(q, k, k, pos, kv_pos, pos, kv_pos{1}) {{{0}, shift=0, window=0}}
  o; lse = attention_block(q, k, k, pos, kv_pos, pos, kv_pos{1}, o, lse) {{{0}, shift=1, window=0}}
  y = scale(o) {{c=2.0}}
)",
                                 attrs, noise, of_queries));
}

TEST(CheckRoutineMemory, BlocksOfARingGoOnInPlace) {
    for (const bool drops : {false, true}) {
        ir::Program p = passes::plan_memory(passes::select_kernels(ring(drops), kernels::cpu_catalog(1)));
        ir::Routine& r = p.routines[0];
        for (ir::Tensor& t : r.tensors) {
            if (t.port < 0) continue;
            t.offset_bytes = 0;
            r.ports[static_cast<size_t>(t.port)].bytes = ir::local_bytes(p.mesh, r, t);
        }
        EXPECT_EQ(check::wrong_routine_memory(p, r), "");
        // The second block as if it wrote where it does not read.
        ir::Op& second = r.ops[1];
        ir::Tensor elsewhere = r.tensors[static_cast<size_t>(second.out[1])];
        elsewhere.name = "elsewhere", elsewhere.offset_bytes = r.scratch_bytes;
        r.scratch_bytes += kAlignmentBytes;
        r.tensors.push_back(elsewhere);
        second.out[1] = static_cast<ir::TensorId>(r.tensors.size()) - 1;
        EXPECT_EQ(check::wrong_routine_memory(p, r),
                  "f, op 1 attention_block: its kernel reads lse where it writes elsewhere, which is elsewhere");
    }
}

}  // namespace
}  // namespace lockstep::testing
