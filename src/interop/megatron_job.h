// The arguments of a Megatron-LM run while they are read: each is taken once, by the reader that knows what it means. What
// nobody takes is in the table of what has no effect or cannot be mapped (megatron_arguments.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "interop/arguments.h"
#include "interop/reading.h"

namespace lockstep::interop {

struct MegatronJob {
    const Arguments& args;
    Reading& reading;
    Refusals& refusals;
    bool deepspeed = false;       // it runs under DeepSpeed's engine
    int64_t world = 0;            // ranks; 0: the script does not say
    std::set<std::string> taken;  // names of arguments

    // The one that was given of several names of the same; null: none was.
    const Argument* take(const std::vector<std::string>& names);
    bool take_flag(const std::string& name);
    std::optional<int64_t> integer(const std::vector<std::string>& names);
    int64_t integer(const std::vector<std::string>& names, int64_t otherwise) { return integer(names).value_or(otherwise); }
    std::optional<double> number(const std::vector<std::string>& names);
    // UserError recipe.argument_missing.
    int64_t required(const std::vector<std::string>& names);

    void map(const Argument& a, const std::string& key, const compile::Value& value) {
        reading.map(a.text(), a.where, key, value);
    }
    // The argument's value, or Megatron-LM's default.
    void map_integer(const std::vector<std::string>& names, const std::string& key, std::optional<int64_t> otherwise = {});
    void map_number(const std::vector<std::string>& names, const std::string& key, std::optional<double> otherwise = {});
    void no_effect(const Argument& a, const std::string& why) { reading.no_effect.push_back({a.text(), a.where, why}); }
    void unmapped(const Argument& a, const std::string& why) { reading.unmapped.push_back({a.text(), a.where, why}); }
    void leave_out(const Argument& a, const std::string& why) { reading.left_out.push_back({a.text(), a.where, why}); }
    void refuse(const Argument& a, const std::string& why) { refusals.add(a.text(), a.where, why); }
};

// Each takes the arguments of its subject.
void read_megatron_model(MegatronJob& job);
void read_megatron_layout(MegatronJob& job);
void read_megatron_training(MegatronJob& job);
void read_megatron_float8(MegatronJob& job);
// What is left and asks for another computation: into the refusals.
void refuse_megatron_rest(MegatronJob& job);
// Everything that is left. UserError recipe.unknown_argument.
void read_megatron_rest(MegatronJob& job);

}  // namespace lockstep::interop
