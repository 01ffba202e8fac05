// The constants that runs may fit: numbers of cluster files that a [[constants]] table names. A constant is of a file, so of a
// chip, a network or a stack: never of a run, a model or a source.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "sim/cluster.h"

namespace lockstep::calibration {

struct FittedConstant {
    std::string file;  // that holds it
    sim::Constant known;
    double value = 0;

    bool is_fitted() const { return known.low > 0 && known.high > known.low; }
};

// The constants of machines, each of one file and counted once.
class Constants {
public:
    using Sources = std::vector<sim::Source>;  // of one machine: its files
    // UserError cluster.constant: a file names a constant that it does not set.
    void add(const Sources& sources);

    size_t size() const { return all_.size(); }
    const FittedConstant& operator[](size_t i) const { return all_[i]; }
    // Those on which a machine that was added depends, by number.
    const std::vector<int>& of(const Sources& sources) const { return of_files_.at(key_of(sources)); }
    // The machine with these values, one for each constant.
    sim::Cluster cluster(const Sources& sources, const std::vector<double>& values) const;

    std::vector<double> values() const;
    // What is not known of each: the deviation of its logarithm, by the runs that fitted it, else before any run.
    std::vector<double> spreads() const;

private:
    static std::string key_of(const Sources& sources);

    std::vector<FittedConstant> all_;
    std::map<std::string, std::vector<int>> of_files_;  // by the paths of a machine's files
};

// The text of the cluster file at `path` with these values and intervals of its constants; all else stays as it is.
std::string with_constants(const std::string& text, const std::string& path, const std::vector<FittedConstant>& constants);
// The text of a file of a machine's part with its numbers of runs and sources; all else stays as it is.
std::string with_runs(const std::string& text, const sim::Part& part);

}  // namespace lockstep::calibration
