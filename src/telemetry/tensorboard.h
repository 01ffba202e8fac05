// Event files that TensorBoard reads: scalars and texts, in records of its framing (a length and the bytes, each with a masked
// CRC-32C). The few messages of protocol buffers that this takes are encoded here: a dependency on their compiler and library
// would be larger than what it replaces.
// Source: tensorflow/core/lib/io/record_writer.cc; tensorflow/core/util/event.proto; tensorflow/core/framework/summary.proto.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "telemetry/metrics.h"

namespace lockstep::telemetry {

class TensorBoardFile {
public:
    // A new file `folder`/events.out.tfevents.<time>.<host>.<process>; TensorBoard takes all files of a folder for one run.
    // What older files say of steps after `step`, the last step that is done, no longer counts: a run that goes on from a
    // checkpoint does them again. UserError metrics.cannot_write.
    TensorBoardFile(const std::string& folder, int64_t step);
    ~TensorBoardFile();
    TensorBoardFile(const TensorBoardFile&) = delete;
    TensorBoardFile& operator=(const TensorBoardFile&) = delete;

    void scalars(int64_t step, const Metrics& metrics);
    void text(int64_t step, std::string_view tag, std::string_view markdown);

private:
    void record(const std::string& event);

    std::string path_;
    FILE* file_;
};

// As iSCSI's and TFRecord's: polynomial 0x1EDC6F41, reflected.
uint32_t crc32c(std::string_view bytes);

}  // namespace lockstep::telemetry
