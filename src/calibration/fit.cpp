#include "calibration/fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <memory>
#include <string_view>

#include "base/parallel.h"
#include "planning/plan.h"
#include "sim/simulate.h"

namespace lockstep::calibration {
namespace {

// Deviation of the logarithm of a measured step time that the model is not expected to explain.
constexpr double kNoise = 0.05;
constexpr int kMostRounds = 12;
// Runs of one source have the same software, machine and measuring: this share of what is left of one is left of them all.
constexpr double kSharedBySource = 0.25;

// The most that a constant can be: shares end at 1.
double upper_bound(const FittedConstant& c) {
    constexpr std::string_view kShares[] = {
        "efficiency",        "message_efficiency", "product_efficiency", "bandwidth_efficiency",
        "beside_collective", "of_products",        "unaligned"};
    const std::string name = c.known.key.substr(c.known.key.rfind('.') + 1);
    return std::find(std::begin(kShares), std::end(kShares), name) != std::end(kShares) ? 1 : 1e24;
}

// Planned over measured step times, each run played again with other constants.
class Ratios {
public:
    Ratios(const std::vector<PreparedRun>& runs, const Constants& constants, const std::vector<double>& values)
        : runs_(runs), constants_(constants), replays_(runs.size()) {
        parallel_for(runs.size(), [&](size_t i) {
            const PreparedRun& run = runs[i];
            if (run.is_measured())
                replays_[i] = std::make_unique<sim::Replay>(run.compiled.programs, ir::EntryKind::Train,
                                                            constants.cluster(run.sources, values), run.rank_threads);
        });
    }

    bool has(size_t run) const { return replays_[run] != nullptr; }
    double of(size_t run, const std::vector<double>& values) const {
        const PreparedRun& r = runs_[run];
        const sim::StepTime time = replays_[run]->on(constants_.cluster(r.sources, values));
        return planning::step_s(r.compiled, time) / r.run->step_time_s;
    }

private:
    const std::vector<PreparedRun>& runs_;
    const Constants& constants_;
    std::vector<std::unique_ptr<sim::Replay>> replays_;  // null: not measured
};

std::vector<double> values_of(const Eigen::VectorXd& x) {
    std::vector<double> out;
    for (const double v : x) out.push_back(std::exp(v));
    return out;
}

// What runs ask of the logarithms x of the constants: a row for each run, in the order of the runs.
class Problem {
public:
    Problem(const std::vector<PreparedRun>& runs, const Constants& constants, const Ratios& ratios, const std::vector<bool>& used)
        : runs_(runs), constants_(constants), ratios_(ratios), weights_(runs.size(), 0) {
        std::map<std::string, int64_t> count;  // by source
        for (size_t i = 0; i < runs.size(); ++i) {
            if (used[i] && ratios.has(i)) ++count[runs[i].run->source];
        }
        // n runs that have a share in common tell as much as n / (1 + (n - 1) share) that have none (Kish's design effect).
        for (size_t i = 0; i < runs.size(); ++i) {
            if (used[i] && ratios.has(i))
                weights_[i] = 1 / (1 + (static_cast<double>(count[runs[i].run->source]) - 1) * kSharedBySource);
        }
    }

    // Of a run that does not count: 0.
    double weight(Eigen::Index row) const { return weights_[static_cast<size_t>(row)]; }
    const std::vector<int>& constants_of(size_t row) const { return constants_.of(runs_[row].sources); }

    Eigen::VectorXd residuals(const Eigen::VectorXd& x) const {
        Eigen::VectorXd out = Eigen::VectorXd::Zero(std::ssize(weights_));
        const std::vector<double> values = values_of(x);
        parallel_for(weights_.size(), [&](size_t i) {
            if (weights_[i] > 0) out[static_cast<Eigen::Index>(i)] = residual(i, values);
        });
        return out;
    }
    Eigen::MatrixXd slopes(const Eigen::VectorXd& x, const Eigen::VectorXd& at) const {
        Eigen::MatrixXd out = Eigen::MatrixXd::Zero(std::ssize(weights_), x.size());
        parallel_for(weights_.size(), [&](size_t i) {
            if (weights_[i] == 0) return;
            for (const int k : constants_of(i)) {
                Eigen::VectorXd moved = x;
                const double step = std::exp(moved[k]) * 1.02 > upper_bound(constants_[static_cast<size_t>(k)]) ? -0.02 : 0.02;
                moved[k] += step;
                const auto row = static_cast<Eigen::Index>(i);
                out(row, k) = (residual(i, values_of(moved)) - at[row]) / step;
            }
        });
        return out;
    }

    // Of residuals and what was known before.
    double cost(const Eigen::VectorXd& r, const Eigen::VectorXd& x) const {
        double sum = 0;
        for (Eigen::Index i = 0; i < r.size(); ++i) sum += weight(i) * 2 * (std::sqrt(1 + r[i] * r[i]) - 1);
        for (Eigen::Index k = 0; k < x.size(); ++k) sum += std::pow(pull(x, k), 2);
        return sum;
    }
    double pull(const Eigen::VectorXd& x, Eigen::Index k) const {
        const sim::Constant& c = constants_[static_cast<size_t>(k)].known;
        return (x[k] - std::log(c.prior)) / c.spread;
    }
    double spread(Eigen::Index k) const { return constants_[static_cast<size_t>(k)].known.spread; }

    Eigen::VectorXd bounded(Eigen::VectorXd x) const {
        for (Eigen::Index k = 0; k < x.size(); ++k)
            x[k] = std::min(x[k], std::log(upper_bound(constants_[static_cast<size_t>(k)])));
        return x;
    }

private:
    double residual(size_t row, const std::vector<double>& values) const { return std::log(ratios_.of(row, values)) / kNoise; }

    const std::vector<PreparedRun>& runs_;
    const Constants& constants_;
    const Ratios& ratios_;
    std::vector<double> weights_;  // by run
};

// The normal equations of the reweighted problem.
struct Normal {
    Eigen::MatrixXd matrix;
    Eigen::VectorXd gradient;
};
Normal normal(const Problem& problem, const Eigen::VectorXd& x, const Eigen::VectorXd& r, const Eigen::MatrixXd& slopes) {
    Eigen::VectorXd weights = (1 + r.array().square()).sqrt().inverse();
    for (Eigen::Index i = 0; i < r.size(); ++i) weights[i] *= problem.weight(i);
    Normal n{slopes.transpose() * weights.asDiagonal() * slopes, slopes.transpose() * weights.asDiagonal() * r};
    for (Eigen::Index k = 0; k < x.size(); ++k) {
        n.matrix(k, k) += 1 / (problem.spread(k) * problem.spread(k));
        n.gradient[k] += problem.pull(x, k) / problem.spread(k);
    }
    return n;
}

// Residuals and slopes of all measured runs at one place.
struct Local {
    Eigen::VectorXd x, residuals;
    Eigen::MatrixXd slopes;
};

// Levenberg-Marquardt from `at` on. Slopes are taken anew only where those of an earlier place lead no further.
Local solve(const Problem& problem, Local at, const std::function<void(int, double)>& progress) {
    double cost = problem.cost(at.residuals, at.x), damping = 1e-3;
    bool are_fresh = true;
    for (int round = 0; round < kMostRounds; ++round) {
        if (progress) progress(round, cost);
        const Normal n = normal(problem, at.x, at.residuals, at.slopes);
        const double before = cost;
        for (int tries = 0; tries < (are_fresh ? 6 : 1); ++tries, damping *= 10) {
            Eigen::MatrixXd damped = n.matrix;
            damped.diagonal() *= 1 + damping;
            const Eigen::VectorXd next = problem.bounded(at.x - damped.ldlt().solve(n.gradient).cwiseMax(-1).cwiseMin(1));
            const Eigen::VectorXd there = problem.residuals(next);
            if (const double c = problem.cost(there, next); c < cost) {
                at.x = next, at.residuals = there, cost = c, damping = std::max(damping / 30, 1e-6);
                break;
            }
        }
        const bool leads_on = before - cost >= 1e-3 * before;
        if (!leads_on && are_fresh) break;
        if (!leads_on) at.slopes = problem.slopes(at.x, at.residuals);
        are_fresh = !leads_on;
    }
    if (!are_fresh) at.slopes = problem.slopes(at.x, at.residuals);
    return at;
}

}  // namespace

struct Fitting::Impl {
    const std::vector<PreparedRun>& runs;
    const Constants& constants;
    const Ratios ratios;
    Local begin;
};

Fitting::Fitting(const std::vector<PreparedRun>& runs, const Constants& constants, const std::vector<double>& begin)
    : impl_(new Impl{runs, constants, Ratios(runs, constants, begin), {}}) {
    const Problem problem(runs, constants, impl_->ratios, std::vector<bool>(runs.size(), true));
    Local& at = impl_->begin;
    at.x = Eigen::VectorXd(std::ssize(begin));
    for (size_t k = 0; k < begin.size(); ++k) at.x[static_cast<Eigen::Index>(k)] = std::log(begin[k]);
    at.x = problem.bounded(at.x);
    at.residuals = problem.residuals(at.x);
    at.slopes = problem.slopes(at.x, at.residuals);
}

Fitting::~Fitting() = default;

Fit Fitting::fit(const std::vector<bool>& used, const std::function<void(int, double)>& progress) const {
    const Problem problem(impl_->runs, impl_->constants, impl_->ratios, used);
    const Local at = solve(problem, impl_->begin, progress);
    Fit out;
    out.values = values_of(at.x);
    const Normal n = normal(problem, at.x, at.residuals, at.slopes);
    const Eigen::MatrixXd spread = n.matrix.ldlt().solve(Eigen::MatrixXd::Identity(at.x.size(), at.x.size()));
    out.runs.assign(out.values.size(), 0);
    for (size_t i = 0; i < impl_->runs.size(); ++i) {
        if (problem.weight(static_cast<Eigen::Index>(i)) == 0) continue;
        for (const int k : problem.constants_of(i)) ++out.runs[static_cast<size_t>(k)];
    }
    for (Eigen::Index k = 0; k < at.x.size(); ++k) {
        const double deviation = std::sqrt(std::max(spread(k, k), 0.0));
        out.low.push_back(std::exp(at.x[k] - deviation)), out.high.push_back(std::exp(at.x[k] + deviation));
    }
    return out;
}

std::vector<double> Fitting::ratios(const std::vector<double>& values) const {
    std::vector<double> out(impl_->runs.size());
    parallel_for(out.size(), [&](size_t i) {
        if (impl_->ratios.has(i)) out[i] = impl_->ratios.of(i, values);
    });
    return out;
}

std::vector<double> Fit::spreads() const {
    std::vector<double> out;
    for (size_t k = 0; k < values.size(); ++k) out.push_back(std::log(high[k] / low[k]) / 2);
    return out;
}

std::vector<double> ratios(const std::vector<PreparedRun>& runs, const Constants& constants, const std::vector<double>& values) {
    std::vector<double> out(runs.size());
    parallel_for(runs.size(), [&](size_t i) {
        if (runs[i].is_measured())
            out[i] = step_s(runs[i], constants.cluster(runs[i].sources, values)) / runs[i].run->step_time_s;
    });
    return out;
}

}  // namespace lockstep::calibration
