// What all processes of vector_ops go by: the sizes of a call, and how a process walks over them.
#pragma once

#include "ecorl_products.hpp"
#include "vector_ops.hpp"

#ifdef ECORL_CSIM
#include "vector_ops_sim.hpp"
#define VECTOR_COUNT(slot, amount) ::ecorl::vector::count(::ecorl::vector::slot, amount)
#else
#define VECTOR_COUNT(slot, amount)
#endif

namespace ecorl {
namespace vector {

using rows_t = hls::stream<row_t>;
using words_t = hls::stream<word_t>;
using tables_t = hls::stream<table_word_t>;

// ---- what passes beside the words ---------------------------------------------------------------

/// What the first look needs of a head, or of a row: it is known before any of their words.
struct opening_t {
    fixed_t fixed;       ///< to fixed point; EMBED: its shift alone
    std::int32_t right;  ///< CONTEXT: shift to the row's exponent
};

/// A part of a row that has a scale of its own: a head, or all of it. It accompanies its words.
struct part_t {
    row_t row;
    std::int32_t exponent;  ///< of the values that are quantised
    std::int32_t room;      ///< left shift that fills 31 bits, before RMSNorm or RoPE
    bool is_rotated;
    bool is_zero;  ///< nothing but zeros, or a gate without an up
};

/// What the first look finds in a part; in GATE first of gates, then of ups.
struct first_look_t {
    value_t peak;
    value_t changed;  ///< not 0 where a value was clipped
};

/// What the second look needs of a part: scalars that rest on the first.
struct transform_t {
    gate_t gate;
    std::int32_t room;
    bool is_rotated;
    bool is_zero;
};

struct second_look_t {
    value_t peak;
    value_t changed;
    sint<46> squares;  ///< NORM: their sum
};

// ---- sizes --------------------------------------------------------------------------------------

/// A task and what follows from it.
struct call_t {
    task_t task;
    dim_t words;       ///< of a row's values; GATE: of its gates
    dim_t heads;       ///< HEAD, CONTEXT
    dim_t unit;        ///< words of a head
    dim_t panels;      ///< parts of a row: HEAD: its heads
    dim_t look_words;  ///< of a first look
    dim_t looks;       ///< first looks of a part: GATE 2
    dim_t part_words;  ///< of a part at the second look
    bool reads_products;
    bool reads_rows;   ///< of the residual stream, or of the embedding
    bool looks_first;  ///< whether words pass at all: not at CONTEXT's first stage alone
    bool looks_twice;
    bool gives_codes;
    bool gives_values;
};

inline call_t call_of(const task_t& task) {
#pragma HLS INLINE
    const bool is_head = task.op == HEAD;
    const bool is_gate = task.op == GATE;
    const bool is_context = task.op == CONTEXT;
    const bool has_heads = is_head || is_context;
    call_t call;
    call.task = task;
    call.words = words_of(task.n);
    call.unit = has_heads ? words_of(task.head) : 1;
    const sint<18> n = has_heads ? task.n : 0;
    const sint<9> head = has_heads ? task.head : 1;
    call.heads = static_cast<dim_t>(quotient<17, 8>(n, head));
    call.panels = is_head ? call.heads : 1;
    call.looks = is_gate ? 2 : 1;
    call.look_words = is_head ? call.unit : call.words;
    call.part_words = call.look_words;
    call.looks_first = !is_context || task.last_stage >= PEAK;
    call.reads_products = task.op != EMBED && task.op != NORM && call.looks_first;
    call.reads_rows = task.op == EMBED || task.op == NORM || task.op == RESIDUAL;
    call.gives_values = task.op == EMBED || task.op == RESIDUAL || task.op == FIXED;
    const dim_t enough = is_gate ? dim_t(H_PEAK) : dim_t(CONTEXT_CODES);
    const bool is_staged = is_gate || is_context;
    call.looks_twice = !call.gives_values && (!is_staged || task.last_stage >= enough);
    call.gives_codes = call.looks_twice && (!is_staged || task.last_stage == GATE_CODES);
    return call;
}

/// How the products of a call are read.
inline products_t products_of(const call_t& call) {
#pragma HLS INLINE
    const task_t& task = call.task;
    const bool is_context = task.op == CONTEXT;
    const dim_t words = call.looks * call.words;
    return {call.reads_products ? task.m : 0,    words,      is_context ? 1 : task.parts,
            is_context ? call.heads : 0,         call.unit,  task.stride,
            task.op == HEAD ? call.unit : words, call.panels};
}

/// Words that HEADER_HEADS exponents, or what is left of them, stand in.
constexpr int HEADER_WORDS = HEADER_HEADS / LANES;

/// The place of a word: word of a part, row of its block, part of the row. The order of all
/// processes: of a block of 16 rows the first part of each row, then the second of each.
struct part_walk_t {
    dim_t word, row, panel;
    dim_t last;  ///< of all rows, from the block's first one on
};

inline part_walk_t first_part(const call_t& call) {
#pragma HLS INLINE
    return {0, 0, 0, call.task.m - 1};
}

/// To the next word of parts of `words` words. Ends are told from where the walk is, and not from
/// the next place: a sum before a comparison would be in the recurrence too.
inline void go_on(part_walk_t& at, dim_t words, dim_t panels) {
#pragma HLS INLINE
    const bool ends_part = at.word == words - 1;
    const bool ends_rows = ends_part && (at.row == BLOCK_ROWS - 1 || at.row == at.last);
    const bool ends_block = ends_rows && at.panel == panels - 1;
    at.word = ends_part ? 0 : at.word + 1;
    if (ends_part) at.row = ends_rows ? 0 : at.row + 1;
    if (ends_rows) at.panel = ends_block ? 0 : at.panel + 1;
    if (ends_block) at.last -= BLOCK_ROWS;
}

inline scale_t scale_of(const row_t& row) {
#pragma HLS INLINE
    return {row.scale_m, row.scale_e};
}

inline void set_scale(row_t& row, scale_t scale) {
#pragma HLS INLINE
    row.scale_m = scale.m;
    row.scale_e = scale.e;
}

}  // namespace vector
}  // namespace ecorl
