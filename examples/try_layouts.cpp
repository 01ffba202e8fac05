// Plans a recipe with several degrees of tensor parallelism, then trains the fastest layout for a few steps.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) try {
    if (argc < 3) return std::puts("usage: try_layouts RECIPE CLUSTER"), 2;
    const std::string key = "parallelism.tensor_parallel_degree", cluster = argv[2];
    std::string best;
    double best_s = 0;
    for (const std::string degree : {"1", "2"}) {
        lockstep::Recipe recipe = lockstep::Recipe::read(argv[1], {{key, degree}});
        const lockstep::Check check = recipe.check(cluster);
        if (!check.fits) {
            std::printf("%s = %s: %s\n", key.c_str(), degree.c_str(), check.refusal->what());
            continue;
        }
        const lockstep::Plan plan = recipe.plan(cluster);
        std::printf("%s = %s: %.3g s a step, MFU %.1f %%\n", key.c_str(), degree.c_str(), plan.step_time_s, 100 * plan.mfu);
        if (best.empty() || plan.step_time_s < best_s) best = degree, best_s = plan.step_time_s;
    }
    if (best.empty()) return 1;
    const auto print = [](const lockstep::Step& s) {
        std::printf("step %ld: loss %.4f\n", static_cast<long>(s.step), s.loss);
        return s.step < 5;  // false stops the run, with a checkpoint
    };
    const lockstep::TrainResult result = lockstep::train(lockstep::Recipe::read(argv[1], {{key, best}}), {.on_step = print});
    std::printf("stopped: %s, %s\n", result.stopped.c_str(), result.checkpoint.c_str());
    std::printf("%zu tensors\n", lockstep::Checkpoint(result.checkpoint).names().size());
} catch (const lockstep::UserError& e) {
    std::fprintf(stderr, "%s [%s]\n", e.what(), e.id().c_str());
    return 1;
}
