// How a run ended, as the process that runs it tells its parent.
#pragma once

namespace lockstep::job {

// 0 done, 1 refused, 2 usage, 3 failed while running, 4 stopped on request with a checkpoint.
enum ExitCode { kDone = 0, kRefused = 1, kUsage = 2, kFailed = 3, kStopped = 4 };

}  // namespace lockstep::job
