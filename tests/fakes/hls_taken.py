"""Kernel sources that the lint's rules on hardware take: by rule, what is alike and good."""

from __future__ import annotations

TAKEN = {
    "stream-width": """
        struct line_t { value_t lane[16]; ap_int<3> rest; };
        void top(hls::stream<ap_uint<4096> >& in) {
            hls::stream<line_t, 64> lines("lines");
            lines.write(line_t{});
        }
    """,
    "stream-depth": """
        template <int DEPTH> void region(int n) {
        #pragma HLS DATAFLOW
            hls::stream<word_t, 64> words("words");
            hls::stream<hls::stream<word_t>*, DEPTH> others[2];
        #pragma HLS BIND_STORAGE variable = words type = fifo impl = srl
        }
        void take(hls::stream<word_t>& words) { words.read(); }
        void top(int n) { region<3>(n); }
    """,
    "channels": """
        void add(hls::stream<value_t>& in, const value_t before[16], hls::stream<value_t>& out) {
            out.write(in.read() + before[3]);
        }
        void keep(hls::stream<value_t>& in, value_t made[16], hls::stream<value_t>& out) {
            static hls::stream<value_t, 2> own("own");
            own.write(in.read());
            const value_t sum = own.read();
            made[3] = sum;
            out.write(sum);
        }
        void split(hls::stream<value_t>& in, hls::stream<value_t, 2> (&to)[4]) {
        SPLIT:
            for (int i = 0; i < 2; ++i) to[i].write(in.read());
        }
        template <int I>
        void pass(hls::stream<value_t, 2> (&from)[4], hls::stream<value_t, 2> (&to)[4]) {
            to[I].write(from[I].read());
        }
        void join(hls::stream<value_t, 2> (&from)[4], hls::stream<value_t>& out) {
        JOIN:
            for (int i = 0; i < 2; ++i) out.write(from[i].read());
        }
        void turn(hls::stream<value_t>& in, hls::stream<value_t>& out, const value_t before[16],
                  value_t made[16]) {
        #pragma HLS DATAFLOW
            static hls::stream<value_t, 4> added("added");
            add(in, before, added);
            keep(added, made, out);
        }
        void top(hls::stream<value_t>& in, hls::stream<value_t>& out, int n) {
            static value_t even[16], odd[16];
            hls::stream<value_t, 64> first("first");
            first.write(in.read());  // no region: one after the other
        TURN:
            for (int i = 0; i < n; ++i) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                if (i % 2 == 0) {
                    turn(first, out, odd, even);
                } else {
                    turn(first, out, even, odd);
                }
            }
        ROW:
            for (int i = 0; i < n; ++i) {
        #pragma HLS DATAFLOW
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                hls::stream<value_t, 4> sums("sums");
                add(first, odd, sums);
                keep(sums, even, out);
            }
        }
        void spread(hls::stream<value_t>& in, hls::stream<value_t, 2> (&parts)[3]) {
            parts[0].write(in.read());
            parts[1].write(in.read());
        }
        void add_part(hls::stream<value_t, 2> (&parts)[3], const value_t before[16]) {
            parts[2].write(parts[0].read() + before[3]);
        }
        void gather(hls::stream<value_t, 2> (&parts)[3], hls::stream<value_t>& out) {
            out.write(parts[1].read() + parts[2].read());
        }
        void chain(hls::stream<value_t>& in, const value_t before[16], hls::stream<value_t>& out) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 2> parts[3];
            spread(in, parts);
            add_part(parts, before);
            gather(parts, out);
        }
        void lanes(hls::stream<value_t>& in, hls::stream<value_t>& out) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 2> from[4], to[4];
            split(in, from);
            pass<0>(from, to);
            pass<1>(from, to);
            join(to, out);
        }
    """,
    "pointer-struct": """
        struct channels_t { const value_t* mantissa; };
        struct table_t { value_t value[16]; hls::stream<value_t, 2> out; ap_int<300> wide; };
        value_t first(const channels_t& by) {
        #pragma HLS INLINE
            return by.mantissa[0];
        }
        value_t second(const table_t& table, const value_t* values) { return values[1]; }
        value_t top(const value_t mantissa[16], const table_t& table) {
            return first({mantissa}) + second(table, mantissa);
        }
    """,
    "carried": """
        word_t larger_lanes(const word_t& a, const word_t& b) {
        #pragma HLS INLINE
            word_t word;
            for (int i = 0; i < 16; ++i) {
        #pragma HLS UNROLL
                word.lane[i] = larger(a.lane[i], b.lane[i]);
            }
            return word;
        }
        value_t top(hls::stream<word_t>& in, hls::stream<value_t>& out, const value_t v[64],
                    int n) {
            word_t peak = word_t{}, changed = word_t{};
            value_t only = 0;
            int place = 0;
        WORDS:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 256
                const word_t word = in.read();
                peak = larger_lanes(peak, word);
                only = larger(only, word.lane[0]);  // one a turn
                value_t all = 0;  // of this turn alone
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    changed.lane[lane] |= word.lane[lane] >> 30;
                    all |= word.lane[lane];
                    place += 2;  // constants
                }
                out.write(all);
            }
        ROWS:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 4
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 256
                for (int k = 0; k < 4; ++k) {
        #pragma HLS UNROLL
                    only = larger(only, v[4 * i + k]);  // in time: four in four cycles
                }
            }
        TREE:
            for (int width = 8; width > 0; width /= 2) {
        #pragma HLS UNROLL
                for (int i = 0; i < width; ++i) {
        #pragma HLS UNROLL
                    peak.lane[i] = larger(peak.lane[i], peak.lane[i + width]);
                }
            }
            return peak.lane[0] + changed.lane[3] + only + place;
        }
    """,
    "aggregate": """
        struct step_t { code_t value[4]; };
        struct scale_t { int m, e; };
        struct state_t { step_t query[64][32]; };
        step_t own(const step_t steps[32], int i) {
        #pragma HLS INLINE
            return steps[i];
        }
        void top(hls::stream<step_t>& in, hls::stream<step_t>& out, int n) {
            static state_t state;
        #pragma HLS ARRAY_PARTITION variable = state.query complete dim = 1
        #pragma HLS ARRAY_PARTITION variable = state.query cyclic factor = 2 dim = 2
        #pragma HLS AGGREGATE variable = state.query
            scale_t scale[16];
        #pragma HLS ARRAY_PARTITION variable = scale complete
            static value_t values[2][1024];
        #pragma HLS ARRAY_PARTITION variable = values cyclic factor = 16 dim = 2
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 32
                state.query[0][i] = in.read();
                scale[i & 15].m = i;
                for (int r = 0; r < 64; ++r) {
        #pragma HLS UNROLL
                    out.write(own(state.query[r], i));
                }
                value_t sum = 0;
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    // two words of a bank; of the others one or the other
                    sum += values[0][16 * i + lane] + values[1][16 * i + lane];
                    if (i > 3) {
                        values[0][lane] = sum;
                    } else {
                        sum += values[0][16 * i + lane];
                    }
                }
            }
        }
    """,
    "partition": """
        struct codes_t { code_t code[64]; };
        struct few_t { value_t value[3]; };
        void top(hls::stream<codes_t>& in, hls::stream<code_t>& codes, hls::stream<value_t>& out,
                 value_t given[64], const value_t* memory, int n, int from) {
        #pragma HLS INTERFACE m_axi port = memory bundle = gmem0 offset = slave
            static codes_t beats[16];
        #pragma HLS AGGREGATE variable = beats
        #pragma HLS BIND_STORAGE variable = beats type = ram_2p impl = bram
            codes_t beat = in.read();
        #pragma HLS ARRAY_PARTITION variable = beat.code complete
            value_t rows[4][128];
        #pragma HLS ARRAY_PARTITION variable = rows complete dim = 1
            few_t few = {};
            value_t fixed[64], before[16];
            fixed[0] = before[from] = from;  // in no pipeline
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128
                value_t sum = memory[i] + given[from] + few.value[i & 1];
                for (int lane = 1; lane < 64; ++lane) {
        #pragma HLS UNROLL
                    fixed[lane] = fixed[lane - 1];
                }
                rows[i % 4][i] = sum;
                beats[i % 16] = beat;
                codes.write(beats[from].code[i % 64] + beat.code[i % 16 * 4]);
                out.write(sum + fixed[63]);
            }
        }
    """,
    "mux": """
        struct place_t { int word, base; };
        int next(place_t& at, int unit) {
        #pragma HLS INLINE
            const int place = (at.base + at.word) * 16;
            if (++at.word == unit) {
                at.word = 0;
                at.base += 8;
            }
            return place;
        }
        void top(hls::stream<word_t>& in, hls::stream<word_t>& out, int n, int half) {
            static value_t values[4096];
        #pragma HLS ARRAY_PARTITION variable = values cyclic factor = 16
            static value_t halves[2][64][16];
        #pragma HLS ARRAY_PARTITION variable = halves complete dim = 1
        #pragma HLS ARRAY_PARTITION variable = halves complete dim = 3
            static value_t table[16];
        #pragma HLS ARRAY_PARTITION variable = table complete
            value_t queue[128];
        #pragma HLS ARRAY_PARTITION variable = queue complete
            place_t at = {0, 0};
            int to = 0;
        LOOP:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 128
                const int from = next(at, half);
                const word_t word = in.read();
                word_t sum;
                for (int lane = 0; lane < 16; ++lane) {
        #pragma HLS UNROLL
                    values[half + lane] = word.lane[lane];  // a write
                    sum.lane[lane] = values[from + lane] + values[to + 15 - lane] +
                                     halves[i & 1][half + i][lane] + queue[lane * 8 + 1];
                }
                sum.lane[0] += table[i];
                queue[half] = sum.lane[0];
                to += 32;
                out.write(sum);
            }
        }
    """,
    "wide-scalar": """
        template <int N, int D> ap_int<N + 1> quotient(ap_int<N + 1> n, ap_int<D + 1> d) {
        #pragma HLS INLINE
            return ap_int<N + 1>(n / d);
        }
        constexpr int ceil_div(int a, int b) { return a / b + (a % b != 0 ? 1 : 0); }
        template <int W> int top_bit(ap_int<W> v) {
        #pragma HLS INLINE
            int bit = 0;
            for (int half = 32; half > 0; half >>= 1) {
        #pragma HLS UNROLL
                if (half < W && (v >> half) != 0) {
                    v = v >> half;
                    bit += half;
                }
            }
            return bit;
        }
        template <int UNIT> std::int64_t all(std::int64_t v, int m, int n) {
            constexpr int THIRD = UNIT / 3;
            const int groups = ceil_div(m, 16) + m / UNIT + m % 4 + THIRD;
            const std::int64_t place = static_cast<std::int64_t>(m) * n + v * 127;
            value_t sum = 0;
            for (int i = 0; i < 64; ++i) {
        #pragma HLS UNROLL
                sum += i > 7 ? m : n;
            }
            const ap_int<21> count = n;
            return place + groups + top_bit<63>(v) + quotient<40, 20>(v, count) + sum;
        }
        std::int64_t top(std::int64_t v, int m, int n) { return all<32>(v, m, n); }
    """,
    "axi-aggregate": """
        extern "C" void top(const word_t* in, word_t* out, const word_t* local) {
        #pragma HLS INTERFACE m_axi port = in bundle = gmem0 offset = slave
        #pragma HLS INTERFACE m_axi port = out bundle = gmem1 offset = slave
        #pragma HLS AGGREGATE variable = in compact = auto
        #pragma HLS AGGREGATE variable = out
        #pragma HLS AGGREGATE variable = local compact = bit
            out[0] = in[0];
        }
    """,
    "dataflow-arguments": """
        struct task_t { int op, m; };
        struct lines_t { value_t low[16], high[16]; };
        enum operation { LOAD = 3 };
        constexpr int SIZE = 16;
        void load(hls::stream<value_t>& out, const task_t task, int op, int count) {
            out.write(task.m + op + count);
        }
        void store(hls::stream<value_t>& in, value_t out[16], std::int64_t m) {
            out[m & 15] = in.read();
        }
        template <int N> void region(lines_t& lines, const task_t& task, int m) {
        #pragma HLS DATAFLOW
            hls::stream<value_t, 4> values("values");
            load(values, task, LOAD, N);
            store(values, lines.high, m);
        }
        int twice(int m) { return 2 * m; }
        void top(lines_t& lines, const task_t task) {
            const int m = twice(task.m);
            region<SIZE>(lines, task, twice(m));  // no region, so an expression may stand here
        }
    """,
    "burst": """
        struct job_t { int place, n; };
        void read(const word_t* in, hls::stream<word_t>& out, std::int64_t first, int n) {
        READ:
            for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096
                out.write(in[first + i]);
            }
        }
        extern "C" void top(const word_t* in, word_t* out, value_t* marks, const job_t* jobs,
                            hls::stream<word_t>& words, hls::stream<job_t>& places, int n) {
        #pragma HLS INTERFACE m_axi port = in bundle = gmem0 offset = slave
        #pragma HLS INTERFACE m_axi port = out bundle = gmem1 offset = slave
        #pragma HLS INTERFACE m_axi port = marks bundle = gmem2 offset = slave
        #pragma HLS INTERFACE m_axi port = jobs bundle = gmem3 offset = slave
            int at = 16;
        JOBS:
            for (int j = 0; j < n; ++j) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                const job_t job = jobs[j];
                if (job.n > 3) read(in, words, std::int64_t{2} * job.place, job.n);
            WRITE:
                for (int i = job.n; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 1024
                    word_t word;
                    if (i < 100) {
                        word = words.read();
                    } else {
                        word.lane[0] = i;
                    }
                    out[job.place * 512 + (i - 3)] = word;
                    for (int k = 0; k < 4; ++k) {
        #pragma HLS UNROLL
                        marks[4 * i + k] = word.lane[k];
                    }
                }
            PLACES:
                for (int i = 0; i < n; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 1024
                    const job_t next = places.read();
                    marks[next.place] = next.n;  // anywhere
                    out[at++] = word_t{};
                }
            }
        }
    """,
    "burst-size": """
        struct odd_t { value_t lane[5]; };
        extern "C" void top(const word_t* in, word_t* out, const odd_t* odd, const value_t* marks,
                            const value_t* list) {
        #pragma HLS INTERFACE m_axi port = in bundle = gmem0 max_read_burst_length = \\
            64 num_read_outstanding = 16 offset = slave
        #pragma HLS INTERFACE m_axi port = out bundle = gmem1 offset = slave
        #pragma HLS INTERFACE m_axi port = odd bundle = gmem2 max_read_burst_length = 128
        #pragma HLS INTERFACE m_axi port = marks bundle = gmem3 max_read_burst_length = 256
        #pragma HLS INTERFACE m_axi port = list bundle = gmem3 max_read_burst_length = 256
        #pragma HLS INTERFACE s_axilite port = return
            out[0] = in[0];
        }
    """,
    "refill": """
        struct page_t { int number; };
        extern "C" void top(const word_t* in, const page_t* table, hls::stream<word_t>& out, int n,
                            int rows) {
        #pragma HLS INTERFACE m_axi port = in bundle = gmem0 offset = slave
        #pragma HLS INTERFACE m_axi port = table bundle = gmem1 offset = slave
        GROUP:
            for (int group = 0; group < n; ++group) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 1024
            LONG:
                for (int i = 0; i < rows; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 256
                    out.write(in[group * 4096 + i]);
                }
            }
        PAGE:
            for (int p = 0; p < n; ++p) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 4096 avg = 1024
                const page_t page = table[p];
            READ:
                for (int i = 0; i < rows; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 64
                    out.write(in[page.number * 64 + i]);  // wherever the page is
                }
            }
        FEW:
            for (int p = 0; p < n; ++p) {
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
            BEGIN:
                for (int i = 0; i < rows; ++i) {
        #pragma HLS PIPELINE II = 1
        #pragma HLS LOOP_TRIPCOUNT min = 1 max = 16
                    out.write(in[p * 64 + i]);  // 256 turns in all
                }
            }
        }
    """,
}
