#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/number_flags.h"
#include "job/job.h"
#include "kernels/cpu/isa.h"
#include "runtime/capture.h"

namespace lockstep::cli {
namespace {

struct DiffArgs {
    planning::RecipeArgs recipe;
    std::string other;
    int64_t steps = 1;
    double tolerance = -1;  // -1: by element type
    bool json = false;
};

// One recipe taking the same steps as the other.
struct Side {
    explicit Side(const planning::RecipeArgs& args)
        : job(job::start_job(planning::announced(args).recipe, nullptr, {}, variable(comm::islands::kInvitation))),
          capture(job->trainer->ranks(), [](const std::string&) { return true; }) {}
    std::unique_ptr<job::Job> job;
    runtime::Capture capture;
    kernels::cpu::Isa isa = kernels::cpu::isa();  // of a process: the other side may have changed it
};

// Largest difference relative to the tensor's scale.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
    double scale = 1e-300, most = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) {
            if (std::isfinite(a[i])) scale = std::max(scale, std::abs(a[i]));
            continue;
        }
        scale = std::max(scale, std::abs(a[i]));
        most = std::max(most, std::abs(a[i] - b[i]));
        if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return INFINITY;
    }
    return most / scale;
}

int diff(const DiffArgs& args) {
    planning::RecipeArgs other_args = args.recipe;
    other_args.path = args.other;
    Side a(args.recipe), b(other_args);
    if (a.isa != b.isa)
        throw UserError("diff.instruction_set", "runtime.instruction_set",
                        fmt::format("{} runs with {} kernels, {} with {}: both run in one process, so set "
                                    "runtime.instruction_set to the same in both",
                                    args.recipe.path, kernels::cpu::name(a.isa), args.other, kernels::cpu::name(b.isa)));
    const compile::Layout &la = a.job->compiled.layout, &lb = b.job->compiled.layout;
    if (la.global_batch != lb.global_batch || la.seq_len != lb.seq_len) {
        throw UserError("diff.batch", "training.global_batch_size",
                        fmt::format("a step of {} has {} sequences of {} tokens, a step of {} has {} of {}: steps must be equal; "
                                    "set training.global_batch_size in both",
                                    args.recipe.path, la.global_batch, la.seq_len, args.other, lb.global_batch, lb.seq_len));
    }
    const auto usual = [](Dtype t) { return t == Dtype::F64 ? 1e-10 : t == Dtype::F32 ? 1e-4 : 5e-2; };
    const double tolerance =
        args.tolerance >= 0 ? args.tolerance : std::max(usual(la.partition.compute), usual(lb.partition.compute));
    nlohmann::ordered_json found;
    int64_t compared = 0;
    double largest = 0;
    for (int64_t step = 1; step <= args.steps && found.empty(); ++step) {
        const runtime::StepResult ra = a.job->trainer->step(), rb = b.job->trainer->step();
        const auto left = a.capture.take(), right = b.capture.take();
        std::vector<const std::pair<const std::string, runtime::Captured>*> order;
        for (const auto& item : left) order.push_back(&item);
        std::sort(order.begin(), order.end(), [](const auto* x, const auto* y) { return x->second.order < y->second.order; });
        for (const auto* item : order) {
            const auto twin = right.find(item->first);
            if (twin == right.end() || twin->second.shape.size() != item->second.shape.size()) continue;
            // The last microbatch may be filled up differently: compare the sequences that count.
            const auto head = [&](const runtime::Captured& t) {
                const int64_t per = t.shape[0] > 0 ? static_cast<int64_t>(t.values.size()) / t.shape[0] : 0;
                return std::vector<double>(
                    t.values.begin(),
                    t.values.begin() + std::min<int64_t>(static_cast<int64_t>(t.values.size()), per * la.global_batch));
            };
            const std::vector<double> x = head(item->second), y = head(twin->second);
            if (x.size() != y.size()) continue;  // padded to different sizes
            ++compared;
            const double d = difference(x, y);
            largest = std::max(largest, d);
            if (d <= tolerance) continue;
            found = {{"step", step}, {"tensor", item->first}, {"difference", d}};
            break;
        }
        const auto scalar = [&](const char* name, double x, double y) {
            const double d = std::abs(x - y) / std::max(1e-300, std::abs(x));
            largest = std::max(largest, d);
            if (found.empty() && !(d <= tolerance)) found = {{"step", step}, {"tensor", name}, {"difference", d}};
        };
        scalar("loss", ra.loss, rb.loss);
        scalar("grad_norm", ra.grad_norm, rb.grad_norm);
    }
    if (args.json) {
        print_json(nlohmann::ordered_json{{"equal", found.empty()},
                                          {"compared", compared},
                                          {"largest_difference", largest},
                                          {"tolerance", tolerance},
                                          {"first", found}});
    } else if (found.empty()) {
        fmt::print("equal: {} tensors over {} steps, largest difference {:.3g} of a tensor's scale (tolerance {:.3g})\n",
                   compared, args.steps, largest, tolerance);
    } else {
        fmt::print("first difference: {} in step {}, by {:.3g} of its scale (tolerance {:.3g}); {} tensors before it are equal\n",
                   found["tensor"].get<std::string>(), found["step"].get<int64_t>(), found["difference"].get<double>(), tolerance,
                   compared - 1);
    }
    return found.empty() ? kDone : kRefused;
}

}  // namespace

Command add_diff(CLI::App& app) {
    const auto args = std::make_shared<DiffArgs>();
    CLI::App* command = app.add_subcommand("diff", "run two recipes and name the first tensor that differs");
    add_recipe_flags(*command, args->recipe);
    command->add_option("other", args->other, "the other recipe")->required();
    command->add_option("--steps", args->steps, "number of steps to run")->check(positive_number());
    command
        ->add_option(
            "--tolerance", args->tolerance,
            "largest allowed difference, relative to the tensor's largest value (default 1e-10 in float64, 1e-4 otherwise)")
        ->check(nonnegative_number());
    command->add_flag("--json", args->json, "one JSON object on standard output");
    command->footer("Example: lockstep diff recipes/demo.toml recipes/one_rank.toml");
    return {.app = command, .run = [args](comm::ProcessGroup&) { return diff(*args); }, .recipe = &args->recipe};
}

}  // namespace lockstep::cli
