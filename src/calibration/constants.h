// The constants that runs may fit: numbers of cluster files that a [[constants]] table names. A constant is of a file, so of a
// chip, a network or a stack: never of a run, a model or a source.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "calibration/prepared_run.h"

namespace lockstep::calibration {

struct FittedConstant {
    std::string file;  // that holds it
    sim::Constant known;
    double value = 0;
};

// Of all files of the runs, each once, in the order of the runs.
class Constants {
public:
    explicit Constants(const std::vector<PreparedRun>& runs);

    size_t size() const { return all_.size(); }
    const FittedConstant& operator[](size_t i) const { return all_[i]; }
    // Those on which a run depends, by number.
    const std::vector<int>& of(const PreparedRun& run) const { return of_files_.at(key_of(run)); }
    // The run's cluster with these values, one for each constant.
    sim::Cluster cluster(const PreparedRun& run, const std::vector<double>& values) const;

    std::vector<double> values() const;

private:
    static std::string key_of(const PreparedRun& run);

    std::vector<FittedConstant> all_;
    std::map<std::string, std::vector<int>> of_files_;  // by the paths of a run's files
};

// The number that `key` names in a file's tables: names with dots between; of an array of tables the one whose `ranks`, or one of
// whose `ops`, is the name. Null: there is none.
toml::node* find_number(toml::table& tables, const std::string& key);

// The text of a file with other values and intervals of its constants; all else stays as it is.
std::string with_constants(const std::string& text, const std::vector<FittedConstant>& constants);

}  // namespace lockstep::calibration
