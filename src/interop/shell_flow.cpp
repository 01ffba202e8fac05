// Redirections, pipes, conditions that are not known, loops, functions, and processes of their own.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "interop/shell_interpreter.h"

namespace lockstep::interop {

State Interpreter::merged(const State& a, const State& b, const std::string& where, const Text::Why& cause) const {
    return merge(a, b, [&](const std::string& name, Place place) {
        const std::string set =
            place.line > 0 ? fmt::format("is set on {} inside {}", line_of(place), where) : fmt::format("depends on {}", where);
        return because(fmt::format("{} {}, and which way a run takes is not known{}{}", name, set, cause ? ": " : "",
                                   cause ? cause->text : ""),
                       cause);
    });
}

void Interpreter::leave(State s) {
    const bool loop = s.flow == Flow::Breaks || s.flow == Flow::Continues;
    for (auto frame = frames_.rbegin(); frame != frames_.rend(); ++frame) {
        if (frame->is_loop == loop) return frame->left.push_back(std::move(s));
    }
}

void Interpreter::join(State a, State b, const std::string& where, const Text::Why& cause) {
    require_steps(1 + a.variables.size() / 4);
    if (a.flow == b.flow) {
        state_ = merged(a, b, where, cause);
        return;
    }
    // A way that ends the script starts no run.
    if (a.flow == Flow::Exits || (a.flow != Flow::Runs && b.flow == Flow::Runs)) std::swap(a, b);
    if (b.flow != Flow::Exits) leave(std::move(b));
    state_ = std::move(a);
}

void Interpreter::either(const std::string& where, const Text::Why& cause, const std::function<void()>& a,
                         const std::function<void()>& b) {
    const State before = state_;
    maybe_.push_back(because(fmt::format("{}{}{}", where, cause ? ": " : "", cause ? cause->text : ""), cause));
    a();
    State after_a = std::move(state_);
    state_ = before;
    b();
    maybe_.pop_back();
    join(std::move(after_a), std::move(state_), where, cause);
}

void Interpreter::repeat_unknown(const std::string& where, const Text::Why& cause, const std::function<void()>& body) {
    const bool discarded = discards_;
    constexpr int kMost = 6;
    discards_ = true;
    for (int round = 0;; ++round) {
        const State before = state_;
        body();
        ends_loop(where);
        const bool ended = !runs();
        const State after = std::move(state_);
        state_ = before;
        if (ended && after.flow == Flow::Exits) break;
        State either = after;
        either.flow = Flow::Runs;
        state_ = merged(before, either, where, cause);
        const bool same =
            std::equal(state_.variables.begin(), state_.variables.end(), before.variables.begin(), before.variables.end(),
                       [](const auto& x, const auto& y) { return x.first == y.first && *x.second == *y.second; });
        if (same) break;
        if (round == kMost) {
            forget_variables(where);
            break;
        }
    }
    discards_ = discarded;
    maybe_.push_back(because(fmt::format("{}{}{}", where, cause ? ": " : "", cause ? cause->text : ""), cause));
    const State before = state_;
    body();
    ends_loop(where);
    maybe_.pop_back();
    join(before, std::move(state_), where, cause);
}

// After a pass of a loop's body: is it the last?
bool Interpreter::ends_loop(const std::string& where) {
    if (state_.flow == Flow::Continues && state_.levels <= 1) state_.flow = Flow::Runs;
    std::vector<State> left;
    std::swap(left, frames_.back().left);
    for (State& s : left) {
        if (s.flow == Flow::Continues && s.levels <= 1) {
            s.flow = Flow::Runs;
            join(state_, std::move(s), where, nullptr);
        } else {
            frames_.back().left.push_back(std::move(s));
        }
    }
    if (state_.flow == Flow::Continues || state_.flow == Flow::Breaks) {
        if (--state_.levels <= 0) state_.flow = Flow::Runs;
        return true;
    }
    return !runs();
}

void Interpreter::end_loop(const std::string& where) {
    std::vector<State> left;
    std::swap(left, frames_.back().left);
    frames_.pop_back();
    for (State& s : left) {
        if (--s.levels <= 0) s.flow = Flow::Runs;
        join(state_, std::move(s), where, nullptr);
    }
}

void Interpreter::end_frame(const std::string& where) {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (state_.flow == Flow::Returns) state_.flow = Flow::Runs;
    for (State& s : frame.left) {
        s.flow = Flow::Runs;
        join(state_, std::move(s), where, nullptr);
    }
    for (const auto& [name, before] : frame.locals) {
        if (before) state_.variables[name] = before;
        else state_.variables.erase(name);
    }
}

void Interpreter::call(const Node& function, const Words& words) {
    const Words arguments = state_.arguments;
    const bool had_arguments = state_.has_arguments;
    const Text::Why why = state_.arguments_why;
    Words given(words.begin() + 1, words.end());
    // "$@" of a script whose arguments are not known stands for none.
    std::erase_if(given, [](const Text& t) { return t.is_unset_or_empty() && (t.chars() == "$@" || t.chars() == "$*"); });
    const bool has_all = given.size() + 1 == words.size();
    take_arguments(std::move(given), words[0].place());
    state_.has_arguments = has_all;
    frames_.push_back({false, {}, {}});
    run(*function.parts.front());
    end_frame(fmt::format("the function of {}", line_of(function.place)));
    state_.arguments = arguments, state_.has_arguments = had_arguments, state_.arguments_why = why;
}

Text Interpreter::kept_of(const std::function<void()>& body) {
    const size_t level = state_.kept.size();
    const Sink output = sinks_[1];
    state_.kept.emplace_back();
    sinks_[1] = level;
    body();
    sinks_[1] = output;
    state_.kept.resize(level + 1);  // a state that left from further inside has more
    Text made = std::move(state_.kept.back());
    state_.kept.pop_back();
    return made;
}

void Interpreter::redirect(const Redirection& r, std::vector<OutputFile>& files) {
    if (r.op == "<&" || r.op == "<>") return;
    if (r.op == "<<") {
        input_ = r.expands ? document(r.target) : r.target;
        return;
    }
    const Text name = joined(r.target);
    if (r.op == "<<<") {
        input_ = name;
        input_->add('\n', r.target.place());
        return;
    }
    std::string to = name.chars();
    if (r.op == "<") {
        if (to != "/dev/stdin") input_ = file_text(name);
        return;
    }
    if (to == "/dev/stdout" || to == "/dev/fd/1") to = "1";
    if (to == "/dev/stderr" || to == "/dev/fd/2") to = "2";
    const bool is_digit = to.size() == 1 && std::isdigit(static_cast<unsigned char>(to[0]));
    const bool is_descriptor = to != name.chars() || (r.op == ">&" && (is_digit || to == "-"));
    const bool is_both = r.op.starts_with('&') || (r.op == ">&" && !is_descriptor);
    Sink sink;
    if (!is_descriptor) {
        sink = state_.kept.size();
        files.push_back({name, r.op.ends_with(">>")});
        state_.kept.emplace_back();
    } else if (is_digit) {
        sink = sinks_[static_cast<size_t>(to[0] - '0')];
    }
    if (const auto from = static_cast<size_t>(r.descriptor < 0 ? 1 : r.descriptor); from < sinks_.size()) sinks_[from] = sink;
    if (is_both) sinks_[2] = sink;
}

// Redirections act in their order: of `2>&1 >f`, descriptor 2 writes to what descriptor 1 was.
void Interpreter::run_redirected(const Node& n) {
    const std::optional<Text> input = input_;
    const auto sinks = sinks_;
    const size_t level = state_.kept.size();
    std::vector<OutputFile> files;
    for (const Redirection& r : n.redirections) redirect(r, files);
    run_kind(n);
    state_.kept.resize(level + files.size());
    const std::vector<Text> made(state_.kept.begin() + static_cast<std::ptrdiff_t>(level), state_.kept.end());
    state_.kept.resize(level);
    for (size_t i = 0; i < files.size(); ++i) write_file(files[i].name, made[i], files[i].appends);
    input_ = input, sinks_ = sinks;
}

void Interpreter::run_pipeline(const Node& n) {
    if (n.parts.size() == 1) {
        condition(*n.parts.front());
    } else {
        const std::optional<Text> input = input_;
        std::optional<int> failed = 0;  // of the last part that fails
        Text::Why failed_why;
        for (size_t i = 0; i < n.parts.size(); ++i) {
            const auto part = [&] { run_apart(false, [&] { run(*n.parts[i]); }); };
            if (i + 1 < n.parts.size()) input_ = kept_of(part);
            else part();
            if (state_.status != 0) failed = state_.status, failed_why = state_.status_why;
        }
        input_ = input;
        if (state_.fails_in_pipes) set_status(failed, failed_why);
    }
    if (n.is_negated && state_.status) state_.status = *state_.status == 0;
}

// In a process of its own, whose variables nobody sees afterwards.
void Interpreter::run_apart(bool exported_only, const std::function<void()>& body) {
    State before = state_;
    std::vector<Frame> frames;
    std::swap(frames, frames_);
    if (exported_only) {
        std::erase_if(state_.variables, [](const auto& v) { return !v.second->is_exported && !v.first.starts_with("SLURM_"); });
        std::erase_if(state_.functions, [&](const auto& f) { return !state_.exported_functions.contains(f.first); });
        state_.ends_at_failure = state_.fails_in_pipes = state_.refuses_unset = state_.exports_all = false;
    }
    body();
    before.files = state_.files, before.kept = state_.kept;
    before.status = state_.status, before.status_why = state_.status_why;
    state_ = std::move(before);
    std::swap(frames, frames_);
}

void Interpreter::run_while(const Node& n) {
    const std::string where = fmt::format("`{}` on {}", n.is_negated ? "until" : "while", line_of(n.place));
    frames_.push_back({true, {}, {}});
    int status = 0;
    while (true) {
        const State before = state_;
        const std::optional<Text> input = input_;
        condition(*n.parts[0]);
        if (!runs()) break;
        const Verdict v = succeeded();
        if (!v.holds) {
            repeat_unknown(where, v.why, [&] {
                run(*n.parts[1]);
                if (runs()) condition(*n.parts[0]);
            });
            break;
        }
        if (*v.holds == n.is_negated) break;
        run(*n.parts[1]);
        status = state_.status.value_or(0);
        if (ends_loop(where)) break;
        const auto equal = [](const auto& x, const auto& y) { return x.first == y.first && *x.second == *y.second; };
        const bool same = std::equal(state_.variables.begin(), state_.variables.end(), before.variables.begin(),
                                     before.variables.end(), equal) &&
                          state_.files == before.files && state_.arguments == before.arguments &&
                          input_.has_value() == input.has_value() && (!input_ || *input_ == *input) &&
                          state_.folder == before.folder && state_.kept == before.kept;
        if (same) {  // every further pass does the same
            if (frames_.back().left.empty()) {
                state_.flow = Flow::Exits;
                out_.ended = fmt::format("{}, whose loop never ends", line_of(n.place));
            } else {
                state_ = std::move(frames_.back().left.back());
                frames_.back().left.pop_back();
                if (--state_.levels <= 0) state_.flow = Flow::Runs;
            }
            break;
        }
    }
    end_loop(where);
    if (runs()) set_status(status);
}

void Interpreter::run_for(const Node& n) {
    const std::string name = n.words.front().chars();
    const std::string where = fmt::format("`for` on {}", line_of(n.place));
    Words items;
    Text::Why why;
    if (n.in_arguments) {
        items = state_.arguments, why = state_.arguments_why;
    } else {
        for (size_t i = 1; i < n.words.size(); ++i) {
            for (Text& t : fields(n.words[i])) {
                if (t.chars().find_first_of("*?") != std::string::npos && t.is_known())
                    why = because(fmt::format("only a run knows which files {} stands for", t.chars()));
                items.push_back(std::move(t));
            }
        }
        std::erase_if(items, [](const Text& t) { return t.is_unset_or_empty() && (t.chars() == "$@" || t.chars() == "$*"); });
    }
    for (const Text& t : items) {
        if (!why) why = t.why();
    }
    if (n.operators.front() == "select") why = because("it asks whoever runs it");
    frames_.push_back({true, {}, {}});
    if (why) {
        Variable v;
        v.why = because(fmt::format("{} is set by {}: {}", name, where, why->text), why);
        repeat_unknown(where, why, [&] {
            set(name, v, n.place);
            run(*n.parts.front());
        });
    } else {
        set_status(0);
        for (const Text& item : items) {
            set(name, item, n.words.front().place());
            run(*n.parts.front());
            if (ends_loop(where)) break;
        }
    }
    end_loop(where);
}

void Interpreter::run_for_count(const Node& n) {
    const std::string where = fmt::format("`for` on {}", line_of(n.place));
    Text::Why why;
    const auto holds = [&](const Text& t) {
        return t.chars().find_first_not_of(" \t\n") == std::string::npos ? std::optional<int64_t>(1) : number(t, why);
    };
    holds(n.words[0]);
    frames_.push_back({true, {}, {}});
    while (true) {
        const std::optional<int64_t> goes_on = holds(n.words[1]);
        if (!goes_on) {
            repeat_unknown(where, why, [&] {
                run(*n.parts.front());
                if (runs()) holds(n.words[2]);
            });
            break;
        }
        require_steps(1);
        if (*goes_on == 0) break;
        run(*n.parts.front());
        if (ends_loop(where)) break;
        holds(n.words[2]);
    }
    end_loop(where);
}

}  // namespace lockstep::interop
