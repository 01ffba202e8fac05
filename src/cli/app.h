// Lockstep's command line. Returns the exit code (docs/cli.md); nothing escapes as an exception.
#pragma once

namespace lockstep::cli {

int run(int argc, const char* const* argv);

}  // namespace lockstep::cli
