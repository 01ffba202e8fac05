// A reference to something callable, valid only during the call that it is passed to. Unlike std::function it never allocates.
#pragma once

#include <type_traits>
#include <utility>

namespace lockstep {

template <typename Signature>
class FunctionRef;

template <typename Result, typename... Args>
class FunctionRef<Result(Args...)> {
public:
    template <typename F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef> && std::is_invocable_r_v<Result, F&, Args...>)
        FunctionRef(F&& f)  // implicit, so that a lambda can be passed where a FunctionRef is expected
        : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Args... args) -> Result {
              return (*static_cast<std::remove_reference_t<F>*>(object))(std::forward<Args>(args)...);
          }) {}
    Result operator()(Args... args) const { return call_(object_, std::forward<Args>(args)...); }

private:
    void* object_;
    Result (*call_)(void*, Args...);
};

}  // namespace lockstep
