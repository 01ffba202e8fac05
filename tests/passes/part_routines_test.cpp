#include "passes/part_routines.h"

#include <gtest/gtest.h>

#include "ir/text.h"
#include "ops/builder.h"
#include "ops/verify.h"
#include "tests/passes/program_text.h"

namespace lockstep::testing {
namespace {

using Strings = std::vector<std::string>;

ir::Program parted(const std::string& text) {
    ir::Program p = ir::parse("mesh dp_replicate=1 dp_shard=1 cp=1 tp=2 tp:(1)2\nblock b x1\n" + text);
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto before = ops::verify(p);
    EXPECT_FALSE(before) << before->message;
    p = passes::part_routines(std::move(p));
    for (ir::Routine& r : p.routines) ops::renumber(r);
    const auto violation = ops::verify(p);
    EXPECT_FALSE(violation) << violation->message << "\n" << ir::print(p);
    return p;
}

std::string routine(const std::string& name, const std::string& body) {
    return "routine b." + name + " block b kind " + name + " entry train chunks 1 scratch 0\n  dims rows=4\n" + body;
}

// `port x value read`, with the tensor x.
std::string port(const std::string& name, const std::string& kind_and_access, const std::string& source = "") {
    return "  port " + name + " " + kind_and_access + "\n    " + name + ": f32[rows]" +
           (source.empty() ? "" : " from " + source) + "\n";
}

const std::string kShift = " = permute(x) {aside=1, by=1} over tp\n";

Strings ops_of(const ir::Program& p) {
    Strings out;
    for (const ir::Routine& r : p.routines) {
        for (const std::string& line : op_lines(p, r.name)) out.push_back(r.name + ": " + line);
    }
    return out;
}

// What reads a result of the other side begins a part, and what does not stays in front of it.
TEST(PartRoutines, WhatIsAsideAndWhatWaitsForItAreParts) {
    const ir::Program p = parted(
        routine("forward", port("x", "value read") + port("y", "value write") + "  x1: f32[rows]" + kShift +
                               "  s: f32[rows] = scale(x) {c=2.0}\n  t: f32[rows] = scale(s) {c=3.0}\n  y = add(t, x1)\n"));
    EXPECT_EQ(ops_of(p), (Strings{"b.forward: x1 = permute(x) {by=1} over tp", "b.forward@1: s: f32[rows] = scale(x) {c=2.0}",
                                  "b.forward@1: t = scale(s) {c=3.0}", "b.forward@2: y = add(t, x1)"}));
    EXPECT_EQ(p.routines[2].part, 2);
}

TEST(PartRoutines, RoutinesWithoutMarksAreLeftAlone) {
    const std::string body = port("x", "value read") + port("y", "value write") +
                             "  x1: f32[rows] = permute(x) {by=1} over tp\n" + "  y = add(x, x1)\n";
    const ir::Program p = parted(routine("forward", body));
    EXPECT_EQ(p.routines.size(), 1u);
    EXPECT_EQ(p.routines[0].part, 0);
}

// The backward stays whole, and reads the frame of each part that saves.
TEST(PartRoutines, FramesAreThoseOfTheParts) {
    const ir::Program p =
        parted(routine("forward", port("x", "value read") + port("y", "value write") +
                                      "  port frame frame write\n    x1: f32[rows] from x1\n    s: f32[rows] from s\n  x1" +
                                      kShift + "  s = scale(x) {c=2.0}\n  y = add(s, x1)\n") +
               routine("backward", "  port frame frame read\n    s: f32[rows] from s\n    x1: f32[rows] from x1\n" +
                                       port("dx", "value write") + "  dx = add(s, x1)\n"));
    const auto frames = [&](const std::string& name) {
        Strings out;
        for (const ir::Port& q : p.routine(name)->ports) {
            if (q.kind == ir::PortKind::Frame) out.push_back(q.name);
        }
        return out;
    };
    EXPECT_EQ(frames("b.forward"), Strings{"frame@0"});
    EXPECT_EQ(frames("b.forward@1"), Strings{"frame@1"});
    EXPECT_EQ(frames("b.backward"), (Strings{"frame@1", "frame@0"}));
}

}  // namespace
}  // namespace lockstep::testing
