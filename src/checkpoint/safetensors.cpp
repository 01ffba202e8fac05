#include "checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation

constexpr std::pair<std::string_view, int64_t> kDtypes[] = {
    {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
    {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8},
};

// Elements of a shape, nothing if an extent is negative or the bytes do not fit an int64.
std::optional<int64_t> elements_of(const std::vector<int64_t>& shape, int64_t element_bytes) {
    int64_t elements = 1, bytes = 0;
    for (int64_t extent : shape) {
        if (extent < 0 || __builtin_mul_overflow(elements, extent, &elements)) return std::nullopt;
    }
    if (__builtin_mul_overflow(elements, element_bytes, &bytes)) return std::nullopt;
    return elements;
}

void ensure_in_range(const TensorEntry& tensor, int64_t begin, int64_t count) {
    if (begin < 0 || count < 0 || begin > tensor.elements || count > tensor.elements - begin) {
        throw InternalError(fmt::format("elements {} .. {} + {} of tensor {}, which has {}", begin, begin, count,
                                        tensor.spec.name, tensor.elements));
    }
}

[[noreturn]] void cannot_write(const std::string& path, std::string_view call) {
    throw UserError("checkpoint.cannot_write", path,
                    fmt::format("cannot write {}: {} failed: {}. Choose a folder that exists, is writable and has room.", path,
                                call, std::strerror(errno)));
}

std::string temporary(const std::string& path) { return path + ".tmp"; }

// Returns false, with errno, if the system refuses.
bool write_all(int file, const void* data, int64_t bytes, int64_t offset_bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t wrote = ::pwrite(file, from, static_cast<size_t>(bytes), offset_bytes);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return false;
        from += wrote, offset_bytes += wrote, bytes -= wrote;
    }
    return true;
}

// Returns the bytes read: fewer than asked at the end of the file, -1 with errno if the system refuses.
int64_t read_all(int file, void* data, int64_t bytes, int64_t offset_bytes) {
    int64_t done = 0;
    while (done < bytes) {
        const ssize_t got =
            ::pread(file, static_cast<char*>(data) + done, static_cast<size_t>(bytes - done), offset_bytes + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return -1;
        if (got == 0) break;
        done += got;
    }
    return done;
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
    int64_t at_bytes = 0;
    for (TensorSpec& spec : tensors) {
        const int64_t element_bytes = dtype_bytes(spec.dtype);
        ensure(element_bytes > 0, fmt::format("tensor {}: safetensors has no dtype {}", spec.name, spec.dtype));
        const auto elements = elements_of(spec.shape, element_bytes);
        ensure(elements.has_value(), fmt::format("tensor {}: no such shape [{}]", spec.name, fmt::join(spec.shape, ", ")));
        ensure(spec.name != "__metadata__" && by_name_.emplace(spec.name, tensors_.size()).second,
               fmt::format("tensor {} twice in a file, or its name is reserved", spec.name));
        const int64_t bytes = *elements * element_bytes;
        header[spec.name] = {{"dtype", spec.dtype}, {"shape", spec.shape}, {"data_offsets", {at_bytes, at_bytes + bytes}}};
        tensors_.push_back({std::move(spec), at_bytes, bytes, *elements});
        at_bytes += bytes;
    }
    std::string text;
    try {
        text = header.dump();
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

SafetensorsWriter::SafetensorsWriter(std::string path, SafetensorsLayout layout, Role role)
    : path_(std::move(path)), layout_(std::move(layout)), role_(role) {}

SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&& other) noexcept
    : path_(std::move(other.path_)),
      layout_(std::move(other.layout_)),
      role_(std::exchange(other.role_, Role::Finished)),
      file_(std::exchange(other.file_, -1)) {}

SafetensorsWriter SafetensorsWriter::create(std::string path, SafetensorsLayout layout) {
    SafetensorsWriter writer(std::move(path), std::move(layout), Role::Creator);
    const std::string name = temporary(writer.path_);
    writer.file_ = ::open(name.c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0644);
    if (writer.file_ < 0) cannot_write(name, "open");
    if (::ftruncate(writer.file_, writer.layout_.file_bytes()) != 0) cannot_write(name, "ftruncate");
    const std::string& header = writer.layout_.header();
    if (!write_all(writer.file_, header.data(), static_cast<int64_t>(header.size()), 0)) cannot_write(name, "pwrite");
    return writer;
}

SafetensorsWriter SafetensorsWriter::join(std::string path, SafetensorsLayout layout) {
    SafetensorsWriter writer(std::move(path), std::move(layout), Role::Joined);
    const std::string name = temporary(writer.path_);
    writer.file_ = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
    if (writer.file_ < 0) cannot_write(name, "open");
    std::string header(writer.layout_.header().size(), '\0');
    const int64_t got = read_all(writer.file_, header.data(), static_cast<int64_t>(header.size()), 0);
    if (got < 0) cannot_write(name, "pread");
    ensure(header == writer.layout_.header(), fmt::format("{} was created with another layout", name));
    return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
    if (file_ >= 0) ::close(file_);
    if (role_ == Role::Creator && file_ >= 0) ::unlink(temporary(path_).c_str());
}

void SafetensorsWriter::write(std::string_view name, int64_t element_begin, int64_t count, const void* data) const {
    const TensorEntry& tensor = layout_.find(name);
    ensure_in_range(tensor, element_begin, count);
    const int64_t element_bytes = dtype_bytes(tensor.spec.dtype);
    const int64_t offset_bytes =
        static_cast<int64_t>(layout_.header().size()) + tensor.begin_bytes + element_begin * element_bytes;
    if (!write_all(file_, data, count * element_bytes, offset_bytes)) cannot_write(temporary(path_), "pwrite");
}

void SafetensorsWriter::write(std::string_view name, const void* data) const {
    write(name, 0, layout_.find(name).elements, data);
}

void SafetensorsWriter::flush() const {
    if (::fsync(file_) != 0) cannot_write(temporary(path_), "fsync");
}

void SafetensorsWriter::finish() {
    ensure(role_ == Role::Creator, "finish() is called once, by the writer that created the file");
    flush();
    if (::rename(temporary(path_).c_str(), path_.c_str()) != 0) cannot_write(path_, "rename");
    role_ = Role::Finished;
    ::close(std::exchange(file_, -1));
    std::string folder = std::filesystem::path(path_).parent_path();
    if (folder.empty()) folder = ".";
    const int handle = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (handle < 0) cannot_write(folder, "open");
    const bool synced = ::fsync(handle) == 0;
    const int error = errno;
    ::close(handle);
    errno = error;
    if (!synced) cannot_write(folder, "fsync");
}

namespace {

[[noreturn]] void bad_header(const std::string& path, const std::string& what) {
    throw UserError(
        "checkpoint.bad_header", path,
        fmt::format("{} is not a valid safetensors file: {}. Take another copy or an earlier checkpoint.", path, what));
}

// The header as JSON; a name that stands twice is an error, which JSON itself would allow.
Json parse(const std::string& path, const std::string& text) {
    std::vector<std::set<std::string>> open_objects;
    std::string twice;
    const auto watch = [&](int, Json::parse_event_t event, Json& value) {
        if (event == Json::parse_event_t::object_start) open_objects.emplace_back();
        if (event == Json::parse_event_t::object_end) open_objects.pop_back();
        if (event == Json::parse_event_t::key && !open_objects.back().insert(value.get<std::string>()).second) {
            twice = value.get<std::string>();
        }
        return true;
    };
    Json header;
    try {
        header = Json::parse(text, watch);
    } catch (const Json::exception& error) {
        bad_header(path, fmt::format("its header is no JSON ({})", error.what()));
    }
    if (!twice.empty()) bad_header(path, fmt::format("\"{}\" stands twice in its header", twice));
    if (!header.is_object()) bad_header(path, "its header is no JSON object");
    return header;
}

Metadata metadata_of(const std::string& path, const Json& value) {
    Metadata metadata;
    if (!value.is_object()) bad_header(path, "__metadata__ is no object");
    for (const auto& [key, text] : value.items()) {
        if (!text.is_string()) bad_header(path, fmt::format("__metadata__ \"{}\" is no string", key));
        metadata[key] = text.get<std::string>();
    }
    return metadata;
}

std::vector<int64_t> integers_of(const std::string& path, const std::string& name, const Json& tensor, const char* key) {
    std::vector<int64_t> result;
    if (!tensor[key].is_array()) bad_header(path, fmt::format("tensor \"{}\": {} is no list", name, key));
    for (const Json& value : tensor[key]) {
        const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
        if (!fits) bad_header(path, fmt::format("tensor \"{}\": {} holds {}, no size", name, key, value.dump()));
        result.push_back(value.get<int64_t>());
    }
    return result;
}

TensorEntry entry_of(const std::string& path, const std::string& name, const Json& tensor) {
    const bool complete = tensor.is_object() && tensor.size() == 3 && tensor.contains("dtype") && tensor["dtype"].is_string() &&
                          tensor.contains("shape") && tensor.contains("data_offsets");
    if (!complete) bad_header(path, fmt::format("tensor \"{}\" is not described by dtype, shape and data_offsets", name));
    TensorEntry entry;
    entry.spec = {name, tensor["dtype"].get<std::string>(), integers_of(path, name, tensor, "shape")};
    const int64_t element_bytes = dtype_bytes(entry.spec.dtype);
    if (element_bytes == 0) {
        throw UserError("checkpoint.unknown_dtype", path,
                        fmt::format("{}: tensor \"{}\" has dtype \"{}\", which is not supported. Convert it to one of BOOL, "
                                    "U8 to U64, I8 to I64, F8_E4M3, F8_E5M2, F16, BF16, F32, F64.",
                                    path, name, entry.spec.dtype));
    }
    const auto offsets = integers_of(path, name, tensor, "data_offsets");
    if (offsets.size() != 2 || offsets[0] > offsets[1]) {
        bad_header(path, fmt::format("tensor \"{}\": data_offsets are no begin and end", name));
    }
    entry.begin_bytes = offsets[0];
    entry.bytes = offsets[1] - offsets[0];
    const auto elements = elements_of(entry.spec.shape, element_bytes);
    if (!elements || *elements * element_bytes != entry.bytes) {
        throw UserError("checkpoint.bad_shape", path,
                        fmt::format("{}: tensor \"{}\" is {} [{}] but has {} bytes in the file. Take another copy or an earlier "
                                    "checkpoint.",
                                    path, name, entry.spec.dtype, fmt::join(entry.spec.shape, ", "), entry.bytes));
    }
    entry.elements = *elements;
    return entry;
}

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

[[noreturn]] void cannot_read(const std::string& path) {
    throw UserError("checkpoint.cannot_read", path, fmt::format("cannot read {}: {}.", path, std::strerror(errno)));
}

[[noreturn]] void ends_in_header(const std::string& path, int64_t wanted_bytes, int64_t file_bytes) {
    throw UserError("checkpoint.truncated", path,
                    fmt::format("{} ends in its header: {} bytes were expected, the file has {}. Take another copy or an earlier "
                                "checkpoint.",
                                path, wanted_bytes, file_bytes));
}

}  // namespace

SafetensorsReader::SafetensorsReader(std::string path) : path_(std::move(path)) {
    file_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file_ < 0) cannot_read(path_);
    try {
        read_header();
    } catch (...) {
        ::close(file_);
        throw;
    }
}

SafetensorsReader::SafetensorsReader(SafetensorsReader&& other) noexcept
    : path_(std::move(other.path_)),
      file_(std::exchange(other.file_, -1)),
      data_begin_bytes_(other.data_begin_bytes_),
      tensors_(std::move(other.tensors_)),
      by_name_(std::move(other.by_name_)),
      metadata_(std::move(other.metadata_)) {}

SafetensorsReader::~SafetensorsReader() {
    if (file_ >= 0) ::close(file_);
}

void SafetensorsReader::read_header() {
    struct stat status = {};
    if (::fstat(file_, &status) != 0) cannot_read(path_);
    const int64_t file_bytes = status.st_size;
    uint64_t length = 0;
    if (file_bytes < kLengthBytes) ends_in_header(path_, kLengthBytes, file_bytes);
    if (read_all(file_, &length, kLengthBytes, 0) != kLengthBytes) cannot_read(path_);
    if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
        bad_header(path_, fmt::format("its header would be {} bytes long, over the limit of {}", length, kMaxHeaderBytes));
    }
    data_begin_bytes_ = kLengthBytes + static_cast<int64_t>(length);
    if (data_begin_bytes_ > file_bytes) ends_in_header(path_, data_begin_bytes_, file_bytes);
    std::string text(length, '\0');
    if (read_all(file_, text.data(), static_cast<int64_t>(length), kLengthBytes) != static_cast<int64_t>(length))
        cannot_read(path_);
    if (text.empty() || text[0] != '{') bad_header(path_, "its header does not begin with {");

    const Json header = parse(path_, text);
    for (const auto& [name, value] : header.items()) {
        if (name == "__metadata__") {
            metadata_ = metadata_of(path_, value);
        } else {
            tensors_.push_back(entry_of(path_, name, value));
        }
    }
    // Empty tensors lie before the one that begins at the same byte.
    std::sort(tensors_.begin(), tensors_.end(), [](const TensorEntry& a, const TensorEntry& b) {
        return std::tie(a.begin_bytes, a.bytes) < std::tie(b.begin_bytes, b.bytes);
    });
    check_offsets(path_, tensors_, file_bytes - data_begin_bytes_);
    for (size_t i = 0; i < tensors_.size(); ++i) by_name_[tensors_[i].spec.name] = i;
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

void SafetensorsReader::read(std::string_view name, int64_t element_begin, int64_t count, void* data) const {
    const TensorEntry& tensor = find(name);
    ensure_in_range(tensor, element_begin, count);
    const int64_t element_bytes = dtype_bytes(tensor.spec.dtype), bytes = count * element_bytes;
    const int64_t got = read_all(file_, data, bytes, data_begin_bytes_ + tensor.begin_bytes + element_begin * element_bytes);
    if (got < 0) cannot_read(path_);
    if (got < bytes) {
        throw UserError("checkpoint.truncated", path_,
                        fmt::format("{} became shorter while tensor \"{}\" was read: {} of {} bytes. Is another job writing it?",
                                    path_, name, got, bytes));
    }
}

}  // namespace lockstep::checkpoint
