// The manifest of a checkpoint: as it is, and with the checksum that it would have. Then the files that it names.
#include <nlohmann/json.hpp>

#include "base/checksum.h"
#include "checkpoint/folder.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep;

void read(const fuzz::MemoryFolder& folder, std::string_view manifest) {
    fuzz::accepts_or_refuses([&] {
        folder.write("manifest.json", manifest);
        checkpoint::read_manifest(folder.path());
        checkpoint::what_is_wrong_at_first_sight(folder.path());
        checkpoint::what_is_wrong(folder.path());
    });
}

const fuzz::Declare declare_checkpoint_manifest("checkpoint_manifest", [](std::string_view bytes) {
    static const fuzz::MemoryFolder folder;
    folder.write(checkpoint::kModelFile, "0123456789");
    read(folder, bytes);
    nlohmann::ordered_json j = nlohmann::ordered_json::parse(bytes, nullptr, false);
    if (!j.is_object()) return;
    j.erase("xxh3");
    const std::string sum = hex_checksum(j.dump());
    j["xxh3"] = sum;
    read(folder, j.dump());
});

}  // namespace
