"""Kernel sources that the lint's rules on hardware refuse.

`REFUSED` has them by rule, with their bad lines marked ``//! rule ...``; `BEGIN` stands before
each.
"""

from __future__ import annotations

BEGIN = """
#include <ap_int.h>
#include <hls_stream.h>
#include <cstdint>
using value_t = ap_int<32>;
using code_t = ap_int<8>;
struct word_t { value_t lane[16]; };
inline value_t larger(value_t a, value_t b) {
#pragma HLS INLINE
    return a > b ? a : b;
}
"""

REFUSED = {
    "stream-width": [
        """
        template <int ROWS, int COLUMNS> struct tile_t { value_t value[ROWS][COLUMNS]; };
        struct pair_t { tile_t<16, 8> part[2]; };
        template <int ROWS> void give(hls::stream<tile_t<ROWS, 16> >& out) {
            tile_t<ROWS, 16> tile;
            out.write(tile);
        }
        void top(hls::stream<ap_int<4097> >& wide) {  //! stream-width
            hls::stream<tile_t<64, 16>, 2> tiles("tiles");  //! stream-width
            hls::stream<pair_t, 2> pairs("pairs");  //! stream-width
            hls::stream<ap_uint<5000>, 2> bits[2];  //! stream-width
            give<64>(tiles);
        }
        """
    ],
    "stream-depth": [
        """
        void top() {
        #pragma HLS DATAFLOW
            hls::stream<word_t> words("words");  //! stream-depth
            hls::stream<value_t, 0> none("none"), some[2];  //! stream-depth
        #pragma HLS STREAM variable = words depth = 64
        }
        """
    ],
    "channels": [
        # a FIFO that an earlier process reads: what it holds is of the turn before
        """
        void add(hls::stream<value_t>& in, hls::stream<value_t>& sums, hls::stream<value_t>& out) {
            out.write(in.read() + sums.read());
        }
        void keep(hls::stream<value_t>& in, hls::stream<value_t>& sums,
                  hls::stream<value_t>& out) {
            const value_t sum = in.read();
            sums.write(sum);
            out.write(sum);
        }
        void top(hls::stream<value_t>& in, hls::stream<value_t>& out, int n) {
            hls::stream<value_t, 4> sums("sums");  //! channels
            hls::stream<value_t, 4> added("added");  //! channels
            sums.write(0);
        TURN:
            for (int i = 0; i < n; ++i) {
        #pragma HLS DATAFLOW
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                add(in, sums, added);  //! channels
                keep(added, sums, out);
            }
        }
        """,
        # within a function, and through a process that is a region itself
        """
        template <int BY> void add(hls::stream<value_t>& in, hls::stream<value_t>& out) {
            out.write(in.read() + BY);
        }
        void both(hls::stream<value_t>& in, hls::stream<value_t>& out) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 2> between("between");
            add<1>(in, between);
            add<2>(between, out);
        }
        void top(hls::stream<value_t>& in, hls::stream<value_t>& out) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 2> first("first"), second("second");
            add<3>(first, out);  //! channels
            add<4>(in, second);
            both(second, first);
        }
        """,
        # elements of an array that is handed over whole
        """
        void even(hls::stream<value_t, 4> (&between)[2]) {
            between[0].write(1);
            between[1].read();
        }
        void odd(hls::stream<value_t, 4> (&between)[2]) {
            between[1].write(between[0].read());
        }
        void top() {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 4> between[2];
            even(between);  //! channels
            odd(between);
        }
        """,
        # elements that a loop chooses: each may be any
        """
        void even(hls::stream<value_t, 4> (&between)[2]) {
        LANE:
            for (int i = 0; i < 2; ++i) between[i].write(i);
            between[1].read();
        }
        void odd(hls::stream<value_t, 4> (&between)[2], int n) {
            between[n & 1].write(between[0].read());
        }
        void top(int n) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 4> between[2];
            even(between);  //! channels
            odd(between, n);
        }
        """,
        # two processes at one end
        """
        void give(hls::stream<value_t>& out) { out.write(1); }
        void take(hls::stream<value_t>& in) { in.read(); }
        void look(hls::stream<value_t>& in, value_t& is_none) { is_none = in.empty(); }
        void top(hls::stream<value_t>& in, value_t& is_none) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 2> values("values");
            give(values);
            give(values);  //! channels
            take(values);
            take(in);
            look(in, is_none);  //! channels
        }
        """,
    ],
    "pointer-struct": [
        """
        struct channels_t {
            const value_t* mantissa;
            int shift;
        };
        struct head_t { channels_t channels; bool is_rotated; };
        struct counter_t {
            int& count;
            void add() { ++count; }  //! pointer-struct
        };
        value_t first(const channels_t& by) { return by.mantissa[0]; }  //! pointer-struct
        value_t copied(head_t by) {  //! pointer-struct
        #pragma HLS INLINE off
            return by.channels.mantissa[0];
        }
        value_t pointed(const head_t* by) { return by->channels.mantissa[0]; }  //! pointer-struct
        value_t top(const value_t mantissa[16], int n) {
            const channels_t by = {mantissa, 1};
            const head_t head = {by, false};
            counter_t counter = {n};
            counter.add();
            return first(by) + copied(head) + pointed(&head);
        }
        """
    ],
    "carried": [
        # a loop of one value that is unrolled in part
        """
        value_t peak_of(const value_t v[4096], int n, value_t& mark) {
            value_t peak = 0, changed = 0;
            ap_int<64> sum = 0;
        PEAK:
            for (int j = 0; j < n; ++j) {  //! carried
        #pragma HLS PIPELINE II = 1
        #pragma HLS UNROLL factor = 16
        #pragma HLS LOOP_TRIPCOUNT min = 16 max = 4096
                peak = larger(peak, v[j]);
            }
        SUM:
            for (int j = 0; j < n; ++j) {  //! carried
        #pragma HLS UNROLL factor = 16
        #pragma HLS LOOP_TRIPCOUNT min = 16 max = 4096
                sum += v[j];
            }
            mark |= changed | value_t(sum);
            return peak;
        }
        """,
        # the lanes of a word, one after the other
        """
        void clip(value_t v, value_t& changed) {
        #pragma HLS INLINE
            changed |= v >> 30;
        }
        value_t top(hls::stream<word_t>& in, int n) {
            value_t changed = 0, least = 0;
            value_t kept[2] = {0, 0};
        WORDS:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 256
                const word_t word = in.read();
                for (int lane = 0; lane < 16; ++lane) {  //! carried
        #pragma HLS UNROLL
                    clip(word.lane[lane], changed);
                    kept[i & 1] = larger(kept[i & 1], word.lane[lane]);
                    const value_t before = least;
                    if (word.lane[lane] < before) least = word.lane[lane];
                }
            }
            return changed + least + kept[0] + kept[1];
        }
        """,
    ],
    "aggregate": [
        """
        struct step_t { code_t value[4]; };
        struct scale_t { int m, e; };
        struct block_t { step_t query[64][32]; scale_t scale[64][16]; };
        void top(hls::stream<step_t>& in, hls::stream<word_t>& out, int n) {
            static block_t block;
        #pragma HLS ARRAY_PARTITION variable = block.query complete dim = 1  //! aggregate
        #pragma HLS ARRAY_PARTITION variable = block.scale cyclic factor = 4 dim = 2  //! aggregate
            word_t sums[16];
        #pragma HLS ARRAY_PARTITION variable = sums complete  //! aggregate
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 32
                block.query[0][i] = in.read();
                block.scale[i][0].m = i;
                step_t step = block.query[1][i];  //! aggregate partition
                sums[i & 15].lane[0] = step.value[i & 3];
                out.write(sums[0]);
            }
        }
        """,
        # four words of one bank, in a function that does not know of the partition
        """
        value_t sum_of(const value_t row[128], int i) {
        #pragma HLS INLINE
            return row[i] + row[i + 8] + (i > 3 ? row[i + 16] : row[i + 24]);  //! aggregate
        }
        void top(hls::stream<value_t>& in, hls::stream<value_t>& out, int n) {
            static value_t rows[4][128];
        #pragma HLS ARRAY_PARTITION variable = rows complete dim = 1
        #pragma HLS ARRAY_PARTITION variable = rows cyclic factor = 8 dim = 2
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128
                rows[0][i] = in.read();
                out.write(sum_of(rows[1], i));
            }
        }
        """,
    ],
    "partition": [
        """
        struct codes_t { code_t code[64]; };
        struct intake_t { codes_t beat; int row; };
        code_t next(hls::stream<codes_t>& in, intake_t& at, int i) {
        #pragma HLS INLINE
            if (i % 64 == 0) at.beat = in.read();
            return at.beat.code[i % 64];
        }
        void top(hls::stream<codes_t>& in, hls::stream<word_t>& out, hls::stream<code_t>& codes,
                 int n, int from) {
            intake_t intake;  //! partition
            value_t sums[4];  //! partition
            value_t rows[4][128];  //! partition
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128
                sums[i % 4] = from;
                rows[0][i] = i;
                word_t word, turned;  //! partition
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    word.lane[lane] = sums[from];
                }
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    turned.lane[lane] = word.lane[(lane + from) % 16] + rows[1][from];
                }
                codes.write(next(in, intake, i));
                out.write(turned);
            }
        }
        """
    ],
    "mux": [
        """
        void rotate(const value_t v[128], hls::stream<word_t>& out, int d) {
            const int half = d / 2;
        ROTATE:
            for (int j = 0; j < half; j += 16) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 8
                word_t word;
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    word.lane[lane] = v[j + lane] + v[half + j + lane];  //! mux
                }
                out.write(word);
            }
        }
        void top(hls::stream<word_t>& out, int d) {
            static value_t values[128];
        #pragma HLS ARRAY_PARTITION variable = values complete
            rotate(values, out, d);
        }
        """,
        """
        void top(hls::stream<word_t>& out, int first, int n) {
            static value_t values[4096];
        #pragma HLS ARRAY_PARTITION variable = values cyclic factor = 16
            static value_t table[32];
        #pragma HLS ARRAY_PARTITION variable = table complete
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128
                word_t word;
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    word.lane[lane] = values[first + 8 * i + lane];  //! mux
                }
                word.lane[0] += table[i];  //! mux
                out.write(word);
            }
        }
        """,
    ],
    "wide-scalar": [
        """
        template <typename T> constexpr T rounded_up(T a, T b) { return a / b + (a % b != 0); }
        template <int N, int D> ap_int<N + 1> quotient(ap_int<N + 1> n, ap_int<D + 1> d) {
            return n / d;
        }
        int top_bit(std::int64_t v) {
        #pragma HLS INLINE
            int bit = 0;
            for (int i = 0; i < 63; ++i) {  //! wide-scalar
        #pragma HLS UNROLL
                if ((v >> i) != 0) bit = i;
            }
            return bit;
        }
        std::int64_t top(std::int64_t m, std::int64_t n, int rows, int width) {
            const std::int64_t mean = m / n;  //! wide-scalar
            const int rest = rows % 3;  //! wide-scalar
            const int panels = rounded_up(rows, width);  //! wide-scalar
            ap_int<40> narrow = m;
            narrow /= n;  //! wide-scalar
            const std::int64_t square = (mean * m) >> 32;  //! wide-scalar
            return square + rest + panels + top_bit(m) + quotient<40, 20>(narrow, 3);
        }
        """
    ],
    "axi-aggregate": [
        """
        extern "C" void top(const word_t* in, word_t* out, word_t* more) {
        #pragma HLS INTERFACE m_axi port = in bundle = gmem0 max_read_burst_length = \\
            64 offset = slave
        #pragma HLS INTERFACE m_axi port = out bundle = gmem1 offset = slave
        #pragma HLS AGGREGATE variable = in compact = bit  //! axi-aggregate
        #pragma HLS aggregate compact=bit variable=out  //! axi-aggregate
        #pragma HLS INTERFACE mode = m_axi port = more bundle = gmem2
        #pragma HLS AGGREGATE variable = more compact = bit  //! axi-aggregate
            out[0] = in[0];
        }
        """
    ],
    "dataflow-arguments": [
        """
        struct task_t { int op, m; };
        struct plan_t { int m, n; };
        #define PROCESS(...) __VA_ARGS__
        plan_t plan_of(const task_t& task) {
        #pragma HLS INLINE
            return {task.m, task.op};
        }
        void load(hls::stream<value_t>& out, const plan_t plan, bool is_whole) {
            out.write(is_whole ? plan.m : plan.n);
        }
        void store(hls::stream<value_t>& in, value_t out[16], int m) { out[m & 15] = in.read(); }
        void top(value_t out[32], const task_t task) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 4> values("values");
            load(values,
                 plan_of(task),  //! dataflow-arguments
                 task.op == 3);  //! dataflow-arguments
            PROCESS(store(values, out + 16, task.m));  //! dataflow-arguments
        }
        void rows(value_t out[32], const task_t task) {
        ROWS:
            for (int r = 0; r < task.m; ++r) {
        #pragma HLS DATAFLOW
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                hls::stream<value_t, 4> values("values");
                store(values, out, task.m);  //! dataflow-arguments
            }
        }
        """
    ],
    "burst": [
        """
        extern "C" void top(const word_t* in, word_t* out, value_t* marks, int n, int stride) {
        #pragma HLS INTERFACE mode = m_axi port = in bundle = gmem0 offset = slave
        #pragma HLS INTERFACE m_axi port = out bundle = gmem1 offset = slave
        #pragma HLS INTERFACE m_axi port = marks bundle = gmem2 offset = slave
            int word = 0, head = 0, from = 0;
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096
                word_t read = in[i / 4 * stride + (i & 3)];  //! burst
                if (read.lane[0] > 3) read = in[i];  //! burst
                out[head * stride + word] = read;  //! burst
                marks[2 * i] = 1;  //! burst
                marks[from] = 1;  //! burst
                if (i & 1) marks[from++] = read.lane[1];  //! burst
                if (++word < 4) continue;
                word = 0;
                ++head;
                marks[n + i] = 0;  //! burst
            }
        }
        """
    ],
    "burst-size": [
        """
        struct wide_t { value_t lane[32]; };
        struct odd_t { value_t lane[5]; };
        extern "C" void top(const word_t* in, word_t* out, const odd_t* odd, const wide_t* wide,
                            const value_t* marks, word_t* both) {
        #pragma HLS INTERFACE m_axi port=in bundle=g0 max_read_burst_length=256  //! burst-size
        #pragma HLS INTERFACE m_axi port=out bundle=g1 max_write_burst_length=65  //! burst-size
        #pragma HLS INTERFACE m_axi port=odd bundle=g2 max_read_burst_length=256  //! burst-size
        #pragma HLS INTERFACE m_axi port=wide bundle=g3 max_read_burst_length=33  //! burst-size
        #pragma HLS INTERFACE m_axi port=marks bundle=g4 max_read_burst_length=256  //! burst-size
        #pragma HLS INTERFACE m_axi port=both bundle=g4 max_write_burst_length=64
            both[0] = out[0] = in[0];
        }
        """,
        # the mode as an option, a number that is none, and ports that share the default bundle
        """
        constexpr int BURST = 256;
        extern "C" void top(word_t* in, word_t* named, word_t* none, const value_t* narrow,
                            const word_t* words) {
        #pragma HLS INTERFACE mode=m_axi port=in bundle=g max_read_burst_length=65  //! burst-size
        #pragma HLS INTERFACE m_axi port=named bundle=g1 max_read_burst_length=BURST  //! burst-size
        #pragma HLS INTERFACE m_axi port=none bundle=g2 max_write_burst_length = 0  //! burst-size
        #pragma HLS INTERFACE m_axi port=narrow max_read_burst_length=256  //! burst-size
        #pragma HLS INTERFACE m_axi port=words
            in[0] = named[0] = none[0] = words[0];
        }
        """,
    ],
    "refill": [
        # an array that starts anew for each tile: from streams to a stream
        """
        void load(hls::stream<word_t>& out, int blocks, int words) {
        LOAD_BLOCK:
            for (int block = 0; block < blocks; ++block) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
            LOAD:
                for (int i = 0; i < words; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 65536 avg = 16384
                    word_t word;
                    word.lane[0] = i;
                    out.write(word);
                }
            }
        }
        void multiply(hls::stream<word_t>& in, hls::stream<value_t>& out, int tiles, int steps) {
            value_t sum = 0;
        BLOCK:
            for (int block = 0; block < tiles; ++block) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128 avg = 16
            TILE:
                for (int tile = 0; tile < tiles; ++tile) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 1024 avg = 32
                MAC:
                    for (int step = 0; step < steps; ++step) {  //! refill
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 128
                        sum += in.read().lane[0];
                    }
                    out.write(sum);
                }
            }
        }
        void top(hls::stream<value_t>& out, int tiles, int steps) {
        #pragma HLS DATAFLOW
            hls::stream<word_t, 64> words("words");
            load(words, tiles, steps);
            multiply(words, out, tiles, steps);
        }
        """,
        # short bursts
        """
        extern "C" void top(const word_t* in, hls::stream<word_t>& out, int groups, int rows) {
        #pragma HLS INTERFACE m_axi port = in bundle = gmem0 offset = slave
        GROUP:
            for (int group = 0; group < groups; ++group) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 1024
            LOAD:
                for (int i = 0; i < 16; i += rows) {  //! refill
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                    out.write(in[group * 512 + i]);  //! burst
                }
            }
        }
        """,
    ],
}
