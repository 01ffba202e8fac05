// A recipe asks for a GPU where there is none: one line says why.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "plugins/architectures.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

class CliGpuModule : public ::testing::Test {
protected:
    CliGpuModule() { scratch.write("r.toml", training_recipe(1, "[runtime]\nkernels = \"cuda\"\n")); }
    // With LOCKSTEP_GPU_MODULE.
    void expect(const std::string& module, const std::string& why) const {
        for (const char* command : {"train r.toml --quiet", "check r.toml --quiet"}) {
            const Finished f =
                scratch.shell(fmt::format("LOCKSTEP_GPU_MODULE={} $LOCKSTEP {} >out.txt 2>err.txt", module, command));
            EXPECT_EQ(f.code, 1) << command;
            EXPECT_TRUE(has(f.err, "runtime.kernels = \"cuda\" needs a GPU: " + why)) << f.err;
            EXPECT_TRUE(has(f.err, "runtime.kernels = \"cpu\" needs none [runtime.no_gpu]")) << f.err;
            EXPECT_EQ(lines_of(f.err).size(), 1u) << f.err;
        }
        const Finished version =
            scratch.shell(fmt::format("LOCKSTEP_GPU_MODULE={} $LOCKSTEP --version >out.txt 2>err.txt", module));
        EXPECT_EQ(version.code, 0);
        EXPECT_TRUE(has(version.out, "GPU: none: " + why)) << version.out;
    }
    Scratch scratch;
};

TEST_F(CliGpuModule, IsNotThere) {
    expect("/nowhere/module.so", "LOCKSTEP_GPU_MODULE = /nowhere/module.so: there is no such file");
}

TEST_F(CliGpuModule, IsSomethingElse) {
    scratch.write("text.so", "no library\n");
    expect("text.so", "text.so cannot be opened: ");
    expect(LOCKSTEP_NO_MODULE, LOCKSTEP_NO_MODULE " is no module of Lockstep");
}

TEST_F(CliGpuModule, IsOfAnotherBuild) {
    expect(LOCKSTEP_OTHER_MODULE, LOCKSTEP_OTHER_MODULE " was built from 0.0.1, long ago, and this is 0.1.0, ");
}

TEST(GpuArchitectures, HaveCodeForOneGenerationAndPtxForLaterOnes) {
    using plugins::Compiled;
    const auto found = [](const char* architectures) {
        std::vector<Compiled> all;
        for (const int capability : {75, 80, 86, 89, 90, 100, 120})
            all.push_back(plugins::compiled_for(architectures, capability));
        return all;
    };
    constexpr Compiled kNo = Compiled::No, kYes = Compiled::Yes, kLater = Compiled::AtFirstStart;
    EXPECT_EQ(found("80,90a"), (std::vector{kNo, kYes, kYes, kYes, kYes, kLater, kLater}));
    EXPECT_EQ(found("80,90a-real,100-real,120-real"), (std::vector{kNo, kYes, kYes, kYes, kYes, kYes, kYes}));
    EXPECT_EQ(found("90a"), (std::vector{kNo, kNo, kNo, kNo, kYes, kNo, kNo}));
    EXPECT_EQ(found("86-real,90-virtual"), (std::vector{kNo, kNo, kYes, kYes, kLater, kLater, kLater}));
    EXPECT_EQ(found(""), std::vector(7, kNo));
}

}  // namespace
}  // namespace lockstep::testing
