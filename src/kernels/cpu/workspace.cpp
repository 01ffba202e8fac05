// Workspace sizes that do not depend on the instruction set. (Those of matmul and attention are next to their plans.)
#include "kernels/cpu/bias.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/optimizer.h"
#include "kernels/cpu/optimizer_pieces.h"
#include "kernels/cpu/rows.h"

namespace lockstep::kernels::cpu {

int64_t row_sums_workspace_bytes(int64_t n, int threads) { return threads * padded(n) * 4; }
int64_t rms_norm_backward_workspace_bytes(int64_t n, int threads) { return row_sums_workspace_bytes(n, threads); }
int64_t layer_norm_backward_workspace_bytes(int64_t n, int threads) { return 2 * row_sums_workspace_bytes(n, threads); }

int64_t sum_of_squares_pieces(int64_t n) { return (n + kSquareSumPiece - 1) / kSquareSumPiece; }

int64_t sum_of_squares_workspace_bytes(int64_t n) { return sum_of_squares_pieces(n) * static_cast<int64_t>(sizeof(SquareSum)); }

}  // namespace lockstep::kernels::cpu
