#include "runtime/snapshot.h"

#include <fmt/format.h>

#include <exception>
#include <vector>

#include "base/checksum.h"
#include "base/error.h"
#include "checkpoint/elements.h"
#include "checkpoint/safetensors.h"
#include "ir/text.h"

namespace lockstep::runtime {
namespace {

using checkpoint::SafetensorsReader;
using checkpoint::TensorSpec;

// Reads elements as this program's type, whichever float type the file has.
void read_as(const SafetensorsReader& reader, const std::string& name, const Run& run, char* data, Dtype type,
             SafetensorsReader::Cursor& cursor) {
    const std::string& from = reader.find(name).spec.dtype;
    if (from == file_type(type)) return reader.read(name, run.global_begin, run.count, data, cursor);
    std::vector<char> piece(static_cast<size_t>(run.count * checkpoint::dtype_bytes(from)));
    reader.read(name, run.global_begin, run.count, piece.data(), cursor);
    checkpoint::convert(from, piece.data(), file_type(type), data, run.count);
}

void require_same_model(const ir::Program& p, const SafetensorsReader& reader, StateKind kind, const std::string& path) {
    for_each_parameter(p, [&](const ir::Parameter& param, int64_t i) {
        const std::string name = prefix_of(kind) + global_name(param, i);
        const bool there = reader.contains(name);
        const TensorSpec spec = there ? reader.find(name).spec : TensorSpec{name, "absent", {}};
        if (checkpoint::is_float(spec.dtype) && spec.shape == global_shape(param)) return;
        throw UserError("checkpoint.other_model", path,
                        fmt::format("{}: {} is {} [{}], but the recipe's model has [{}]: resume with the recipe that made it",
                                    path, name, spec.dtype, fmt::join(spec.shape, ", "), fmt::join(global_shape(param), ", ")));
    });
}

void read_state(Executor& e, const SafetensorsReader& reader, StateKind kind) {
    SafetensorsReader::Cursor cursor;
    for_each_state_run(e, kind, [&](const Run& run, char* data, Dtype type) {
        read_as(reader, prefix_of(kind) + global_name(*run.param, run.instance), run, data, type, cursor);
    });
}

// A rank's error is kept until all have ended, as it would end the job otherwise, and another checkpoint may be whole.
void read_file(Ranks& ranks, const std::string& folder, const checkpoint::Manifest& m, const std::vector<StateKind>& kinds) {
    const ir::Program& p = ranks.executor(0).program();
    const std::string& file = file_of(kinds.front());
    const SafetensorsReader reader = checkpoint::open_file(folder, m, file);
    for (StateKind kind : kinds) require_same_model(p, reader, kind, folder + "/" + file);
    std::vector<std::exception_ptr> errors(static_cast<size_t>(ranks.count()));
    ranks.parallel([&](Executor& e) {
        try {
            for (StateKind kind : kinds) read_state(e, reader, kind);
        } catch (const UserError&) {
            errors[static_cast<size_t>(e.rank())] = std::current_exception();
        }
    });
    for (const std::exception_ptr& error : errors) {
        if (error) std::rethrow_exception(error);
    }
}

}  // namespace

std::string prefix_of(StateKind kind) {
    return kind == StateKind::Moment1 ? "exp_avg." : kind == StateKind::Moment2 ? "exp_avg_sq." : "";
}

const std::string& file_of(StateKind kind) {
    const bool model = kind == StateKind::Weights || kind == StateKind::Copy;
    return model ? checkpoint::kModelFile : checkpoint::kOptimizerFile;
}

std::string_view file_type(Dtype type) { return type == Dtype::F64 ? "F64" : type == Dtype::BF16 ? "BF16" : "F32"; }

void for_each_parameter(const ir::Program& p, const std::function<void(const ir::Parameter&, int64_t)>& f) {
    for (const ir::Unit& u : p.units) {
        for (int64_t i = 0; i < u.count; ++i) {
            for (const ir::Segment& s : u.segments) {
                for (const ir::Member& m : s.members) f(*p.param(m.param), i);
            }
        }
    }
}

std::string program_hash(const ir::Program& program) { return hex_checksum(ir::print(program)); }

void load_weights(Ranks& ranks, const std::string& folder) {
    read_file(ranks, folder, checkpoint::read_manifest(folder), {StateKind::Weights, StateKind::Copy});
}

checkpoint::Manifest load(Trainer& trainer, const std::string& folder, const LoadParts& parts) {
    const checkpoint::Manifest m = checkpoint::read_manifest(folder);
    read_file(trainer.ranks(), folder, m, {StateKind::Weights, StateKind::Copy});
    const bool imported = m.steps == 0 && !m.has_optimizer();  // from elsewhere: moments are zero
    if (parts.optimizer && !imported) {
        read_file(trainer.ranks(), folder, m, {StateKind::Moment1, StateKind::Moment2});
        for (int r = 0; r < trainer.ranks().count(); ++r)
            *trainer.ranks().executor(r).scalar("steps") = static_cast<double>(m.optimizer_steps);
    }
    Progress progress = trainer.progress();
    if (parts.dataloader) progress.samples_seen = m.samples_seen;
    if (parts.train_state) progress.steps = m.steps, progress.tokens_seen = m.tokens_seen;
    trainer.set_progress(progress);
    return m;
}

}  // namespace lockstep::runtime
