// How far plans of runs are from what was measured, in the figures of docs/accuracy.md.
#pragma once

#include <string>
#include <vector>

#include "calibration/prepared_run.h"

namespace lockstep::calibration {

struct Errors {
    int64_t count = 0;
    double median = 0, ninetieth = 0;  // of |planned / measured - 1|
    double bias = 0;                   // median of planned / measured - 1
};
// Of the ratios that are not 0.
Errors errors_of(std::vector<double> ratios);

// Spearman's rank correlation of planned and measured step times, per token and device; 0 for fewer than 3 runs.
double rank_correlation(const std::vector<double>& planned, const std::vector<double>& measured);

// Runs of one source, model, machine, number of devices and batch, of different layouts: a choice.
struct Choice {
    std::string of;            // source and what is trained
    std::vector<size_t> runs;  // by number, three or more
    double loss = 0;           // of the layout that is planned fastest: measured over the best measured, less 1
    double mean = 0;           // the same of the mean over its layouts: what a random pick costs
};
std::vector<Choice> choices_of(const std::vector<PreparedRun>& runs, const std::vector<double>& ratios);

// Planned / measured of a model that knows only each cluster's median FLOP/s.
std::vector<double> constant_utilization(const std::vector<PreparedRun>& runs);

}  // namespace lockstep::calibration
