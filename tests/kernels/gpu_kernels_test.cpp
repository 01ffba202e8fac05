// Of the module's kernels: what our own ask of a GPU at the shapes of the recipes that come with Lockstep, shared memory and
// threads, against what each compute capability has; and that docs/gpu.md says of each whether a GPU has run it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "base/text_file.h"
#include "compile/compile.h"
#include "kernels/cuda/planned.h"
#include "kernels/gpu/emulator.h"
#include "planning/machine.h"
#include "planning/run_data.h"
#include "planning/topology.h"
#include "tests/kernels/emulated_gpu.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

namespace emulator = kernels::gpu::emulator;

struct GpuLimits {
    int compute_capability;
    unsigned shared_bytes, threads;  // of a block; of a processor
};
// CUDA's programming guide, "Compute Capabilities".
constexpr GpuLimits kLimits[] = {{80, 163 << 10, 2048}, {86, 99 << 10, 1536},   {89, 99 << 10, 1536},
                                 {90, 227 << 10, 2048}, {100, 227 << 10, 2048}, {120, 99 << 10, 1536}};
constexpr unsigned kMostThreadsOfABlock = 1024, kStaticBytes = 1024;  // of which kernels have some beside what a launch asks for

// The launches of this process, which see nothing of it happen.
std::vector<emulator::Launch>& launches() {
    static std::vector<emulator::Launch> all;
    return all;
}
class OnlySeen {
public:
    explicit OnlySeen(unsigned shared_bytes) {
        emulator::set_most_shared_bytes(shared_bytes);
        emulator::set_see([](const emulator::Launch& launch) { launches().push_back(launch); });
        emulator::set_give([](void*, std::function<void()>) {});
    }
    ~OnlySeen() {
        emulator::set_give(nullptr), emulator::set_see(nullptr);
        emulator::set_most_shared_bytes(emulator::kSharedBytes);
    }
};

// Programs for such a GPU; attention by our own kernels, too, where cuDNN would serve it.
std::vector<compile::Compiled> programs_of_recipes(int compute_capability) {
    std::vector<compile::Compiled> all;
    for (const auto& file : std::filesystem::directory_iterator(LOCKSTEP_SOURCE_DIR "/recipes")) {
        compile::Recipe recipe = compile::Recipe::from_file(file.path().string());
        planning::set_levels(recipe, "");
        planning::open_run_data(recipe, planning::MissingData::Assume);
        const compile::Config config = compile::config_of(recipe);
        planning::Machine machine = planning::machine_of(config, "");
        compile::CompileOptions options = std::move(machine.options);
        options.catalog = kernels::cuda::planned_catalog("a test", compute_capability);
        std::erase_if(options.catalog.entries, [](const ops::KernelEntry& e) { return e.kernel.starts_with("cudnn."); });
        options.capacity_bytes = {}, options.verify = false, options.place_buffers = false, options.only_pipeline_rank = 0;
        all.push_back(compile::compile(config, options));
    }
    return all;
}

// Runs the op's kernel on addresses where nothing is.
void run(const mesh::Mesh& mesh, const ir::Routine& routine, const ir::Op& op) {
    const auto kernel = kernels::make_kernel({mesh, routine, op, 0, 1});
    std::vector<void*> addresses;
    for (size_t i = 0; i < op.in.size() + op.out.size(); ++i) addresses.push_back(reinterpret_cast<void*>((i + 1) << 40));
    device::Queue queue(QueueName::Compute);
    kernel->run({addresses.data(), addresses.data() + op.in.size(), true, reinterpret_cast<void*>(uintptr_t{1} << 50), queue});
}

// The largest of each kernel are properties of this test (--gtest_output=json:FILE).
TEST(GpuLaunches, FitEachGpuAtTheShapesOfRecipes) {
    const std::vector<kernels::Registered> none;
    emulated_gpu_catalog(none);  // its kernels can be made
    const std::vector<compile::Compiled> recipes = programs_of_recipes(80);
    for (const GpuLimits& gpu : kLimits) {
        const OnlySeen seen(gpu.shared_bytes);
        std::map<std::string, emulator::Launch> largest;
        for (const compile::Compiled& recipe : recipes) {
            const ir::Program& program = recipe.programs[0];
            for (const ir::Routine& routine : program.routines) {
                for (const ir::Op& op : routine.ops) {
                    if (!op.kernel.starts_with("gpu.")) continue;
                    launches().clear();
                    run(program.mesh, routine, op);
                    for (const emulator::Launch& launch : launches()) {
                        EXPECT_LE(launch.threads, kMostThreadsOfABlock) << op.kernel;
                        EXPECT_LE(launch.shared_bytes + kStaticBytes, gpu.shared_bytes)
                            << op.kernel << " on " << gpu.compute_capability;
                        emulator::Launch& most = largest[op.kernel];
                        most.threads = std::max(most.threads, launch.threads);
                        most.shared_bytes = std::max(most.shared_bytes, launch.shared_bytes);
                    }
                }
            }
        }
        EXPECT_GE(largest.size(), 15U);
        EXPECT_GT(largest["gpu.attention_backward"].shared_bytes, 48U << 10);
        EXPECT_GT(largest["gpu.cross_entropy_gradient"].shared_bytes, 48U << 10);
        for (const auto& [kernel, most] : largest)
            RecordProperty(fmt::format("{} {}", gpu.compute_capability, kernel),
                           fmt::format("{} bytes, {} threads", most.shared_bytes, most.threads));
    }
}

using KernelAndOp = std::pair<std::string, std::string>;

// "Which kernels ran".
TEST(GpuKernelsPage, SaysOfEachKernelWhetherItRan) {
    std::set<KernelAndOp> expected;
    for (const int capability : {80, 90, 100, 120}) {
        for (const ops::KernelEntry& e : kernels::cuda::planned_catalog("a test", capability).entries)
            expected.emplace(e.kernel, e.op);
    }
    const std::string text = read_text_file(LOCKSTEP_SOURCE_DIR "/docs/gpu.md").text;
    const size_t begin = text.find("\n## Which kernels ran\n");
    ASSERT_NE(begin, std::string::npos);
    std::istringstream page(text.substr(begin + 1, text.find("\n## ", begin + 1) - begin));
    const std::regex row(R"(\| `([a-z0-9_]+\.[a-z0-9_]+)` \| (.*) \| (.*) \|)"), op(R"(`([a-z0-9_]+)`)");
    std::set<KernelAndOp> said;
    std::map<std::string, int> words;
    for (std::string line; std::getline(page, line);) {
        std::smatch m;
        if (!std::regex_match(line, m, row)) continue;
        const std::string kernel = m[1], ops = m[2];
        ++words[m[3]];
        for (std::sregex_iterator o(ops.begin(), ops.end(), op), end; o != end; ++o)
            EXPECT_TRUE(said.emplace(kernel, (*o)[1]).second) << kernel << " has " << (*o)[1] << " twice";
    }
    for (const auto& [word, count] : words)
        EXPECT_TRUE(word == "ran" || word == "rewritten" || word == "never") << word << ": " << count << " rows";
    for (const auto& [kernel, of] : expected)
        EXPECT_TRUE(said.contains({kernel, of})) << "docs/gpu.md lacks " << kernel << " for " << of;
    for (const auto& [kernel, of] : said)
        EXPECT_TRUE(expected.contains({kernel, of}))
            << "docs/gpu.md has " << kernel << " for " << of << ", which the module has not";
}

}  // namespace
}  // namespace lockstep::testing
