// Careless input: rows of commands, exit codes and words, in tests/cli/cases/*.txt. To add cases, add rows to a file or add a
// file; no C++ is needed. A file is one test and has a scratch folder of its own, in which its lines run from top to bottom:
//
//   # a comment
//   sh printf 'steps = 1\n' > bad.toml              a shell command that prepares something; it must succeed
//   1 check bad.toml => outside any [section] | recipe.no_section
//                                                   exit code, arguments of lockstep, and after => what standard output or
//                                                   standard error must hold: all of the texts between | ; a text after ! must be
//                                                   missing
//   0 NO_COLOR=1 check r.toml => fits               the same with variables in the environment
//   both 1 r.toml --training.steps -1 => must be from 0
//                                                   the same of `check` and of `train`
//
// The folder holds r.toml at the start: a tiny model on synthetic data, one step, dump folder out. Arguments are the shell's;
// $LOCKSTEP is the program and $TESTS the folder tests of the source. Of every row this also holds: it ends within 20 seconds; it
// neither crashes nor speaks of an internal error or of an exception of a library; a refusal (exit code 1) ends with an id in
// brackets, and is JSON with --json.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "base/error.h"
#include "compile/recipe.h"
#include "tests/cli/command.h"
#include "tests/paths.h"

namespace lockstep::testing {
namespace {

const std::string kRecipe = "[training]\ndataset = \"synthetic\"\nlocal_batch_size = 1\nseq_len = 8\nsteps = 1\n";

std::string trimmed(const std::string& text) {
    const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

std::vector<std::string> split(const std::string& text, const std::string& by) {
    std::vector<std::string> out;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(by, begin), text.size());
        out.push_back(trimmed(text.substr(begin, end - begin)));
        begin = end + by.size();
    }
    return out;
}

Finished shell(const Scratch& s, const std::string& command) {
    return s.shell(fmt::format("TESTS='{}/tests' && {{ {}; }} >out.txt 2>err.txt", LOCKSTEP_SOURCE_DIR, command));
}

Finished run(const Scratch& s, const std::string& arguments) {
    static const std::regex form("^((?:[A-Z_]+=\\S* +)*)(.*)$");
    return shell(s, std::regex_replace(arguments, form, "timeout -k 1 20 env $1$$LOCKSTEP $2"));
}

void expect(const Finished& f, int code, const std::vector<std::string>& words) {
    const std::string said = f.err + f.out;
    EXPECT_EQ(f.code, code) << said;
    for (const std::string& word : words) {
        const bool absent = word.starts_with("!");
        const bool holds = said.find(absent ? word.substr(1) : word) != std::string::npos;
        EXPECT_NE(holds, absent) << "\"" << word << "\" in:\n" << said;
    }
    for (const char* never :
         {"internal error", "defect of Lockstep", "exception", "what():", "Assertion", "ERROR: AddressSanitizer"})
        EXPECT_EQ(said.find(never), std::string::npos) << said;
    static const std::regex id("\\[[a-z_]+\\.[a-z_0-9]+\\]|\"id\":");
    EXPECT_TRUE(code != 1 || std::regex_search(said, id)) << "no id in:\n" << said;
}

// The same with --json: one object with the refusal.
void expect_json(const Scratch& s, const std::string& arguments) {
    const bool is_whole = arguments.find_first_of("<>") == std::string::npos && arguments.find("launch") == std::string::npos;
    if (!is_whole) return;  // --json would be a word of something else
    const Finished f = run(s, arguments + (arguments.find("--json") == std::string::npos ? " --json" : ""));
    EXPECT_EQ(f.code, 1) << "with --json: " << f.err << f.out;
    const nlohmann::json out = nlohmann::json::parse(f.out, nullptr, false);
    const bool has_id = out.is_object() && out.contains("error") && !out["error"].value("id", "").empty();
    EXPECT_TRUE(has_id || (out.is_object() && out.contains("checkpoints"))) << "with --json: " << f.out;
}

class CarelessTable : public ::testing::TestWithParam<std::string> {};

TEST_P(CarelessTable, SaysWhatIsWrong) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kRecipe));
    std::ifstream file(fmt::format("{}/tests/cli/cases/{}.txt", LOCKSTEP_SOURCE_DIR, GetParam()));
    int number = 0;
    for (std::string line; std::getline(file, line);) {
        ++number;
        line = trimmed(line);
        if (line.empty() || line[0] == '#') continue;
        SCOPED_TRACE(fmt::format("{}.txt:{}: {}", GetParam(), number, line));
        if (line.starts_with("sh ")) {
            ASSERT_EQ(shell(s, line.substr(3)).code, 0) << s.read("err.txt");
            continue;
        }
        const bool both = line.starts_with("both ");
        const std::string row = trimmed(both ? line.substr(5) : line);
        const size_t arrow = row.find("=>");
        ASSERT_TRUE(row[0] >= '0' && row[0] <= '9' && arrow != std::string::npos) << "a row is: exit code, arguments, =>, words";
        const int code = std::stoi(row);
        const std::string arguments = trimmed(row.substr(row.find(' '), arrow - row.find(' ')));
        std::vector<std::string> words = split(row.substr(arrow + 2), " | ");
        std::erase(words, "");
        for (const char* command : {"check ", "train "}) {
            expect(run(s, (both ? command : "") + arguments), code, words);
            if (code == 1) expect_json(s, (both ? command : "") + arguments);
            if (!both) break;
        }
    }
    EXPECT_GT(number, 0) << "no such file";
}

std::vector<std::string> case_files() {
    std::vector<std::string> out;
    for (const auto& e : std::filesystem::directory_iterator(std::string(LOCKSTEP_SOURCE_DIR) + "/tests/cli/cases")) {
        if (e.path().extension() == ".txt") out.push_back(e.path().stem().string());
    }
    std::sort(out.begin(), out.end());
    return out;
}
INSTANTIATE_TEST_SUITE_P(All, CarelessTable, ::testing::ValuesIn(case_files()), [](const auto& info) { return info.param; });

// Values that the tables of keys take, at the ends of their ranges and in between: what `check` accepts, `train` accepts. Values
// that the tables refuse need no run, as both commands read recipes by one function.
class CarelessKeys : public ::testing::TestWithParam<std::string> {};

TEST_P(CarelessKeys, WhatCheckAcceptsTrainAccepts) {
    Scratch s;
    s.write("r.toml", tiny_recipe(kRecipe));
    for (const compile::RecipeKey& key : compile::recipe_keys()) {
        if (key.status != compile::KeyStatus::Acts || !key.name.starts_with(GetParam() + ".")) continue;
        if (key.name == "training.dataset") continue;  // `check` needs no data and says that `train` does
        std::vector<std::string> values = {"-1",  "0",    "1",     "2",   "9223372036854775807", "0.5", "nan",
                                           "inf", "true", "false", "word"};
        for (const std::string& word : key.allowed.words()) values.push_back(word);
        for (const std::string& value : values) {
            compile::Recipe recipe = compile::Recipe::from_file(s.path("r.toml"));
            try {
                recipe.set(key.name, value);
            } catch (const UserError&) {
                continue;
            }
            const std::string arguments = fmt::format(" r.toml --{} '{}'", key.name, value);
            const Finished check = run(s, "check" + arguments), train = run(s, "train" + arguments);
            EXPECT_TRUE(check.code == 0 || check.code == 1) << arguments << "\n" << check.err << check.out;
            EXPECT_EQ(check.code, train.code) << arguments << "\n" << check.err << check.out << train.err << train.out;
        }
    }
}

std::vector<std::string> sections() {
    std::vector<std::string> out;
    for (const compile::RecipeKey& key : compile::recipe_keys()) {
        const std::string section = key.name.substr(0, key.name.find('.'));
        const bool is_new = std::find(out.begin(), out.end(), section) == out.end();
        if (key.status == compile::KeyStatus::Acts && is_new && section != "job") out.push_back(section);
    }
    return out;
}
INSTANTIATE_TEST_SUITE_P(Sections, CarelessKeys, ::testing::ValuesIn(sections()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace lockstep::testing
