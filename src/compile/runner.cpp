#include "compile/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/parallel.h"
#include "ops/builder.h"
#include "ops/verify.h"

namespace lockstep::compile {
namespace {

void renumber(ir::Program& program) {
    for (ir::Routine& r : program.routines) ops::renumber(r);
}

}  // namespace

void Runner::operator()(const char* name, const std::function<ir::Program(ir::Program)>& pass) {
    run(name, [&] {
        parallel_for(programs_.size(), [&](size_t i) {
            programs_[i] = pass(std::move(programs_[i]));
            renumber(programs_[i]);
        });
    });
}

void Runner::operator()(const char* name, const std::function<Programs(ir::Program)>& pass) {
    run(name, [&] {
        programs_ = pass(std::move(programs_[0]));
        parallel_for(programs_.size(), [&](size_t i) { renumber(programs_[i]); });
    });
}

bool Runner::is_skipped(const char* name) const {
    return std::find(options_.skip.begin(), options_.skip.end(), name) != options_.skip.end();
}

void Runner::run(const char* name, const std::function<void()>& pass) {
    if (stopped_) return;
    PassReport& report = reports_.emplace_back();
    report.name = name;
    report.skipped = is_skipped(name);
    Programs before;
    if (options_.report) before = programs_, report.before = work_of(programs_);
    const auto start = std::chrono::steady_clock::now();
    if (!report.skipped) {
        pass();
        if (options_.verify) verify(name);
    }
    report.time_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    if (options_.report) report.changed = programs_ != before, report.after = work_of(programs_);
    stopped_ = options_.stop_after == name;
}

void Runner::verify(const char* name) const {
    parallel_for(programs_.size(), [&](size_t i) {
        if (const auto violation = ops::verify(programs_[i])) {
            throw InternalError(
                fmt::format("pass {} broke the invariant '{}': {}", name, name_of(violation->invariant), violation->message));
        }
    });
}

}  // namespace lockstep::compile
