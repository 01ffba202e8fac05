// The interpreter behind read_script (shell.h). shell_interpreter.cpp runs what the grammar made, shell_expand.cpp makes the
// words of a command, shell_condition.cpp decides conditions, shell_builtins.cpp has the commands of the shell itself.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interop/shell.h"
#include "interop/shell_state.h"

namespace lockstep::interop {

// Something that may hold or not, or of which only a run knows.
struct Verdict {
    std::optional<bool> holds;
    Text::Why why;  // where `holds` is not known
    static Verdict of(bool b) { return {b, nullptr}; }
    static Verdict unknown(Text::Why w) { return {std::nullopt, std::move(w)}; }
};

class Interpreter {
public:
    Interpreter(const std::string& path, const ScriptInputs& inputs, Script& out);
    void run_file(const std::string& text);

private:
    using Words = std::vector<Text>;

    // A loop, a function or a file that is read by `source`: where `break` and `return` lead to. States that left it by a way
    // that is not known wait here for its end.
    struct Frame {
        bool is_loop;
        std::vector<State> left;
        std::map<std::string, std::shared_ptr<const Variable>> locals;  // as they were outside; null: not set
    };

    // shell_interpreter.cpp
    void run(const Node& n);
    void run_kind(const Node& n);
    void run_pipeline(const Node& n);
    void run_and_or(const Node& n);
    void run_if(const Node& n, size_t part);
    void run_while(const Node& n);
    void run_for(const Node& n);
    void run_for_count(const Node& n);
    void run_case(const Node& n, const Text& word, size_t part);
    void run_redirected(const Node& n);
    // Runs both; `where` and `cause` say what decides between them: "`if` on line 3".
    void either(const std::string& where, const Text::Why& cause, const std::function<void()>& a, const std::function<void()>& b);
    // Runs it as often as a run may: once, several times or never.
    void repeat_unknown(const std::string& where, const Text::Why& cause, const std::function<void()>& body);
    State merged(const State& a, const State& b, const std::string& where, const Text::Why& cause) const;
    void join(State a, State b, const std::string& where, const Text::Why& cause);
    void leave(State s);  // its flow leads out of a frame that has not ended
    void condition(const Node& n);
    bool ends_loop(const std::string& where);
    void end_loop(const std::string& where);
    void end_frame(const std::string& where);
    void call(const Node& function, const Words& words);
    void run_simple(const Node& n);
    void run_command(const Words& words, const Words& raw);
    void run_text(const Text& text, const std::string& origin);
    void run_apart(bool exported_only, const std::function<void()>& body);
    bool run_script_file(const Words& words);
    void run_external(const Words& words);
    Word word_of(const Text& t) const;
    static std::string id_of(const Text& t);
    void require_steps(size_t n);
    std::string where_of(Place place) const;  // "pretrain.sh:3"
    std::string line_of(Place place) const;   // "line 3", "line 3 of sizes.env"
    std::string file_of(Place place) const { return files_[static_cast<size_t>(place.file)]; }
    bool runs() const { return state_.flow == Flow::Runs; }
    void set_status(std::optional<int> status, Text::Why why = nullptr) {
        state_.status = status, state_.status_why = std::move(why);
    }
    Verdict succeeded() const;
    static Text::Why because(const std::string& text, const std::string& asks = {}) {
        return std::make_shared<const Reason>(Reason{text, asks, false});
    }
    // The same of what depends on `cause`.
    static Text::Why because(const std::string& text, const Text::Why& cause) { return because(text, cause ? cause->asks : ""); }

    // Variables.
    void set(const std::string& name, const Text& value, Place place);
    void set(const std::string& name, Variable value, Place place);
    void assign(const Text& raw, const Variable& attributes);
    void assign_array(Variable& to, const Text& inside);
    void make_local(const std::string& name);
    void forget_variables(const std::string& why);
    static std::optional<size_t> end_of_assigned(const Text& raw);

    // shell_expand.cpp
    Words fields(const Text& raw);
    Text joined(const Text& raw);
    std::string pattern_of(const Text& raw, Text::Why& why);
    struct Value {
        Words items;
        bool apart = false;  // "${A[@]}": each item is a word of its own
    };
    class Fields;
    void expand(const Text& raw, Fields& out);
    // False: it holds nothing but "$@" of no items, which is no word.
    bool expand_quoted(const Text& raw, size_t begin, size_t end, Fields& out, bool in_document);
    Value expansion(const Text& raw, size_t begin, size_t end);
    Value braces(const Text& raw, size_t begin, size_t end);
    Value changed(const std::string& name, Value value, const Text& raw, size_t at, size_t end, const Text& written);
    Value parameter(const std::string& name, Place place, const std::string& written);
    Value element(const std::string& name, const Text& subscript, Place place, const std::string& written);
    Text substituted(const Text& commands, Place place);
    Text document(const Text& body);
    Text::Why why_unset(const std::string& name) const;
    std::optional<int64_t> number(const Text& expression, Text::Why& why);
    std::vector<Text> braced(const Text& raw);

    // shell_condition.cpp
    Verdict test(const Words& words);
    enum class TestKind { Single, Double };  // [ ], [[ ]]
    Verdict test_expression(const Words& words, size_t& at, TestKind kind, int depth);
    Verdict test_one(const Words& words);
    Verdict double_test_one(const Words& raw);
    Verdict compare(const Text& a, const std::string& op, const Text& b);
    Verdict is_file(const std::string& op, const Text& path) const;

    // shell_builtins.cpp. False: there is no such command.
    bool builtin(const std::string& name, const Words& words, const Words& raw);
    bool declaration(const std::string& name, const Words& raw);
    void set_options(const Words& words);
    void unset(const Words& words);
    void read_input(const Words& words);
    void getopts(const Words& words);
    void source(const Words& words);
    void evaluate_words(const Words& words);
    bool program(const std::string& name, const Words& words);
    void print(const Text& t) {
        if (captures_ > 0) state_.output.add(t), characters_ += t.size();
    }
    void echo(const Words& words);
    void print_formatted(const Words& words);
    void change_folder(const Words& words);
    std::optional<Text> file_text(const Text& name, std::string* reason = nullptr) const;
    std::string resolved(const Text& name) const;
    void write_file(const Text& name, const Text& text, bool appends);

    const std::string path_;
    const ScriptInputs& inputs_;
    Script& out_;
    State state_;
    std::vector<Frame> frames_;
    std::vector<std::string> files_;  // by Place::file
    std::vector<Text::Why> maybe_;    // conditions that are not known around the present command
    std::optional<Text> input_;       // of the present command
    size_t steps_ = 0, characters_ = 0;
    int depth_ = 0;
    int captures_ = 0;              // what keeps the output: $(...), a pipe, a file
    int conditions_ = 0;            // around the present command: set -e does not act there
    bool has_substituted_ = false;  // a command in "$(...)" has set the status
    bool discards_ = false;         // commands are not kept: a loop's body runs for what it changes
};

}  // namespace lockstep::interop
