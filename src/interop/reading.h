// What a file of another system becomes here: a recipe, and an account of every statement of the file. A statement is mapped to
// a key, has no effect here, or has no counterpart; and what the file leaves to a default of its system is assumed. A statement
// that asks for another computation than any recipe can have is refused (Refusals). Nothing is left out in silence.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "compile/recipe.h"

namespace lockstep::interop {

struct Item {
    std::string said;     // "--num-layers 96"
    std::string where;    // "pretrain.sh:12"; empty: the file does not say it
    std::string becomes;  // "model.n_layers = 96", or why it becomes nothing
    std::string text() const;
};

// What only the user can answer, by one of these keys as a flag.
struct Question {
    std::vector<std::string> keys;
    std::string text;
    bool of_training = false;  // no plan depends on the answer
};

// What is still to be set.
struct Note {
    std::string key;  // empty: several
    std::string text;
};

struct Reading {
    enum class Kind { Recipe, Transformers, Torchtitan, Megatron, DeepSpeed, Checkpoint, Run };
    Kind kind = Kind::Recipe;
    compile::Recipe recipe;
    std::vector<Note> notes;
    std::vector<Item> mapped, no_effect, assumed, unmapped;
    std::vector<Item> left_out;  // what the run has and the recipe lacks: a plan is of the run without it
    std::vector<Question> questions;
    int64_t accumulated = 0;  // microbatches of a step on a data rank, as DeepSpeed's file says; 0: it does not

    // said, at `where`, becomes the key's value. UserError of the recipe; recipe.contradiction if another statement gave the
    // key another value.
    void map(const std::string& said, const std::string& where, const std::string& key, const compile::Value& value);
    // The same for a default of the other system's, unless a statement gave the key a value.
    void assume(const std::string& said, const std::string& key, const compile::Value& value);

    // Is there a question that this key answers?
    bool asks(const std::string& key) const;
    // UserError recipe.question with every question that has no answer among the keys that are set; recipe.contradiction where
    // the ranks that are set make another batch than the file has.
    void require_answers() const;
    // Questions without an answer that no plan depends on become what is left out.
    void leave_out_training();
    // UserError recipe.left_out if anything is: what trains is not to be another run.
    void require_whole(const std::string& path) const;
    // The notes, and the questions.
    std::vector<std::string> to_be_set() const;
    // The lists as "mapped", "no_effect", "assumed", "unmapped", and "kind".
    nlohmann::ordered_json json() const;
    // A TOML file: comments that say where it comes from, the lists, and what is missing and still to be set; then what acts.
    std::string toml(const std::string& path) const;
};

std::string_view name_of(Reading::Kind kind);  // "Megatron-LM"

// Everything that a file asks for and no recipe can have, refused at once.
class Refusals {
public:
    void add(const std::string& said, const std::string& where, const std::string& why);
    // UserError recipe.cannot_map if there are any.
    void require_none(const std::string& origin) const;

private:
    std::vector<Item> all_;
};

}  // namespace lockstep::interop
