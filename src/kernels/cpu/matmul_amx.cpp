// The packed matrix product by AMX.
#include "kernels/cpu/amx_tiles.h"

namespace lockstep::kernels::cpu::LOCKSTEP_ISA {

extern const Bf16Matmuls packed_matmul;

namespace {

template <class Out>
void amx_matmul(const MatmulShape& s, const Bf16* a, const Bf16* b, Out* c, const Out* start, float* workspace) {
    const TileSession session;
    packed_matmul_of<Bf16, Out, TileMath>(s, a, b, c, start, workspace);
}

}  // namespace

constinit const Bf16Matmuls packed_matmul{amx_matmul<Bf16>, amx_matmul<float>};

}  // namespace lockstep::kernels::cpu::LOCKSTEP_ISA
