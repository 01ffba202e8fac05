#include "interop/megatron_job.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::interop {

const Argument* MegatronJob::take(const std::vector<std::string>& names) {
    taken.insert(names.begin(), names.end());
    return args.find(names);
}

bool MegatronJob::take_flag(const std::string& name) {
    const Argument* a = take({name});
    if (a) args.require_no_value(*a);
    return a != nullptr;
}

std::optional<int64_t> MegatronJob::integer(const std::vector<std::string>& names) {
    const Argument* a = take(names);
    return a ? std::optional(args.integer(*a)) : std::nullopt;
}

std::optional<double> MegatronJob::number(const std::vector<std::string>& names) {
    const Argument* a = take(names);
    return a ? std::optional(args.number(*a)) : std::nullopt;
}

int64_t MegatronJob::required(const std::vector<std::string>& names) {
    const std::optional<int64_t> value = integer(names);
    if (value && *value > 0) return *value;
    if (value)
        throw UserError("recipe.argument_value", "--" + names.front(),
                        fmt::format("{}: {}: must be 1 or more", args.find(names)->where, args.find(names)->text()));
    if (const std::string unread = args.why_unread(); !unread.empty())
        throw UserError("recipe.argument_missing", "--" + names.front(),
                        fmt::format("{}: --{} is not among the arguments that can be read. These cannot: {}: {}", args.origin(),
                                    names.front(), unread, args.remedy(args.unread().front().asks)));
    throw UserError(
        "recipe.argument_missing", "--" + names.front(),
        fmt::format("{}: --{} is not among the arguments, and Megatron-LM has no default for it: add it, or check that "
                    "each line of the command ends with \\",
                    args.origin(), names.front()));
}

void MegatronJob::map_integer(const std::vector<std::string>& names, const std::string& key, std::optional<int64_t> otherwise) {
    if (const Argument* a = take(names)) map(*a, key, args.integer(*a));
    else if (otherwise) reading.assume(fmt::format("--{} {}", names.front(), *otherwise), key, *otherwise);
}

void MegatronJob::map_number(const std::vector<std::string>& names, const std::string& key, std::optional<double> otherwise) {
    if (const Argument* a = take(names)) map(*a, key, args.number(*a));
    else if (otherwise) reading.assume(fmt::format("--{} {}", names.front(), *otherwise), key, *otherwise);
}

}  // namespace lockstep::interop
