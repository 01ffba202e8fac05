// A module of another build: nothing of it may be used but this text.
#include <cstdlib>

extern "C" const char* lockstep_module_build() { return "0.0.1, long ago"; }
extern "C" const void* lockstep_module() { std::abort(); }
