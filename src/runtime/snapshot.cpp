#include "runtime/snapshot.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <vector>

#include "base/error.h"
#include "checkpoint/elements.h"
#include "checkpoint/safetensors.h"
#include "ir/text.h"

namespace lockstep::runtime {
namespace {

using checkpoint::TensorSpec;

// Element types as safetensors names them.
const char* file_type(Dtype type) { return type == Dtype::F64 ? "F64" : type == Dtype::BF16 ? "BF16" : "F32"; }

std::string prefix_of(StateKind kind) {
    return kind == StateKind::Moment1 ? "exp_avg." : kind == StateKind::Moment2 ? "exp_avg_sq." : "";
}

void for_each_parameter(const ir::Program& p, const std::function<void(const ir::Parameter&, int64_t)>& f) {
    for (const ir::Unit& u : p.units) {
        for (int64_t i = 0; i < u.count; ++i) {
            for (const ir::Segment& s : u.segments) {
                for (const ir::Member& m : s.members) f(*p.param(m.param), i);
            }
        }
    }
}

void write_file(Trainer& trainer, const std::string& path, const std::vector<StateKind>& kinds) {
    const ir::Program& p = trainer.ranks().executor(0).program();
    std::vector<TensorSpec> specs;
    for (StateKind kind : kinds) {
        for_each_parameter(p, [&](const ir::Parameter& param, int64_t i) {
            specs.push_back({prefix_of(kind) + global_name(param, i), file_type(p.units.front().master), global_shape(param)});
        });
    }
    auto writer = checkpoint::SafetensorsWriter::create(path, checkpoint::SafetensorsLayout(specs, {{"format", "pt"}}));
    trainer.ranks().parallel([&](Executor& e) {
        for (StateKind kind : kinds) {
            for_each_state_run(e, kind, [&](const Run& run, char* data, Dtype) {
                const ir::Unit& unit = *p.unit(run.param->block);
                if (is_owner(p, *run.param, place_of(unit, kind).split, e.rank()))
                    writer.write(prefix_of(kind) + global_name(*run.param, run.instance), run.global_begin, run.count, data);
            });
        }
    });
    writer.finish();
}

// Reads elements as this program's type, whichever float type the file has.
void read_as(const checkpoint::SafetensorsReader& reader, const std::string& name, const Run& run, char* data, Dtype type) {
    const std::string& from = reader.find(name).spec.dtype;
    if (from == file_type(type)) return reader.read(name, run.global_begin, run.count, data);
    std::vector<char> piece(static_cast<size_t>(run.count * checkpoint::dtype_bytes(from)));
    reader.read(name, run.global_begin, run.count, piece.data());
    checkpoint::convert(from, piece.data(), file_type(type), data, run.count);
}

void read_file(Ranks& ranks, const std::string& path, const std::vector<StateKind>& kinds) {
    const ir::Program& p = ranks.executor(0).program();
    const checkpoint::SafetensorsReader reader(path);
    for (StateKind kind : kinds) {
        for_each_parameter(p, [&](const ir::Parameter& param, int64_t i) {
            const std::string name = prefix_of(kind) + global_name(param, i);
            const TensorSpec& spec = reader.find(name).spec;
            if (!checkpoint::is_float(spec.dtype) || spec.shape != global_shape(param)) {
                throw UserError(
                    "checkpoint.other_model", path,
                    fmt::format("{}: {} is {} [{}], but the recipe's model has [{}]: resume with the recipe that made it", path,
                                name, spec.dtype, fmt::join(spec.shape, ", "), fmt::join(global_shape(param), ", ")));
            }
        });
    }
    ranks.parallel([&](Executor& e) {
        for (StateKind kind : kinds) {
            for_each_state_run(e, kind, [&](const Run& run, char* data, Dtype type) {
                read_as(reader, prefix_of(kind) + global_name(*run.param, run.instance), run, data, type);
            });
        }
    });
}

}  // namespace

std::string program_hash(const ir::Program& program) {
    const std::string text = ir::print(program);
    return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::string save(Trainer& trainer, const compile::Recipe& recipe, const std::string& root) {
    const ir::Program& p = trainer.ranks().executor(0).program();
    checkpoint::Manifest m;
    m.steps = trainer.progress().steps;
    m.samples_seen = trainer.progress().samples_seen;
    m.tokens_seen = trainer.progress().tokens_seen;
    m.optimizer_steps = static_cast<int64_t>(*trainer.ranks().executor(0).scalar("steps"));
    m.dtype = dtype_of(p);
    m.program_hash = program_hash(p);
    m.recipe = recipe.toml();
    checkpoint::NewCheckpoint folder(root, m.steps);
    write_file(trainer, folder.path("model.safetensors"), {StateKind::Weights});
    write_file(trainer, folder.path("optimizer.safetensors"), {StateKind::Moment1, StateKind::Moment2});
    return folder.publish(m);
}

void load_weights(Ranks& ranks, const std::string& folder) {
    read_file(ranks, folder + "/model.safetensors", {StateKind::Weights, StateKind::Copy});
}

checkpoint::Manifest load(Trainer& trainer, const std::string& folder) {
    const checkpoint::Manifest m = checkpoint::read_manifest(folder);
    load_weights(trainer.ranks(), folder);
    if (m.steps > 0)  // else imported weights: moments are zero
        read_file(trainer.ranks(), folder + "/optimizer.safetensors", {StateKind::Moment1, StateKind::Moment2});
    for (int r = 0; r < trainer.ranks().count(); ++r)
        *trainer.ranks().executor(r).scalar("steps") = static_cast<double>(m.optimizer_steps);
    trainer.set_progress({m.steps, m.samples_seen, m.tokens_seen});
    return m;
}

}  // namespace lockstep::runtime
