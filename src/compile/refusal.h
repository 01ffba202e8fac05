// A result, or why there is none: what a layout asks for and cannot have. It is a value, because a search over layouts asks for
// hundreds of them a second and most are refused. The commands, for which it is the end, throw it.
#pragma once

#include <utility>
#include <variant>

#include "base/error.h"

namespace lockstep::compile {

template <class T>
using OrRefusal = std::variant<T, UserError>;

template <class T>
const UserError* refusal_of(const OrRefusal<T>& result) {
    return std::get_if<UserError>(&result);
}

template <class T>
T or_throw(OrRefusal<T> result) {
    if (const UserError* refusal = refusal_of(result)) throw *refusal;
    return std::get<T>(std::move(result));
}

}  // namespace lockstep::compile
