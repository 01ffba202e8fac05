// The safetensors file format: an 8-byte header length, a JSON header, then the tensors' bytes without gaps.
// A file's layout is fixed before its first byte is written, so several writers (ranks) may each write their own parts.
// What is wrong with a file is a UserError whose key is the path; asking for what a layout lacks is an InternalError.
// Bytes are little-endian, as the format says; a big-endian host is not supported.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/output_file.h"
#include "checkpoint/tensor_source.h"

namespace lockstep::checkpoint {

struct TensorEntry {
    TensorSpec spec;
    int64_t begin_bytes = 0, bytes = 0;  // begin counts from the first byte after the header
    int64_t elements = 0;
};

using Metadata = std::map<std::string, std::string>;

// Bytes of an element, 0 if the format has no such dtype (those of less than a byte are not supported).
int64_t dtype_bytes(std::string_view dtype);

// Where everything lies in a file; equal arguments give equal layouts on every rank.
class SafetensorsLayout {
public:
    // Larger dtypes first, otherwise in the order given, so every tensor is aligned to its dtype in the file.
    SafetensorsLayout(std::vector<TensorSpec> tensors, const Metadata& metadata);

    const std::string& header() const { return header_; }  // the file's first bytes, length included
    const std::vector<TensorEntry>& tensors() const { return tensors_; }
    int64_t file_bytes() const { return file_bytes_; }
    const TensorEntry& find(std::string_view name) const;

private:
    std::vector<TensorEntry> tensors_;
    std::map<std::string, size_t, std::less<>> by_name_;
    std::string header_;
    int64_t file_bytes_ = 0;
};

// Writes tensors in any order; a reader never sees the file half written. UserError file.cannot_write.
class SafetensorsWriter {
public:
    SafetensorsWriter(const std::string& path, SafetensorsLayout layout);

    // Elements begin .. begin + count of a tensor. From several threads at the same time if their parts are disjoint.
    void write(std::string_view name, int64_t element_begin, int64_t count, const void* data) const;
    void write(std::string_view name, const void* data) const;  // whole

    // Once, after all parts are written. Without it nothing remains.
    void finish();

private:
    SafetensorsLayout layout_;
    AtomicFile file_;
};

// Writes a whole file front to back, with checksums, and puts it on the disk: the fast way. fill(tensor, begin, count, to)
// supplies elements begin .. begin + count, each element once; of several writers each is asked for the stretches that own()
// calls its f with. UserError file.cannot_write.
using FillTensor = FunctionRef<void(const TensorEntry& tensor, int64_t element_begin, int64_t count, char* to)>;
using OwnElements = FunctionRef<void(const TensorEntry& tensor, int64_t element_begin, int64_t count, OfStretch f)>;
inline constexpr auto kOwnAll = [](const TensorEntry&, int64_t begin, int64_t count, OfStretch f) { f(begin, count); };
PieceSums write_safetensors(const std::string& path, const SafetensorsLayout& layout, FillTensor fill,
                            const Writers& writers = {}, OwnElements own = kOwnAll);

// Checks the whole header when it opens; see safetensors.cpp for each id. Reads may come from several threads. With checksums
// every byte is checked before it is handed out.
class SafetensorsReader : public TensorSource {
public:
    explicit SafetensorsReader(std::string path, std::optional<PieceSums> sums = std::nullopt);

    const std::vector<TensorEntry>& tensors() const { return tensors_; }  // in file order
    const Metadata& metadata() const { return metadata_; }
    bool contains(const std::string& name) const override { return by_name_.contains(name); }
    const TensorEntry& find(std::string_view name) const;  // UserError checkpoint.no_such_tensor
    const TensorSpec& spec(const std::string& name) const override { return find(name).spec; }
    void read(const std::string& name, int64_t element_begin, int64_t count, void* data) const;
    void read(const std::string& name, int64_t element_begin, int64_t count, void* data, Cursor& cursor) const override;

private:
    void read_header();

    std::string path_;
    PieceReader file_;
    int64_t data_begin_bytes_ = 0;
    std::vector<TensorEntry> tensors_;
    std::unordered_map<std::string_view, size_t> by_name_;  // views of the names in tensors_
    Metadata metadata_;
};

}  // namespace lockstep::checkpoint
