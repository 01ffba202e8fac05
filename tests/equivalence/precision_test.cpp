// What a wrong pass could do to element types: each defect must be refused by `check`, and those that change numbers by more than
// a rounding must show as a difference to one rank.
#include <gtest/gtest.h>

#include "ops/verify.h"
#include "tests/base/plain.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/defects.h"
#include "tests/equivalence/edit.h"

namespace lockstep::testing {
namespace {

// Two data ranks, float32 stored under float64 (sharp), in the given partition.
compile::Recipe recipe(const std::string& preset) {
    compile::Recipe r = plain();
    const std::pair<const char*, const char*> settings[] = {{"model.dim", "12"},
                                                            {"model.n_layers", "2"},
                                                            {"model.n_heads", "2"},
                                                            {"model.n_kv_heads", "2"},
                                                            {"model.head_dim", "4"},
                                                            {"model.ffn_dim", "10"},
                                                            {"model.vocab_size", "17"},
                                                            {"training.seq_len", "6"},
                                                            {"training.local_batch_size", "1"},
                                                            {"training.global_batch_size", "4"},
                                                            {"training.dtype", "float64"},
                                                            {"training.mixed_precision_param", "float32"},
                                                            {"parallelism.data_parallel_shard_degree", "2"},
                                                            {"optimizer.lr", "5e-3"},
                                                            {"lr_scheduler.warmup_steps", "0"}};
    for (const auto& [key, value] : settings) r.set(key, value);
    r.set("partition.preset", preset);
    return r;
}

struct Shown {
    double difference, allowed;
};
Shown run_defect(const compile::Recipe& r, const compile::Compiled& defect) {
    constexpr int kSteps = 3;
    const Outcome one = run(one_rank(r), Backend::Reference, kSteps);
    return {difference(one, run(r, defect, kSteps)), tolerance(r, one, Dtype::F64)};
}

// Edits every op list of the routines of one kind.
void edit_routines(ir::Program& p, ir::RoutineKind kind, const std::function<void(ir::Routine&)>& edit) {
    for (ir::Routine& r : p.routines) {
        if (r.kind == kind) edit(r);
    }
}

TEST(PrecisionDefects, TheSoundProgramIsAcceptedAndTrains) {
    for (const char* preset : {"none", "zero1", "zero2", "zero3"}) {
        const compile::Recipe r = recipe(preset);
        const compile::Compiled sound = compile_recipe(r, Backend::Reference);
        EXPECT_EQ(refusal(sound), "") << preset;
        const Shown shown = run_defect(r, sound);
        EXPECT_LE(shown.difference, shown.allowed) << preset;
        EXPECT_LT(shown.allowed, 1e-4) << preset;
    }
}

// An update whose result an op of its own casts.
compile::Recipe recipe_of_sgd(const std::string& preset) {
    compile::Recipe r = recipe(preset);
    r.set("optimizer.name", "SGD");
    return r;
}

TEST(PrecisionDefects, MasterWeightsThatAreNotUpdated) {
    const compile::Recipe r = recipe_of_sgd("zero1");
    compile::Compiled defect = compile_recipe(r, Backend::Reference);
    edit_routines(defect.programs[0], ir::RoutineKind::Update,
                  [](ir::Routine& u) { std::erase_if(u.ops, [](const ir::Op& op) { return op.kind == "sgd"; }); });
    EXPECT_NE(refusal(defect).find("precision: rank 0: update.embed: "), std::string::npos) << refusal(defect);
    const Shown shown = run_defect(r, defect);
    EXPECT_GT(shown.difference, shown.allowed);
}

TEST(PrecisionDefects, ACopyThatIsCastBeforeTheUpdate) {
    const compile::Recipe r = recipe_of_sgd("zero2");
    compile::Compiled defect = compile_recipe(r, Backend::Reference);
    edit_routines(defect.programs[0], ir::RoutineKind::Update, [](ir::Routine& u) {
        std::stable_partition(u.ops.begin(), u.ops.end(), [](const ir::Op& op) { return op.kind == "cast"; });
    });
    EXPECT_NE(refusal(defect).find("is cast before its update"), std::string::npos) << refusal(defect);
    const Shown shown = run_defect(r, defect);
    EXPECT_GT(shown.difference, shown.allowed);
}

// AdamW writes the master weights, and not those that forward and backward read.
TEST(PrecisionDefects, KeptWeightsThatAreNotWritten) {
    const compile::Recipe r = recipe("none");
    compile::Compiled defect = compile_recipe(r, Backend::Reference);
    int dropped = 0;
    edit_routines(defect.programs[0], ir::RoutineKind::Update, [&](ir::Routine& u) {
        for (ir::Op& op : u.ops) {
            if (op.kind == "adamw" && op.out.size() == 4) op.out.pop_back(), ++dropped;
        }
    });
    EXPECT_GT(dropped, 0);
    EXPECT_NE(refusal(defect), "");
    const Shown shown = run_defect(r, defect);
    EXPECT_GT(shown.difference, shown.allowed);
}

TEST(PrecisionDefects, AnUpdateThatTheForwardNeverSees) {
    const compile::Recipe r = recipe("zero1");
    compile::Compiled defect = compile_recipe(r, Backend::Reference);
    edit_routines(defect.programs[0], ir::RoutineKind::Update,
                  [](ir::Routine& u) { std::erase_if(u.ops, [](const ir::Op& op) { return op.kind == "all_gather"; }); });
    EXPECT_NE(refusal(defect), "");
    const Shown shown = run_defect(r, defect);
    EXPECT_GT(shown.difference, shown.allowed);
}

// A rounding more of every gradient drowns in those of the activations: only `check` sees it.
TEST(PrecisionDefects, GradientsReducedInANarrowerTypeThanAskedFor) {
    for (const char* preset : {"none", "zero1", "zero3"}) {
        compile::Recipe r = recipe(preset);
        r.set("training.dtype", "float32");
        r.set("training.mixed_precision_param", "bfloat16");
        r.set("training.mixed_precision_reduce", "bfloat16");
        compile::Compiled defect = compile_recipe(r, Backend::Cpu);
        EXPECT_EQ(refusal(defect), "");
        for (ir::Unit& u : defect.programs[0].units) u.reduce = Dtype::F32;
        EXPECT_NE(refusal(defect).find("gradients cross ranks as bf16, not f32"), std::string::npos) << refusal(defect);
    }
}

// Before memory is planned: a tensor that changes its size is refused for that reason first.
TEST(PrecisionDefects, SumsAndStatisticsInBfloat16) {
    const ir::Program sound = program_after(
        "partition_parameters", {{"training.mixed_precision_param", "bfloat16"}, {"parallelism.data_parallel_shard_degree", "2"}},
        Backend::Cpu);
    EXPECT_FALSE(ops::verify(sound).has_value());
    const auto narrowed = [&](const std::function<bool(const ir::Routine&, const ir::Tensor&)>& wanted) {
        ir::Program defect = sound;
        for (ir::Routine& routine : defect.routines) {
            for (ir::Tensor& t : routine.tensors) {
                if (wanted(routine, t)) t.dtype = Dtype::BF16;
            }
        }
        const auto violation = ops::verify(defect);
        return violation ? std::string(name_of(violation->invariant)) + ": " + violation->message : "";
    };
    const std::string gradients = narrowed([](const ir::Routine& routine, const ir::Tensor& t) {
        return t.port >= 0 && routine.ports[t.port].kind == ir::PortKind::Gradients;
    });
    EXPECT_NE(gradients.find("adds up in bf16"), std::string::npos) << gradients;
    const std::string maximum =
        narrowed([](const ir::Routine&, const ir::Tensor& t) { return t.name == "m" || t.name.starts_with("m."); });
    EXPECT_NE(maximum.find(" is bf16"), std::string::npos) << maximum;
    const std::string moment = narrowed(
        [](const ir::Routine& routine, const ir::Tensor& t) { return t.port >= 0 && routine.ports[t.port].name == "exp_avg"; });
    EXPECT_NE(moment.find("exp_avg0 is bf16, and exp_avg.embed is f32"), std::string::npos) << moment;
}

}  // namespace
}  // namespace lockstep::testing
