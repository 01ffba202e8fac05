// The interpreter behind read_script (shell.h). shell_interpreter.cpp runs what the grammar made, shell_expand.cpp makes the
// words of a command, shell_condition.cpp decides conditions, shell_builtins.cpp has the commands of the shell itself.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "interop/shell.h"
#include "interop/shell_state.h"

namespace lockstep::interop {

// Something that may hold or not, or that only a run knows.
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
    using Sink = std::optional<size_t>;  // which of State::kept; none: a terminal, or a file that nobody reads

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
    // A file that a command writes; what it writes is kept until the command has ended.
    struct OutputFile {
        Text name;
        bool appends;
    };
    void redirect(const Redirection& r, std::vector<OutputFile>& files);
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
    // What a command hands to another shell: its text, or a file that has it.
    struct ShellCall {
        size_t shell = SIZE_MAX, text = SIZE_MAX, file = SIZE_MAX, arguments = SIZE_MAX;
        bool ends_at_failure = false, from_input = false;
    };
    static ShellCall shell_call(const Words& words);
    bool run_script_file(const Words& words, const ShellCall& call);
    bool run_script_input(const Words& words, const ShellCall& call);
    void export_words(const Words& words);
    void run_started(const Words& words);
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
    // The same of a value that is not empty where the variable is not set.
    static Text::Why of_value(const Text::Why& why) {
        return why && why->is_unset ? std::make_shared<const Reason>(Reason{why->text, why->asks, false}) : why;
    }
    // The same of what depends on `cause`.
    static Text::Why because(const std::string& text, const Text::Why& cause) { return because(text, cause ? cause->asks : ""); }

    // Variables.
    void set(const std::string& name, const Text& value, Place place);
    void set(const std::string& name, Variable value, Place place);
    // `value`: that of NAME=value, where it has been expanded.
    void assign(const Text& raw, const Variable& attributes, const Text* value = nullptr);
    Text value_of_assigned(const Text& raw);
    void assign_array(Variable& to, const Text& inside);
    void make_local(const std::string& name);
    void set_exported(const std::string& name, const std::string& value);
    void take_environment();  // the variables of ScriptInputs
    void forget_variables(const std::string& why);
    static std::optional<size_t> end_of_assigned(const Text& raw);
    std::string separators() const;  // of IFS

    // shell_expand.cpp
    Words fields(const Text& raw);
    Text joined(const Text& raw);
    std::string pattern_of(const Text& raw, Text::Why& why);
    struct Value {
        Words items;
        bool apart = false;            // "${A[@]}": each item is a word of its own
        std::optional<Text> raw = {};  // the word of ${NAME-word}, which is expanded where it is
    };
    class Fields;
    // `splits_blanks`: blanks outside of quotes end words, as in ${NAME-a b}.
    void expand(const Text& raw, Fields& out, bool splits_blanks = false);
    // False: it holds nothing but "$@" of no items, which is no word.
    enum class Quoted { Word, Document, Inner };  // Inner: of "${NAME-word}", whose quotes do nothing
    bool expand_quoted(const Text& raw, size_t begin, size_t end, Fields& out, Quoted kind);
    Value expansion(const Text& raw, size_t begin, size_t end);
    Value braces(const Text& raw, size_t begin, size_t end);
    Value changed(const std::string& name, Value value, const Text& raw, size_t at, size_t end, const Text& written);
    Value parameter(const std::string& name, Place place, const std::string& written);
    Value element(const std::string& name, const Text& subscript, Place place, const std::string& written);
    Text substituted(const Text& commands, Place place);
    Text captured(const Text& commands, Place place);  // with the newlines at its end
    Text document(const Text& body);
    Text::Why why_unset(const std::string& name);
    int line_that_sets(const std::string& name) const;
    void require_set(const std::string& name, const Value& value, Place place);  // under set -u
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
    void print(const Text& t) { print_to(sinks_[1], t); }
    void print_to(Sink sink, const Text& t) {
        if (sink) state_.kept[*sink].add(t), characters_ += t.size();
    }
    // Of a command whose messages are not known either.
    void print_unknown(Place place, const Text::Why& why) {
        print(Text::unknown("$(...)", place, why));
        if (sinks_[2] != sinks_[1]) print_to(sinks_[2], Text::unknown("$(...)", place, why));
    }
    Text kept_of(const std::function<void()>& body);  // what `body` prints
    void echo(const Words& words);
    void print_formatted(const Words& words);
    void change_folder(const Words& words);
    void change_files(const std::string& name, const Words& words);  // cp, mv, ln, rm
    void forget_file(const Text& name, const Text::Why& why);
    std::string path_of(const Text& name) const;
    bool is_removed(const Text& name) const;
    void set_option(const std::string& name, bool on);
    void take_arguments(Words arguments, Place place);  // become $1, $2, ...
    std::optional<Text> file_text(const Text& name, std::string* reason = nullptr) const;
    std::string resolved(const Text& name) const;
    std::string folder() const { return state_.folder.is_known() ? state_.folder.chars() : "/"; }
    void write_file(const Text& name, const Text& text, bool appends);

    const std::string path_;
    std::string text_;  // of the script
    const ScriptInputs& inputs_;
    Script& out_;
    State state_;
    std::vector<Frame> frames_;
    std::vector<std::string> files_;  // by Place::file
    std::vector<std::string> paths_;  // theirs
    std::vector<Text::Why> maybe_;    // conditions that are not known around the present command
    std::optional<Text> input_;       // of the present command
    size_t steps_ = 0, characters_ = 0;
    int depth_ = 0;
    std::array<Sink, 10> sinks_;    // by descriptor
    int conditions_ = 0;            // around the present command: set -e does not act there
    bool may_set_all_ = false;      // a file that the script changes in a way that is not known has been read
    bool has_substituted_ = false;  // a command in "$(...)" has set the status
    bool discards_ = false;         // commands are not kept: a loop's body runs for what it changes
};

}  // namespace lockstep::interop
