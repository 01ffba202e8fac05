#include "planning/hints.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "planning/topology.h"

namespace lockstep::planning {
namespace {

using mesh::Axis;

class Hinter {
public:
    Hinter(const compile::Recipe& opened, const std::string& cluster_file, const Plan& plan,
           const std::function<void(int64_t done)>& progress)
        : opened_(opened), cluster_file_(cluster_file), plan_(plan), config_(compile::config_of(opened)), progress_(progress) {}

    Hints run() {
        const int64_t holders = degree(Axis::dp_shard) * degree(Axis::cp);
        for (const int64_t cp : {1, 2, 4, 8}) {
            if (cp == degree(Axis::cp)) continue;
            if (holders % cp == 0) add(cp, holders / cp);
            else out_.refused.push_back({cp, fmt::format("{} ranks that share parameters are not divisible by it", holders)});
        }
        constexpr int64_t kMost = 1024;
        const auto fits = [](const Hint& h) { return h.step.fits; };
        for (int64_t cp = 2 * degree(Axis::cp); !plan_.fits && std::none_of(out_.hints.begin(), out_.hints.end(), fits);
             cp *= 2) {
            if (cp > kMost || !add(cp, degree(Axis::dp_shard))) break;
        }
        std::stable_sort(out_.hints.begin(), out_.hints.end(),
                         [](const Hint& a, const Hint& b) { return a.context_ranks < b.context_ranks; });
        if (config_.model.converters.empty() && plan_.cluster.costs.flops_per_s.contains(ops::rates_name(Dtype::F8E4M3)))
            out_.float8 = with_float8();
        return std::move(out_);
    }

private:
    int64_t degree(Axis axis) const { return plan_.compiled.layout.mesh.degree(axis); }

    // Adds the fastest form, of those that fit where some do. False: there is none.
    bool add(int64_t cp, int64_t shard) {
        std::optional<Hint> best;
        std::string why;
        const auto is_better = [&](const Hint& h) {
            return !best || std::pair(h.step.fits, -h.step.step_s) > std::pair(best->step.fits, -best->step.step_s);
        };
        for (const auto& [word, method] : words_of(compile::RotateMethod{})) {
            if (cp == 1 && best) break;
            try {
                Hint h = planned(cp, shard, std::string(word));
                if (is_better(h)) best = std::move(h);
            } catch (const UserError& e) {
                if (why.empty()) why = e.what();
            }
            planned_one();
        }
        if (best) out_.hints.push_back(*std::move(best));
        else out_.refused.push_back({cp, why});
        return best.has_value();
    }

    Hint planned(int64_t cp, int64_t shard, const std::string& form) const {
        const compile::Layout& l = plan_.compiled.layout;
        compile::Recipe recipe = opened_;
        const auto set = [&](const char* key, int64_t value) { recipe.set(key, std::to_string(value)); };
        set("cluster.ranks", l.ranks / (degree(Axis::dp_shard) * degree(Axis::cp)) * shard * cp);
        set("training.global_batch_size", l.global_batch);
        set("parallelism.data_parallel_shard_degree", shard);
        set("parallelism.context_parallel_degree", cp);
        recipe.set("parallelism.context_parallel_rotate_method", form);
        set_levels(recipe, cluster_file_, nullptr, true);
        return {other_step(recipe), cp, cp == 1 ? "" : form};
    }

    Float8Hint with_float8() {
        compile::Recipe recipe = opened_;
        recipe.set("model.converters", "float8");
        recipe.set("quantize.linear.float8.enable_fsdp_float8_all_gather", "true");
        Float8Hint out;
        try {
            out.step = other_step(recipe);
        } catch (const UserError& e) {
            out.why = e.what();
        }
        planned_one();
        return out;
    }

    OtherStep other_step(const compile::Recipe& recipe) const {
        const compile::Config other = compile::config_of(recipe);
        const compile::Layout& l = plan_.compiled.layout;
        OtherStep out{step_of(other, machine_of(other, cluster_file_), config_, plan_)};
        const auto cost = [](double step_s, int64_t ranks, int64_t tokens) {
            return step_s * static_cast<double>(ranks) / static_cast<double>(tokens);
        };
        out.time =
            cost(out.step.step_s, out.step.ranks, out.step.tokens) / cost(plan_.step_s(), l.ranks, l.global_batch * l.seq_len) -
            1;
        out.more_bytes = out.step.bytes - plan_.needed.bytes;
        return out;
    }

    void planned_one() {
        if (progress_) progress_(++done_);
    }

    const compile::Recipe& opened_;
    const std::string& cluster_file_;
    const Plan& plan_;
    const compile::Config config_;
    const std::function<void(int64_t done)>& progress_;
    int64_t done_ = 0;
    Hints out_;
};

}  // namespace

Hints hints_of(const compile::Recipe& opened, const std::string& cluster_file, const Plan& plan,
               const std::function<void(int64_t done)>& progress) {
    return Hinter(opened, cluster_file, plan, progress).run();
}

}  // namespace lockstep::planning
