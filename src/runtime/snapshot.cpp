#include "runtime/snapshot.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <vector>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "ir/text.h"

namespace lockstep::runtime {
namespace {

using checkpoint::TensorSpec;

const char* dtype_of(const ir::Program& p) { return p.params.front().dtype == Dtype::F64 ? "F64" : "F32"; }

std::string prefix_of(StateKind kind) {
    return kind == StateKind::Weights ? "" : kind == StateKind::Moment1 ? "exp_avg." : "exp_avg_sq.";
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
            specs.push_back({prefix_of(kind) + global_name(param, i), dtype_of(p), global_shape(param)});
        });
    }
    auto writer = checkpoint::SafetensorsWriter::create(path, checkpoint::SafetensorsLayout(specs, {{"format", "pt"}}));
    trainer.ranks().parallel([&](Executor& e) {
        for (StateKind kind : kinds) {
            for_each_state_run(e, kind, [&](const Run& run, char* data) {
                const ir::Unit& unit = *p.unit(run.param->block);
                if (is_owner(p, *run.param, split_of(unit, kind), e.rank()))
                    writer.write(prefix_of(kind) + global_name(*run.param, run.instance), run.global_begin, run.count, data);
            });
        }
    });
    writer.finish();
}

// Reads elements as this program's type, whichever of the two the file has.
template <class From, class To>
void read_as(const checkpoint::SafetensorsReader& reader, const std::string& name, const Run& run, char* data) {
    std::vector<From> piece(static_cast<size_t>(run.count));
    reader.read(name, run.global_begin, run.count, piece.data());
    for (size_t i = 0; i < piece.size(); ++i) reinterpret_cast<To*>(data)[i] = static_cast<To>(piece[i]);
}

void read_file(Ranks& ranks, const std::string& path, const std::vector<StateKind>& kinds) {
    const ir::Program& p = ranks.executor(0).program();
    const checkpoint::SafetensorsReader reader(path);
    for (StateKind kind : kinds) {
        for_each_parameter(p, [&](const ir::Parameter& param, int64_t i) {
            const std::string name = prefix_of(kind) + global_name(param, i);
            const TensorSpec& spec = reader.find(name).spec;
            const bool is_float = spec.dtype == "F32" || spec.dtype == "F64";
            if (!is_float || spec.shape != global_shape(param)) {
                throw UserError(
                    "checkpoint.other_model", path,
                    fmt::format("{}: {} is {} [{}], but the recipe's model has [{}]: resume with the recipe that made it", path,
                                name, spec.dtype, fmt::join(spec.shape, ", "), fmt::join(global_shape(param), ", ")));
            }
        });
    }
    ranks.parallel([&](Executor& e) {
        for (StateKind kind : kinds) {
            for_each_state_run(e, kind, [&](const Run& run, char* data) {
                const std::string name = prefix_of(kind) + global_name(*run.param, run.instance);
                const bool file_is_double = reader.find(name).spec.dtype == "F64", double_here = run.param->dtype == Dtype::F64;
                if (file_is_double == double_here) reader.read(name, run.global_begin, run.count, data);
                else if (file_is_double) read_as<double, float>(reader, name, run, data);
                else read_as<float, double>(reader, name, run, data);
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
    read_file(ranks, folder + "/model.safetensors", {StateKind::Weights});
}

checkpoint::Manifest load(Trainer& trainer, const std::string& folder) {
    const checkpoint::Manifest m = checkpoint::read_manifest(folder);
    load_weights(trainer.ranks(), folder);
    read_file(trainer.ranks(), folder + "/optimizer.safetensors", {StateKind::Moment1, StateKind::Moment2});
    for (int r = 0; r < trainer.ranks().count(); ++r)
        *trainer.ranks().executor(r).scalar("steps") = static_cast<double>(m.optimizer_steps);
    trainer.set_progress({m.steps, m.samples_seen, m.tokens_seen});
    return m;
}

}  // namespace lockstep::runtime
