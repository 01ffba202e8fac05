#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/text_file.h"
#include "checkpoint/safetensors_header.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

constexpr std::pair<std::string_view, int64_t> kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},   {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1}, {"I16", 2}, {"U16", 2},
    {"F16", 2},  {"BF16", 2}, {"I32", 4}, {"U32", 4},     {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8},
};

void ensure_in_range(const TensorEntry& tensor, int64_t begin, int64_t count) {
    if (begin < 0 || count < 0 || begin > tensor.elements || count > tensor.elements - begin) {
        throw InternalError(fmt::format("elements {} .. {} + {} of tensor {}, which has {}", begin, begin, count,
                                        tensor.spec.name, tensor.elements));
    }
}

}  // namespace

int64_t dtype_bytes(std::string_view dtype) {
    for (const auto& [name, bytes] : kDtypes) {
        if (name == dtype) return bytes;
    }
    return 0;
}

SafetensorsLayout::SafetensorsLayout(std::vector<TensorSpec> tensors, const Metadata& metadata) {
    std::stable_sort(tensors.begin(), tensors.end(),
                     [](const TensorSpec& a, const TensorSpec& b) { return dtype_bytes(a.dtype) > dtype_bytes(b.dtype); });
    Json header = Json::object();
    if (!metadata.empty()) header["__metadata__"] = metadata;
    auto& entries = header.get_ref<Json::object_t&>();
    int64_t at_bytes = 0;
    for (TensorSpec& spec : tensors) {
        const int64_t element_bytes = dtype_bytes(spec.dtype);
        ensure(element_bytes > 0, fmt::format("tensor {}: safetensors has no dtype {}", spec.name, spec.dtype));
        const auto elements = elements_of(spec.shape, element_bytes);
        ensure(elements.has_value(), fmt::format("tensor {}: no such shape [{}]", spec.name, fmt::join(spec.shape, ", ")));
        ensure(spec.name != "__metadata__" && by_name_.emplace(spec.name, tensors_.size()).second,
               fmt::format("tensor {} twice in a file, or its name is reserved", spec.name));
        const int64_t bytes = *elements * element_bytes;
        entries.Json::object_t::Container::emplace_back(  // header[..] would look through all
            spec.name, Json{{"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {at_bytes, at_bytes + bytes}}});
        tensors_.push_back({std::move(spec), at_bytes, bytes, *elements});
        at_bytes += bytes;
    }
    std::string text;
    try {
        text = header.dump();  // which refuses names that are no UTF-8
    } catch (const Json::exception& error) {
        throw InternalError(fmt::format("a tensor's name or metadata is not UTF-8: {}", error.what()));
    }
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t length = text.size();
    header_.assign(reinterpret_cast<const char*>(&length), sizeof length);
    header_ += text;
    file_bytes_ = static_cast<int64_t>(header_.size()) + at_bytes;
}

const TensorEntry& SafetensorsLayout::find(std::string_view name) const {
    const auto found = by_name_.find(name);
    ensure(found != by_name_.end(), fmt::format("the file's layout has no tensor {}", name));
    return tensors_[found->second];
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, SafetensorsLayout layout)
    : layout_(std::move(layout)), file_(path) {
    file_.append(layout_.header());
}

void SafetensorsWriter::write(std::string_view name, int64_t element_begin, int64_t count, const void* data) const {
    const TensorEntry& tensor = layout_.find(name);
    ensure_in_range(tensor, element_begin, count);
    const int64_t element_bytes = dtype_bytes(tensor.spec.dtype);
    const int64_t offset = static_cast<int64_t>(layout_.header().size()) + tensor.begin_bytes + element_begin * element_bytes;
    file_.write_at(offset, {static_cast<const char*>(data), static_cast<size_t>(count * element_bytes)});
}

void SafetensorsWriter::write(std::string_view name, const void* data) const {
    write(name, 0, layout_.find(name).elements, data);
}

void SafetensorsWriter::finish() {
    file_.finish();
    file_.publish();
}

PieceSums write_safetensors(const std::string& path, const SafetensorsLayout& layout, FillTensor fill, const Writers& writers,
                            OwnElements own) {
    const std::string& header = layout.header();
    const auto header_bytes = static_cast<int64_t>(header.size());
    const std::vector<TensorEntry>& tensors = layout.tensors();
    // of_header(begin, count), then of_tensor(tensor, begin in it, count) for the bytes begin .. begin + count. `next`: a
    // tensor that ends behind them or further on; calls come in order.
    const auto split = [&](int64_t begin, int64_t count, size_t& next, const auto& of_header, const auto& of_tensor) {
        const int64_t end = begin + count;
        if (begin < header_bytes) {
            const int64_t n = std::min(end, header_bytes) - begin;
            of_header(begin, n);
            begin += n;
        }
        while (begin < end) {
            const TensorEntry& tensor = tensors[next];
            const int64_t at = begin - header_bytes - tensor.begin_bytes, n = std::min(end - begin, tensor.bytes - at);
            if (n > 0) of_tensor(tensor, at, n), begin += n;
            if (begin < end) ++next;
        }
    };
    size_t next = 0, next_own = 0;
    const auto fill_bytes = [&](int64_t begin, int64_t count, char* to) {
        split(
            begin, count, next,
            [&](int64_t at, int64_t n) {
                std::memcpy(to, header.data() + at, static_cast<size_t>(n));
                to += n;
            },
            [&](const TensorEntry& tensor, int64_t at, int64_t n) {
                const int64_t element_bytes = dtype_bytes(tensor.spec.dtype);
                fill(tensor, at / element_bytes, n / element_bytes, to);
                to += n;
            });
    };
    const auto own_bytes = [&](int64_t begin, int64_t count, OfStretch f) {
        split(
            begin, count, next_own,
            [&](int64_t at, int64_t n) {
                if (writers.is_first()) f(at, n);
            },
            [&](const TensorEntry& tensor, int64_t at, int64_t n) {
                const int64_t element_bytes = dtype_bytes(tensor.spec.dtype), first = header_bytes + tensor.begin_bytes;
                own(tensor, at / element_bytes, n / element_bytes,
                    [&](int64_t element, int64_t elements) { f(first + element * element_bytes, elements * element_bytes); });
            });
    };
    return write_pieces(path, layout.file_bytes(), fill_bytes, writers, own_bytes);
}

namespace {

// The tensors, sorted as they lie in the file, fill the bytes 0 .. data_bytes without gap or overlap.
void check_offsets(const std::string& path, const std::vector<TensorEntry>& tensors, int64_t data_bytes) {
    int64_t end_bytes = 0;
    for (const TensorEntry& tensor : tensors) {
        if (tensor.begin_bytes != end_bytes) {
            throw UserError(
                "checkpoint.bad_offsets", path,
                fmt::format("{}: tensor \"{}\" begins at byte {} of the data where {} was expected: tensors overlap or "
                            "leave a gap. Take another copy or an earlier checkpoint.",
                            path, tensor.spec.name, tensor.begin_bytes, end_bytes));
        }
        end_bytes += tensor.bytes;
    }
    if (end_bytes > data_bytes) {
        throw UserError(
            "checkpoint.truncated", path,
            fmt::format("{} ends too early: its header describes {} bytes of data, the file has {}. Take another copy "
                        "or an earlier checkpoint.",
                        path, end_bytes, data_bytes));
    }
    if (end_bytes < data_bytes) {
        throw UserError("checkpoint.trailing_bytes", path,
                        fmt::format("{} is longer than its header says: {} bytes of data are described, the file has {}. Take "
                                    "another copy or an earlier checkpoint.",
                                    path, end_bytes, data_bytes));
    }
}

[[noreturn]] void ends_in_header(const std::string& path, int64_t wanted_bytes, int64_t file_bytes) {
    throw UserError("checkpoint.truncated", path,
                    fmt::format("{} ends in its header: {} bytes were expected, the file has {}. Take another copy or an earlier "
                                "checkpoint.",
                                path, wanted_bytes, file_bytes));
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::string path, std::optional<PieceSums> sums)
    : path_(path), file_(std::move(path), std::move(sums)) {
    read_header();
}

void SafetensorsReader::read_header() {
    const int64_t file_bytes = file_.file_bytes();
    uint64_t length = 0;
    Cursor cursor;
    constexpr int64_t kLfsBytes = 32;  // enough to know one by
    std::string head(static_cast<size_t>(std::min(file_bytes, kLfsBytes)), '\0');
    file_.read(0, std::ssize(head), head.data(), cursor);
    if (is_lfs_pointer(head)) throw UserError("checkpoint.lfs_pointer", path_, lfs_pointer_text(path_));
    if (file_bytes < kLengthBytes) ends_in_header(path_, kLengthBytes, file_bytes);
    file_.read(0, kLengthBytes, &length, cursor);
    if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
        refuse_header(path_, fmt::format("its header would be {} bytes long, over the limit of {}", length, kMaxHeaderBytes));
    }
    data_begin_bytes_ = kLengthBytes + static_cast<int64_t>(length);
    if (data_begin_bytes_ > file_bytes) ends_in_header(path_, data_begin_bytes_, file_bytes);
    std::string text(length, '\0');
    file_.read(kLengthBytes, static_cast<int64_t>(length), text.data(), cursor);
    if (text.empty() || text[0] != '{') refuse_header(path_, "its header does not begin with {");

    SafetensorsHeader header = parse_safetensors_header(path_, text);
    metadata_ = std::move(header.metadata);
    tensors_ = std::move(header.tensors);
    // Empty tensors lie before the one that begins at the same byte.
    const auto lies_before = [](const TensorEntry& a, const TensorEntry& b) {
        return std::tie(a.begin_bytes, a.bytes) < std::tie(b.begin_bytes, b.bytes);
    };
    if (!std::is_sorted(tensors_.begin(), tensors_.end(), lies_before)) std::sort(tensors_.begin(), tensors_.end(), lies_before);
    by_name_.reserve(tensors_.size());
    for (size_t i = 0; i < tensors_.size(); ++i) {
        if (const std::string& name = tensors_[i].spec.name; !by_name_.emplace(name, i).second)
            refuse_header(path_, fmt::format("\"{}\" is twice in its header", name));
    }
    check_offsets(path_, tensors_, file_bytes - data_begin_bytes_);
}

const TensorEntry& SafetensorsReader::find(std::string_view name) const {
    const auto found = by_name_.find(name);
    if (found == by_name_.end()) {
        throw UserError("checkpoint.no_such_tensor", path_,
                        fmt::format("{} has no tensor \"{}\" among its {}. Is it the checkpoint of another model?", path_, name,
                                    tensors_.size()));
    }
    return tensors_[found->second];
}

void SafetensorsReader::read(const std::string& name, int64_t element_begin, int64_t count, void* data, Cursor& cursor) const {
    const TensorEntry& tensor = find(name);
    ensure_in_range(tensor, element_begin, count);
    const int64_t element_bytes = dtype_bytes(tensor.spec.dtype);
    file_.read(data_begin_bytes_ + tensor.begin_bytes + element_begin * element_bytes, count * element_bytes, data, cursor);
}

void SafetensorsReader::read(const std::string& name, int64_t element_begin, int64_t count, void* data) const {
    Cursor cursor;
    read(name, element_begin, count, data, cursor);
}

}  // namespace lockstep::checkpoint
