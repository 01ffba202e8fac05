// runtime.instruction_set: which copies of the cpu kernels a command uses.
#include "kernels/cpu/isa.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/cli/command.h"

namespace lockstep::testing {
namespace {

using kernels::cpu::Isa;

TEST(CliInstructionSet, IsTheOneThatIsAskedFor) {
    Scratch s;
    s.write("r.toml", training_recipe(2));
    const auto norm_of = [&](const std::string& run) {
        return s.objects(run + "/metrics.jsonl").at(1).at("grad_norm").get<double>();
    };
    std::map<std::string, double> norms;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        const std::string name = kernels::cpu::name(isa);
        const Finished f = s.lockstep(fmt::format("train r.toml --job.dump_folder {0} --runtime.instruction_set {0}", name));
        if (isa > kernels::cpu::detect_isa()) {
            EXPECT_EQ(f.code, 1);
            EXPECT_TRUE(has(f.err, fmt::format("runtime.instruction_set = \"{}\": the best one of this processor is ", name)));
            EXPECT_TRUE(has(f.err, "[recipe.instruction_set]")) << f.err;
            continue;
        }
        ASSERT_EQ(f.code, 0) << f.err;
        norms[name] = norm_of(name);
    }
    for (const auto& [name, norm] : norms) {
        EXPECT_NEAR(norm, norms["baseline"], 1e-5 * norm) << name;
        EXPECT_EQ(norm == norms["baseline"], name == "baseline") << name << " sums in another order";
    }
    const std::string best = kernels::cpu::name(kernels::cpu::detect_isa());
    ASSERT_EQ(s.lockstep("train r.toml --job.dump_folder auto").code, 0);
    EXPECT_EQ(norm_of("auto"), norms[best]);
}

}  // namespace
}  // namespace lockstep::testing
