// Workspaces smaller than a kernel needs: `check` and what runs before `train` must name the op.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/error.h"
#include "check/check.h"
#include "kernels/kernel.h"
#include "planning/refusal.h"
#include "tests/compile/recipes.h"
#include "tests/equivalence/run.h"

namespace lockstep::check_test {
namespace {

// The first op of a processor's kernel that needs more has 64 bytes. Returns the kernel.
std::string shorten_workspace(compile::Compiled& compiled) {
    for (ir::Routine& r : compiled.programs[0].routines) {
        for (ir::Op& op : r.ops) {
            if (!op.kernel.starts_with("cpu.matmul") || op.workspace_bytes <= 64) continue;
            op.workspace_bytes = 64;
            return op.kernel;
        }
    }
    return "";
}

TEST(WorkspaceDamage, IsRefused) {
    const compile::Recipe recipe = testing::small_recipe();
    compile::CompileOptions options;
    options.catalog = kernels::cpu_catalog(1);
    compile::Compiled compiled = compile::compile(recipe, options);
    ASSERT_FALSE(check::prove(compiled.of_ranks(), &options.catalog));
    const std::string kernel = shorten_workspace(compiled);
    ASSERT_FALSE(kernel.empty());
    const auto refusal = check::prove(compiled.of_ranks(), &options.catalog);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_NE(refusal->message.find("the kernel " + kernel + " needs "), std::string::npos) << refusal->message;
    EXPECT_NE(refusal->message.find(" bytes of workspace and has 64"), std::string::npos) << refusal->message;
    EXPECT_THROW(planning::require_runnable(compile::config_of(recipe), options, compiled, {}), InternalError);
}

TEST(WorkspaceDamage, AnUnknownKernelIsRefused) {
    compile::CompileOptions options;
    options.catalog = kernels::cpu_catalog(1);
    compile::Compiled compiled = compile::compile(testing::small_recipe(), options);
    ir::Op& op = compiled.programs[0].routines[0].ops[0];
    op.kernel = "cpu.unknown";
    const auto refusal = check::prove(compiled.of_ranks(), &options.catalog);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_NE(refusal->message.find("has no kernel cpu.unknown for it"), std::string::npos) << refusal->message;
}

}  // namespace
}  // namespace lockstep::check_test
