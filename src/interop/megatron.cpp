#include "interop/megatron.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/text_file.h"
#include "interop/deepspeed.h"
#include "interop/megatron_job.h"

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;

using Command = std::vector<Word>;

bool is_python_file(const Word& w) { return w.text.ends_with(".py"); }

// "pretrain_gpt.py", without its folder.
std::string name_of(const Word& w) { return fs::path(w.text).filename().string(); }

// Where the arguments of the training script begin: behind its name; nothing if the command starts no training.
std::optional<size_t> training_script(const Command& c) {
    const auto script = std::find_if(c.begin(), c.end(), is_python_file);
    if (script == c.end()) return std::nullopt;
    const bool has_arguments = std::any_of(script, c.end(), [](const Word& w) {
        return w.text.starts_with("--num-layers") || w.text.starts_with("--hidden-size") ||
               w.text.starts_with("--micro-batch-size");
    });
    const bool goes_on =
        std::any_of(script, c.end(), [](const Word& w) { return w.text.starts_with("--") || w.text.starts_with("$"); });
    if (!has_arguments && !(goes_on && name_of(*script).starts_with("pretrain_"))) return std::nullopt;
    return static_cast<size_t>(script - c.begin()) + 1;
}

[[noreturn]] void refuse(const std::string& origin, const std::string& what) { throw UserError("recipe.script", origin, what); }

// The command that starts the run, in two parts.
struct Launch {
    Command launcher, arguments;
    std::string folder = {};  // in which it starts
};

// A line of arguments that belongs to no command: the line before did not go on.
void require_whole(const Script& script, size_t launch, const std::string& origin) {
    for (size_t i = launch + 1; i < script.commands.size(); ++i) {
        const Command& c = script.commands[i].words;
        if (!c.empty() && begins_argument(c.front().text))
            refuse(origin,
                   fmt::format(
                       "{}: {} begins a command: end the line before with \\, with nothing behind it, and put no comment between",
                       c.front().where, c.front().text));
    }
}

// What to do where the script does not come to the run without something.
std::string inputs_hint(const std::string& origin, const std::string& asks) {
    return fmt::format("give it: `lockstep recipe --from {} {}`", origin,
                       asks.empty() ? "--script-args \"A B\" --script-env NAME=VALUE" : asks);
}

// Two commands of a script start different runs.
[[noreturn]] void refuse_second(const Script::Command& first, const Script::Command& second, const std::string& origin) {
    const std::string &a = first.words.front().where, &b = second.words.front().where;
    for (const Script::Command* c : {&second, &first}) {
        if (c->maybe.empty()) continue;
        if (c->asks.empty())
            refuse(origin,
                   fmt::format("{}: starts a second run, after the one of {}, and whether it does depends on {}: leave one "
                               "of them in the file",
                               b, a, c->maybe));
        refuse(origin, fmt::format("{}: starts a second run, after the one of {}, and whether it does depends on {}; {}", b, a,
                                   c->maybe, inputs_hint(origin, c->asks)));
    }
    if (a == b)
        for (size_t i = 0; i < std::min(first.words.size(), second.words.size()); ++i) {
            if (first.words[i].text == second.words[i].text) continue;
            refuse(origin, fmt::format("{}: starts several runs, as it is in a loop: one with {}, another with {}: leave one of "
                                       "them in the file",
                                       a, first.words[i].text, second.words[i].text));
        }
    refuse(origin, fmt::format("{}: starts a second run, after the one of {}: leave one of them in the file", b, a));
}

bool is_same(const Script::Command& a, const Script::Command& b) {
    return std::equal(a.words.begin(), a.words.end(), b.words.begin(), b.words.end(),
                      [](const Word& x, const Word& y) { return x.text == y.text; });
}

Launch launch_of(const Script& script, const std::string& origin) {
    std::optional<size_t> found;
    Launch out;
    for (size_t i = 0; i < script.commands.size(); ++i) {
        const Command& c = script.commands[i].words;
        const std::optional<size_t> begin = training_script(c);
        if (!begin || (found && is_same(script.commands[*found], script.commands[i]))) continue;
        if (found) refuse_second(script.commands[*found], script.commands[i], origin);
        found = i;
        const auto split = c.begin() + static_cast<long>(*begin);
        out = {{c.begin(), split}, {split, c.end()}, script.commands[i].folder};
    }
    if (found) {
        require_whole(script, *found, origin);
        return out;
    }
    for (const Script::Command& c : script.commands) {  // a list of arguments, on one line or on several
        const Command& words = c.words;
        if (!words.empty() && begins_argument(words.front().text))
            out.arguments.insert(out.arguments.end(), words.begin(), words.end());
    }
    if (!out.arguments.empty()) return out;
    if (!script.ended.empty())
        refuse(origin, fmt::format("{}: ends on {}, before it starts a run. If it needs arguments or variables, {}", origin,
                                   script.ended, inputs_hint(origin, "")));
    refuse(origin, fmt::format("{}: is a script, and none of its commands starts pretrain_gpt.py with arguments: give the script "
                               "that does, or its arguments as a text file",
                               origin));
}

void refuse_other_models(const Launch& launch) {
    if (launch.launcher.empty()) return;
    const Word& script = launch.launcher.back();
    for (const char* other : {"bert", "t5", "ict", "vision", "retro", "mamba", "hybrid", "vlm", "biencoder", "mimo"}) {
        if (name_of(script) == fmt::format("pretrain_{}.py", other))
            throw UserError("recipe.script", script.text,
                            fmt::format("{}: trains another kind of model than GPT: Lockstep has decoders of one kind of layer",
                                        script.text));
    }
}

// The number behind one of these flags of a launcher: "-n 8", "--nnodes=2".
std::optional<int64_t> number_after(const Command& c, const std::vector<std::string>& flags) {
    for (size_t i = 0; i < c.size(); ++i) {
        const std::string& word = c[i].text;
        const size_t equals = word.find('=');
        if (std::find(flags.begin(), flags.end(), word.substr(0, equals)) == flags.end()) continue;
        const std::string value = equals != std::string::npos ? word.substr(equals + 1) : i + 1 < c.size() ? c[i + 1].text : "";
        if (value.empty() || value.size() > 7 || value.find_first_not_of("0123456789") != std::string::npos)
            return 0;  // not known
        return std::stoll(value);
    }
    return std::nullopt;
}

const std::vector<std::string> kRanksOfNode = {"--nproc_per_node", "--nproc-per-node", "--num_gpus"};
const std::vector<std::string> kNodes = {"--nnodes", "--num_nodes"};

// Ranks that the launcher starts; 0: it does not say all of it.
int64_t world_of(const Command& launcher) {
    const std::optional<int64_t> each = number_after(launcher, kRanksOfNode);
    const std::optional<int64_t> nodes = number_after(launcher, kNodes);
    if (each) return *each * nodes.value_or(1);
    const auto starts_with_word = [&](const char* word) {
        return std::any_of(launcher.begin(), launcher.end(), [&](const Word& w) { return name_of(w) == word; });
    };
    if (starts_with_word("torchrun") || starts_with_word("deepspeed")) return 0;
    if (const auto tasks = number_after(launcher, {"-n", "-np", "--np", "--ntasks"})) return *tasks;
    const std::optional<int64_t> hosts = number_after(launcher, {"-N", "--nodes"});
    const std::optional<int64_t> tasks = number_after(launcher, {"--ntasks-per-node"});
    return hosts && tasks ? *hosts * *tasks : 0;
}

// The flags of a launcher whose number only a run knows: "--nnodes $N".
std::vector<Item> unknown_ranks(const Command& launcher) {
    std::vector<Item> out;
    for (size_t i = 0; i < launcher.size(); ++i) {
        const std::string& word = launcher[i].text;
        for (const std::vector<std::string>* flags : {&kRanksOfNode, &kNodes}) {
            const bool is_flag = std::find(flags->begin(), flags->end(), word.substr(0, word.find('='))) != flags->end();
            if (!is_flag || number_after({launcher.begin() + static_cast<long>(i), launcher.end()}, *flags) != 0) continue;
            const bool is_apart = word.find('=') == std::string::npos && i + 1 < launcher.size();
            out.push_back({is_apart ? word + " " + launcher[i + 1].text : word, launcher[i].where,
                           "how many ranks start is known only to a run: give --ranks N"});
        }
    }
    return out;
}

// The text of the file that --deepspeed_config names: one that the script writes, or one that lies there.
std::string deepspeed_text(const Argument& a, const std::string& name, const Script& script, const Launch& launch,
                           const Arguments& args) {
    const fs::path folder = fs::absolute(args.origin()).parent_path();
    const auto written_at = [&](const fs::path& at) {
        return script.files.find(a.why.empty() ? (at / name).lexically_normal().string() : name + a.id);
    };
    auto written = written_at(launch.folder);
    if (written == script.files.end()) written = written_at(folder);
    if (written != script.files.end()) {
        const Word& file = written->second;
        if (file.why.empty()) return file.text;
        throw UserError("recipe.deepspeed_config", name,
                        fmt::format("{}: {}: the script writes it on {} with a value that is not known: {}; {}", a.where,
                                    a.text(), file.where, file.why, args.remedy(file.asks)));
    }
    std::string reason;
    for (const fs::path& file : {fs::path(name), folder / name}) {
        const TextFile text = read_text_file(file);
        if (text.is_readable()) return text.text;
        reason = text.reason;
    }
    throw UserError(
        "recipe.deepspeed_config", name,
        fmt::format(
            "{}: {}: cannot be read ({}); put the file there, or next to the script. A file that the script makes is there "
            "after a run",
            a.where, a.text(), reason));
}

std::string given_deepspeed_text(const std::string& path) {
    const TextFile text = read_text_file(path);
    if (text.is_readable()) return text.text;
    throw UserError("recipe.deepspeed_config", path,
                    fmt::format("--deepspeed-config {}: cannot be read ({})", path, text.reason));
}

// Under DeepSpeed a step has microbatch x gradient_accumulation_steps x data ranks sequences, whatever the script says.
void require_same_batch(const MegatronJob& job, int64_t accumulated, const Argument* config) {
    const compile::Recipe& recipe = job.reading.recipe;
    const double others = static_cast<double>(recipe.integer("parallelism.tensor_parallel_degree")) *
                          static_cast<double>(recipe.integer("parallelism.pipeline_parallel_degree"));
    const Argument* global = job.args.find({"global-batch-size"});
    if (accumulated == 0 || job.world == 0 || !global) return;
    const double data = static_cast<double>(job.world) / others,
                 micro = static_cast<double>(recipe.integer("training.local_batch_size"));
    if (data * micro * static_cast<double>(accumulated) == static_cast<double>(recipe.integer("training.global_batch_size")))
        return;
    throw UserError(
        "recipe.contradiction", "training.global_batch_size",
        fmt::format("{}: {}: is another number of sequences than the {} that {} makes: gradient_accumulation_steps = {} "
                    "microbatches of {} on {} data ranks: give both the same value",
                    global->where, global->text(), data * micro * static_cast<double>(accumulated), config->text(), accumulated,
                    micro, data));
}

}  // namespace

bool is_megatron(const std::string& text) {
    if (text.starts_with("#!")) return true;
    std::istringstream lines(text);
    bool has_arguments = false;
    for (std::string line; std::getline(lines, line);) {
        const size_t begin = line.find_first_not_of(" \t\r");
        if (begin == std::string::npos || line[begin] == '#') continue;
        const size_t close = line.find(']');
        const bool is_section = line[begin] == '[' && begin + 1 < line.size() &&
                                std::isalpha(static_cast<unsigned char>(line[begin + 1])) && close != std::string::npos;
        if (is_section) return false;
        for (size_t at = line.find("--"); at != std::string::npos; at = line.find("--", at + 2)) {
            const bool apart =
                at == begin || line[at - 1] == ' ' || line[at - 1] == '\t' || line[at - 1] == '(' || line[at - 1] == '"';
            if (apart && begins_argument(line.substr(at, 3))) has_arguments = true;
        }
    }
    return has_arguments;
}

Reading read_megatron(const std::string& text, const std::string& path, const ReadOptions& options) {
    const Script script = read_script(text, path, options.script);
    const Launch launch = launch_of(script, path);
    refuse_other_models(launch);
    Arguments args(launch.arguments, path);
    Reading reading;
    Refusals refusals;
    reading.kind = Reading::Kind::Megatron;
    for (const Word& w : script.unread)
        reading.unmapped.push_back({w.text, w.where, fmt::format("is not read, and may set variables: {}", w.why)});
    MegatronJob job{args, reading, refusals, args.has("deepspeed"), world_of(launch.launcher), {}};
    if (job.world == 0)
        for (Item& item : unknown_ranks(launch.launcher)) reading.unmapped.push_back(std::move(item));
    for (const Argument& a : args.leave_out(options.leave_out)) job.leave_out(a, "is left out, as --leave-out asks");
    const Argument* config = job.take({"deepspeed_config"});
    int64_t accumulated = 0;
    if (config || !options.deepspeed_config.empty()) {
        const bool is_given = !options.deepspeed_config.empty();
        const bool is_written =
            config && config->values.size() == 1 && script.files.contains(config->values.front() + config->id);
        const std::string name = is_given ? options.deepspeed_config : is_written ? config->values.front() : args.text(*config);
        const std::string json = is_given ? given_deepspeed_text(name) : deepspeed_text(*config, name, script, launch, args);
        accumulated = read_deepspeed(json, name, reading, refusals, options, {"optimizer", "scheduler"});
        if (config && is_given) job.no_effect(*config, "--deepspeed-config is read in its place");
        job.deepspeed = true;
    }
    read_megatron_model(job);
    try {
        read_megatron_training(job);
        read_megatron_float8(job);
        read_megatron_layout(job);
    } catch (const UserError&) {  // what no recipe can have comes first
        refuse_megatron_rest(job);
        refusals.require_none(path);
        throw;
    }
    read_megatron_rest(job);
    if (config) require_same_batch(job, accumulated, config);
    refusals.require_none(path);
    return reading;
}

}  // namespace lockstep::interop
