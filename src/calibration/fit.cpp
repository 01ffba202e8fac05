#include "calibration/fit.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <string_view>

#include "base/parallel.h"

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

class Problem {
public:
    Problem(const std::vector<PreparedRun>& runs, const std::vector<bool>& used, const Constants& constants)
        : runs_(runs), constants_(constants) {
        std::map<std::string, int64_t> count;  // by source
        for (size_t i = 0; i < runs.size(); ++i) {
            if (used[i] && runs[i].is_measured()) rows_.push_back(i), ++count[runs[i].run->source];
        }
        // n runs that have a share in common tell as much as n / (1 + (n - 1) share) that have none (Kish's design effect).
        for (const size_t i : rows_)
            weights_.push_back(1 / (1 + (static_cast<double>(count[runs[i].run->source]) - 1) * kSharedBySource));
    }

    size_t rows() const { return rows_.size(); }
    double weight(Eigen::Index row) const { return weights_[static_cast<size_t>(row)]; }
    const std::vector<int>& constants_of(size_t row) const { return constants_.of(runs_[rows_[row]].sources); }

    double residual(size_t row, const std::vector<double>& values) const {
        const PreparedRun& run = runs_[rows_[row]];
        return std::log(step_s(run, constants_.cluster(run.sources, values)) / run.run->step_time_s) / kNoise;
    }
    Eigen::VectorXd residuals(const Eigen::VectorXd& x) const {
        Eigen::VectorXd out(static_cast<Eigen::Index>(rows()));
        const std::vector<double> values = values_of(x);
        parallel_for(rows(), [&](size_t i) { out[static_cast<Eigen::Index>(i)] = residual(i, values); });
        return out;
    }
    Eigen::MatrixXd slopes(const Eigen::VectorXd& x, const Eigen::VectorXd& at) const {
        Eigen::MatrixXd out = Eigen::MatrixXd::Zero(static_cast<Eigen::Index>(rows()), x.size());
        parallel_for(rows(), [&](size_t i) {
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
    static std::vector<double> values_of(const Eigen::VectorXd& x) {
        std::vector<double> out;
        for (const double v : x) out.push_back(std::exp(v));
        return out;
    }

private:
    const std::vector<PreparedRun>& runs_;
    const Constants& constants_;
    std::vector<size_t> rows_;     // of runs that count
    std::vector<double> weights_;  // of each of them
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

}  // namespace

Fit fit(const std::vector<PreparedRun>& runs, const std::vector<bool>& used, const Constants& constants,
        const std::vector<double>& begin, const std::function<void(int, double)>& progress) {
    const Problem problem(runs, used, constants);
    Eigen::VectorXd x(static_cast<Eigen::Index>(begin.size()));
    for (size_t k = 0; k < begin.size(); ++k) x[static_cast<Eigen::Index>(k)] = std::log(begin[k]);
    x = problem.bounded(x);
    Eigen::VectorXd r = problem.residuals(x);
    Eigen::MatrixXd slopes = problem.slopes(x, r);
    double cost = problem.cost(r, x), damping = 1e-3;
    for (int round = 0; round < kMostRounds; ++round) {
        if (progress) progress(round, cost);
        const Normal n = normal(problem, x, r, slopes);
        const double before = cost;
        for (int tries = 0; tries < 6; ++tries, damping *= 10) {
            Eigen::MatrixXd damped = n.matrix;
            damped.diagonal() *= 1 + damping;
            const Eigen::VectorXd next = problem.bounded(x - damped.ldlt().solve(n.gradient).cwiseMax(-1).cwiseMin(1));
            const Eigen::VectorXd there = problem.residuals(next);
            if (const double c = problem.cost(there, next); c < cost) {
                x = next, r = there, cost = c, damping = std::max(damping / 30, 1e-6);
                break;
            }
        }
        if (before - cost < 1e-3 * before) break;
        slopes = problem.slopes(x, r);
    }
    Fit out;
    out.values = Problem::values_of(x);
    const Normal n = normal(problem, x, r, slopes);
    const Eigen::MatrixXd spread = n.matrix.ldlt().solve(Eigen::MatrixXd::Identity(x.size(), x.size()));
    out.runs.assign(begin.size(), 0);
    for (size_t i = 0; i < problem.rows(); ++i) {
        for (const int k : problem.constants_of(i)) ++out.runs[static_cast<size_t>(k)];
    }
    for (Eigen::Index k = 0; k < x.size(); ++k) {
        const double deviation = std::sqrt(std::max(spread(k, k), 0.0));
        out.low.push_back(std::exp(x[k] - deviation)), out.high.push_back(std::exp(x[k] + deviation));
    }
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
