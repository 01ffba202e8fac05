// The arguments of a Megatron-LM run that no other reader took.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/nearest.h"
#include "interop/megatron_arguments.h"
#include "interop/megatron_job.h"

namespace lockstep::interop {
namespace {

[[noreturn]] void refuse_unknown(const MegatronJob& j, const std::vector<const Argument*>& unknown) {
    std::vector<std::string> names = megatron_argument_names();
    names.insert(names.end(), j.taken.begin(), j.taken.end());
    constexpr size_t kNamed = 20;
    std::string list;
    for (size_t i = 0; i < std::min(unknown.size(), kNamed); ++i) {
        const std::string near = nearest_if_close(unknown[i]->name, names);
        list += fmt::format("\n  {}: {}{}", unknown[i]->where, unknown[i]->text(),
                            near.empty() ? "" : fmt::format("; the nearest is --{}", near));
    }
    throw UserError(
        "recipe.unknown_argument", "--" + unknown.front()->name,
        fmt::format("{}: has arguments that Megatron-LM does not have, so that what they change is not known:{}\nCorrect "
                    "them, or leave out those that do not change the model, the batch or the layout",
                    j.args.origin(), list));
}

void read_one(MegatronJob& j, const Argument& a, const KnownArgument& known) {
    const std::string value = fmt::format("{}", fmt::join(a.values, " "));
    const bool is_off = std::find(known.off.begin(), known.off.end(), value) != known.off.end();
    if (known.fate == Fate::NoEffect || is_off) return j.no_effect(a, is_off ? "is off with this value" : known.why);
    if (known.fate == Fate::Unmapped) return j.unmapped(a, known.why);
    if (known.fate == Fate::LeftOut) return j.leave_out(a, known.why);
    j.refuse(a, known.why);
}

// Is the argument in a list, or in a question?
bool is_accounted_for(const Reading& r, const Argument& a) {
    const std::string text = a.text();
    const auto has = [&](const std::string& said) { return said.find(text) != std::string::npos; };
    for (const auto* list : {&r.mapped, &r.no_effect, &r.unmapped, &r.left_out}) {
        if (std::any_of(list->begin(), list->end(), [&](const Item& item) { return has(item.said); })) return true;
    }
    return std::any_of(r.questions.begin(), r.questions.end(), [&](const Question& q) { return has(q.text); });
}

}  // namespace

void refuse_megatron_rest(MegatronJob& j) {
    for (const Argument& a : j.args.all()) {
        const KnownArgument* known = j.taken.contains(a.name) ? nullptr : find_megatron_argument(a.name);
        if (known && known->fate == Fate::Refused) read_one(j, a, *known);
    }
}

void read_megatron_rest(MegatronJob& j) {
    std::vector<const Argument*> unknown;
    for (const Argument& a : j.args.all()) {
        if (j.taken.contains(a.name)) {
            if (a.may_be_nothing) j.reading.unmapped.push_back({a.values.front(), a.where, "is taken for nothing: " + a.why});
            if (!is_accounted_for(j.reading, a)) j.no_effect(a, "is a part of what another argument becomes");
            continue;
        }
        if (const KnownArgument* known = find_megatron_argument(a.name)) read_one(j, a, *known);
        else unknown.push_back(&a);
    }
    for (const Argument& a : j.args.unread())
        j.reading.unmapped.push_back({a.name, a.where, "the arguments that a run puts there are not read"});
    if (!unknown.empty()) refuse_unknown(j, unknown);
}

}  // namespace lockstep::interop
