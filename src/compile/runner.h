// Calls the passes, and nothing else does. It times each, brings its programs into their one canonical form, verifies them and
// says what they changed, as CompileOptions asks. Passes after stop_after do not run.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"

namespace lockstep::compile {

using Programs = std::vector<ir::Program>;  // by pipeline rank

class Runner {
public:
    Runner(const CompileOptions& options, Programs programs) : options_(options), programs_(std::move(programs)) {}

    // A pass that makes another of each program, by itself.
    void operator()(const char* name, const std::function<ir::Program(ir::Program)>& pass);
    // A pass that makes several programs of the one.
    void operator()(const char* name, const std::function<Programs(ir::Program)>& pass);

    // Will the next pass, of this name, run?
    bool reaches(const char* name) const { return !stopped_ && !is_skipped(name); }
    bool has_stopped() const { return stopped_; }
    const ir::Program& whole() const { return programs_[0]; }
    const Programs& programs() const { return programs_; }
    Programs take_programs() { return std::move(programs_); }
    std::vector<PassReport> take_reports() { return std::move(reports_); }

private:
    bool is_skipped(const char* name) const;
    void run(const char* name, const std::function<void()>& pass);
    void verify(const char* name) const;

    const CompileOptions& options_;
    Programs programs_;
    std::vector<PassReport> reports_;
    bool stopped_ = false;
};

}  // namespace lockstep::compile
