// Programs print and parse; what does not parse is refused by line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "ir/text.h"
#include "tests/compile/recipes.h"

namespace lockstep::testing {
namespace {

class TextRoundTrip : public ::testing::TestWithParam<NamedSettings> {};

TEST_P(TextRoundTrip, AfterEveryPass) {
    for (const std::string& pass : compile::pass_names()) {
        for (Backend backend : {Backend::Reference, Backend::Cpu}) {
            const ir::Program program = program_after(pass, GetParam().settings, backend);
            const std::string text = ir::print(program);
            const ir::Program again = ir::parse(text);
            EXPECT_EQ(ir::print(again), text) << "after " << pass;
            EXPECT_TRUE(again == program) << "after " << pass;
        }
    }
}
INSTANTIATE_TEST_SUITE_P(Recipes, TextRoundTrip, ::testing::ValuesIn(sample_settings()),
                         [](const auto& info) { return info.param.name; });

TEST(Text, EveryAttributeAndNumberComesBack) {
    ir::Program p;
    ir::Routine r;
    r.name = "r";
    r.dims = {{"n", 8, 7}};
    r.ports = {{"x", ir::PortKind::Value, ir::Access::Update, ir::PortRole::X, ""}};
    r.tensors = {{"x", Dtype::F64, {0}, {{{}}, {}, ir::Reduce::Sum}, "", 0, 64, -1}};
    for (double number : {0.1, 1e300, -1e-300, 1.0, 1e20, -0.0, 3.0e-5}) {
        ir::Op op;
        op.kind = "copy";
        op.in = op.out = {0};
        op.attrs = {{"c", number},
                    {"i", int64_t{-3}},
                    {"list", std::vector<int64_t>{1, -2, 3}},
                    {"none", std::vector<int64_t>{}},
                    {"s", std::string("a b")}};
        op.note = "why: it = (so) {here}";
        r.ops.push_back(op);
    }
    p.routines.push_back(r);
    EXPECT_TRUE(ir::parse(ir::print(p)) == p) << ir::print(p);
}

// The arena of the host's memory stands in the text where there is one.
TEST(Text, BothArenasComeBack) {
    const ir::Program one = program_after("plan_memory", {}),
                      two = program_after("plan_memory", {{"checkpoint.enable", "true"}, {"checkpoint.async_mode", "async"}});
    EXPECT_EQ(ir::print(one).find("host_arena"), std::string::npos);
    EXPECT_NE(ir::print(two).find(
                  fmt::format("arena {}\nhost_arena {}\n", two.arena_bytes[Place::Device], two.arena_bytes[Place::Host])),
              std::string::npos);
    EXPECT_GT(two.arena_bytes[Place::Host], 0);
    EXPECT_TRUE(ir::parse(ir::print(two)) == two);
}

// The place of a state or a buffer is in the text only where it is not the usual one.
TEST(Text, PlacesComeBack) {
    ir::Program p = program_after("plan_memory", {{"checkpoint.enable", "true"}, {"checkpoint.async_mode", "async"}});
    EXPECT_EQ(ir::print(p).find(" place "), std::string::npos);
    const ir::StateId moment = p.state(ir::StateRole::Moment, "layer"), copy = p.state(ir::StateRole::Copy, "layer");
    p.states[static_cast<size_t>(moment)].place = Place::Host;
    p.states[static_cast<size_t>(copy)].place = Place::Device;
    for (ir::Buffer& b : p.buffers) {
        if (b.state >= 0) b.place = p.states[static_cast<size_t>(b.state)].place;
    }
    const std::string text = ir::print(p);
    EXPECT_NE(text.find(" place host"), std::string::npos);
    EXPECT_NE(text.find(" place device"), std::string::npos);
    EXPECT_TRUE(ir::parse(text) == p);
}

TEST(Text, InfinityComesBack) {
    const std::string text =
        ir::print(program_after("plan_memory", {{"model.vocab_size", "15"}, {"parallelism.tensor_parallel_degree", "2"}}));
    EXPECT_NE(text.find("fill=-inf"), std::string::npos);
    EXPECT_EQ(ir::print(ir::parse(text)), text);
}

TEST(Text, EmptyProgram) {
    EXPECT_TRUE(ir::parse(ir::print(ir::Program{})) == ir::Program{});
    EXPECT_TRUE(ir::parse("\n  \n") == ir::Program{});
}

TEST(Text, ACallBindsThePortsOfItsRoutine) {
    const std::string head = "routine r block - kind forward entry train chunks 1 scratch 0\n  port x value read\n",
                      tail =
                          "buffer b activations bytes 4 resident 0 at 0\nentry train\n"
                          "  call r instance 0 microbatch 0 chunk 0 stream compute : ";
    EXPECT_EQ(ir::parse(head + tail + "x=b").entries[0].calls[0].bindings.size(), 1u);
    for (const auto& [ports, message] :
         {std::pair{"y=b", "line 5: expected the port 'x' instead of 'y' at ''"},
          {"x=b x=b", "line 5: expected the end of the call instead of 'x', as all ports are bound at ''"}}) {
        try {
            ir::parse(head + tail + ports);
            ADD_FAILURE() << ports;
        } catch (const UserError& e) {
            EXPECT_EQ(std::string(e.what()), std::string("program text, ") + message);
        }
    }
}

struct SyntaxCase {
    const char *name, *text, *message;
};
void PrintTo(const SyntaxCase& c, std::ostream* stream) { *stream << c.name; }

const std::string kHead =
    "mesh dp_replicate=1 dp_shard=2 cp=1 tp=1 dp_shard:(1)2\nroutine r block - kind forward entry train chunks 1 scratch 0\n  "
    "dims n=4\n";

class TextSyntax : public ::testing::TestWithParam<SyntaxCase> {};

TEST_P(TextSyntax, IsRefusedByLine) {
    try {
        ir::parse(kHead + GetParam().text);
        FAIL() << "parsed";
    } catch (const UserError& e) {
        EXPECT_EQ(e.id(), "ir.syntax");
        EXPECT_EQ(std::string(e.what()), std::string("program text, line 4: ") + GetParam().message);
    }
}

const SyntaxCase kSyntaxCases[] = {
    {"unknown_tensor", "  y: f32[n] = copy(x)", "expected a tensor defined before instead of 'x' at ')'"},
    {"unknown_dim", "  y: f32[m] = zero()", "expected a dim of the routine instead of 'm' at '] = zero()'"},
    {"unknown_dtype", "  y: f8[n] = zero()", "expected an element type at '[n] = zero()'"},
    {"unknown_axis", "  y: f32[n/pp] = zero()", "expected sub-axes of the mesh instead of 'pp' at '] = zero()'"},
    {"no_name", "  : f32[n]", "expected the name of a tensor at ': f32[n]'"},
    {"no_brackets", "  y: f32", "expected '[' at ''"},
    {"no_operands", "  y: f32[n] = zero", "expected '(' at ''"},
    {"trailing", "  y: f32[n] = zero() then", "expected the end of the op at 'then'"},
    {"text_without_end", "  y: f32[n] = zero() {s='a", "expected ''' at ''"},
    {"no_number", "  y: f32[n] = zero() {i=x}", "expected an integer at 'x}'"},
    {"port_kind", "  port x thing read", "'thing' is not a word known here"},
    {"port_access", "  port x value borrow", "'borrow' is not a word known here"},
    {"routine_kind", "routine q block - kind sideways entry train chunks 1 scratch 0", "'sideways' is not a word known here"},
    {"routine_without_block", "routine q kind forward", "expected 'block' at 'kind forward'"},
    {"partial_reduce", "  y: f32[n] partial min dp_shard = zero()", "'min' is not a word known here"},
    {"block_without_count", "block layer 3", "expected 'x' at '3'"},
    {"mesh_axis", "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1 ep:(1)2", "expected an axis name at ':(1)2'"},
    {"mesh_order", "mesh tp=1", "expected 'dp_replicate' at 'tp=1'"},
    {"microbatches", "microbatches many", "expected an integer at 'many'"},
    {"segment_first", "segment begin 0", "expected a unit before its segment at 'begin 0'"},
    {"call_first", "call r instance 0", "expected an entry before its calls at 'r instance 0'"},
    {"buffer_kind", "buffer b heap bytes 4 resident 0 at 0", "'heap' is not a word known here"},
    {"number_too_large", "arena 281474976710657",
     "expected an integer between -281474976710656 and 281474976710656 instead of 281474976710657 at ''"},
    {"host_arena", "host_arena large", "expected an integer at 'large'"},
    {"too_many_instances", "block layer x2000000", "expected an integer between 0 and 1048576 instead of 2000000 at ''"},
    {"mesh_of_nobody", "mesh dp_replicate=1 dp_shard=0 cp=1 tp=1",
     "expected an integer between 1 and 2147483648 instead of 0 at 'cp=1 tp=1'"},
    {"mesh_too_large", "mesh dp_replicate=1 dp_shard=1 cp=1 tp=1 tp:(1)2147483648",
     "expected an integer between 2 and 1073741824 instead of 2147483648 at ''"},
    {"axis_twice", "  y: f32[n/dp_shard/dp_shard] = zero()",
     "expected sub-axes of the mesh instead of 'dp_shard,dp_shard' at '] = zero()'"},
    {"tensor_too_large", "  y: f32[n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n, n] = zero()",
     "expected a tensor of at most 281474976710656 elements at '] = zero()'"},
    {"more_valid_than_there_are", "  dims m=4:5", "expected an integer between 0 and 4 instead of 5 at ''"},
    {"param_init", "param w: f32[n=4] block b name w decay 1 init uniform 1.0 0", "'uniform' is not a word known here"},
};
INSTANTIATE_TEST_SUITE_P(Broken, TextSyntax, ::testing::ValuesIn(kSyntaxCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Text, CallsNameRoutinesAndBuffers) {
    const auto message = [](const std::string& text) -> std::string {
        try {
            ir::parse(kHead + text);
        } catch (const UserError& e) {
            return e.what();
        }
        return "parsed";
    };
    EXPECT_EQ(message("entry train\n  call q instance 0"),
              "program text, line 5: expected a routine instead of 'q' at 'instance 0'");
    EXPECT_EQ(message("entry train\n  call r instance 0 microbatch 0 chunk 0 stream side :"),
              "program text, line 5: 'side' is not a word known here");
    EXPECT_EQ(message("entry train\n  call r instance 0 microbatch 0 chunk 0 stream comm : x=b"),
              "program text, line 5: expected a buffer instead of 'b' at ''");
    EXPECT_EQ(message("  y: f32[n] = zero()\n  y: f32[n] = zero()"),
              "program text, line 5: expected a new name instead of 'y' at '= zero()'");
}

// A search by name in each line would take minutes.
TEST(Text, LongTextsAreReadInProportion) {
    constexpr int kOps = 200'000;
    std::string text = kHead + "  t0: f32[n] = zero()\n";
    for (int i = 1; i < kOps; ++i) text += fmt::format("  t{}: f32[n] = copy(t{})\n", i, i - 1);
    const auto began = std::chrono::steady_clock::now();
    EXPECT_EQ(ir::parse(text).routines[0].tensors.size(), size_t{kOps});
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
}

TEST(Text, NothingStandsBeforeARoutine) {
    try {
        ir::parse("hello");
        FAIL() << "parsed";
    } catch (const UserError& e) {
        EXPECT_STREQ(e.what(), "program text, line 1: expected a statement at 'hello'");
    }
}

}  // namespace
}  // namespace lockstep::testing
