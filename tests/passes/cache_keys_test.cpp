// What attention reads instead of the step's own keys, as text.
#include "passes/cache_keys.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

// A block with one key and no value is enough; `entry` is that of the block and of the last one.
ir::Program blocks_of(const std::string& entry) {
    std::string text =
        "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1\nblock b x2\nblock h x1\n"
        "routine b.ENTRY block b kind forward entry ENTRY chunks 1 scratch 0\n"
        "  dims batch=2 seq=8 kv_seq=8 head_dim=4\n"
        "  port x value read\n    x: f32[batch, seq, head_dim]?\n"
        "  port pos input read\n    pos: i32[batch, seq]? from pos\n"
        "  port y value write\n    y: f32[batch, seq, head_dim]?\n"
        "  k: f32[batch, kv_seq, head_dim]? = rename(x)\n"
        "  kp: i32[batch, kv_seq]? = rename(pos)\n"
        "  y = einsum(x, k)\n"
        "routine h.ENTRY block h kind forward entry ENTRY chunks 1 scratch 0\n"
        "  dims batch=2 seq=8 head_dim=4\n"
        "  port x value read\n    x: f32[batch, seq, head_dim]?\n"
        "  port logits value write\n    logits: f32[batch, seq, head_dim]?\n"
        "  logits = scale(x) {c=1.0}\n";
    for (size_t at; (at = text.find("ENTRY")) != std::string::npos;) text.replace(at, 5, entry);
    return ir::parse(text);
}

TEST(CacheKeys, KeysAreAppendedAndReadFromTheCache) {
    const ir::Program p = passes::cache_keys(blocks_of("decode"), {});
    EXPECT_EQ(op_lines(p, "b.decode"), (Strings{"cache.k = append(cache.k, x, pos)", "y = einsum(x, cache.k)"}));
    const ir::Routine& r = *p.routine("b.decode");
    EXPECT_EQ(r.dims[static_cast<size_t>(r.dim("seq"))].size, 1);
    EXPECT_EQ(r.dims[static_cast<size_t>(r.dim("kv_seq"))].size, 8);
    const ir::Port& cache = r.ports[static_cast<size_t>(r.port("cache"))];
    EXPECT_EQ(cache.kind, ir::PortKind::State);
    EXPECT_EQ(cache.access, ir::Access::Update);
    EXPECT_TRUE(p.has_role(cache, ir::StateRole::Cache));
    EXPECT_EQ(p.state_of(cache).full_name(), "cache.b");
    EXPECT_NE(p.routine("h.decode"), nullptr);
}

TEST(CacheKeys, PrefillTakesSomeTokensAndHasNoLastBlock) {
    const ir::Program p = passes::cache_keys(blocks_of("prefill"), {4});
    const ir::Routine& r = *p.routine("b.prefill");
    EXPECT_EQ(r.dims[static_cast<size_t>(r.dim("seq"))].size, 4);
    EXPECT_EQ(p.routine("h.prefill"), nullptr);
}

TEST(CacheKeys, OtherEntriesStayAsTheyAre) {
    for (const char* entry : {"train", "eval"}) {
        const ir::Program p = blocks_of(entry);
        EXPECT_EQ(passes::cache_keys(p, {}), p);
    }
}

}  // namespace
}  // namespace lockstep::testing
