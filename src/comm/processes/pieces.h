// Areas of tensors, and the pieces of them that messages carry. Counts are of elements.
#pragma once

#include <algorithm>
#include <cstdint>

namespace lockstep::comm::processes {

// Rows of `run` elements, `stride` apart.
struct Area {
    int64_t base = 0, rows = 0, run = 0, stride = 0;
    int64_t elements() const { return rows * run; }
};

// Some whole rows of an area, or a part of one row.
struct Piece {
    int64_t row = 0, rows = 0, column = 0, columns = 0;
    int64_t elements() const { return rows * columns; }
};

// An area is cut into this many pieces of at most `limit` elements.
inline int64_t count_pieces(const Area& a, int64_t limit) {
    if (a.elements() == 0) return 0;
    if (a.run >= limit) return a.rows * ((a.run + limit - 1) / limit);
    const int64_t rows = limit / a.run;
    return (a.rows + rows - 1) / rows;
}

inline Piece piece_of(const Area& a, int64_t limit, int64_t index) {
    if (a.run >= limit) {
        const int64_t in_a_row = (a.run + limit - 1) / limit, column = index % in_a_row * limit;
        return {index / in_a_row, 1, column, std::min(limit, a.run - column)};
    }
    const int64_t rows = limit / a.run, row = index * rows;
    return {row, std::min(rows, a.rows - row), 0, a.run};
}

inline int64_t first_element(const Area& a, const Piece& p) { return a.base + p.row * a.stride + p.column; }
inline bool is_one_run(const Area& a, const Piece& p) { return p.rows == 1 || a.stride == p.columns; }

}  // namespace lockstep::comm::processes
