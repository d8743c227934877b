// The vector operations themselves, one namespace per width of register; see lanes.hpp. Included
// by vector_ops.cpp, hence no include guard. What each does is said in vector_ops.hpp.

constexpr float kTiny = 1e-30f;
constexpr int32_t kInfinityBits = 0x7f800000;

// What a row's largest magnitude makes of it: the factor to multiply with before rounding, and
// max|x| / 127. `factor` 0 with `scale` NaN marks a row that is not finite.
struct RowScale {
    float factor;
    float scale;
};

static RowScale row_scale_of(int32_t max_bits) {
    if (max_bits >= kInfinityBits) return {0.0f, std::numeric_limits<float>::quiet_NaN()};
    float max;
    std::memcpy(&max, &max_bits, sizeof max);
    if (max < kTiny) return {0.0f, 0.0f};
    return {127.0f / max, max / 127.0f};
}

// q [n] = round(x * factor)
ECORL_INLINE void quantise_row(const float* x, float factor, int8_t* q, int32_t n) {
    if (factor == 0.0f) {
        std::memset(q, 0, (size_t)n);
        return;
    }
    const Floats f = splat(factor);
    each_block(n, ECORL_BLOCK { store(q + j, narrow(round_lanes(load(x + j, w) * f)), w); });
}

// 1 / (1 + e^-g) * g
ECORL_INLINE Floats silu(Floats g) {
    return g / (splat(1.0f) + exp_lanes(splat(0.0f) - g));
}

ECORL_INLINE Floats dequantised(const int32_t* acc, const float* channel_scale, Floats row, int n) {
    return (to_float(load(acc, n)) * load(channel_scale, n)) * row;
}

static void rmsnorm_quantise(const float* x, const float* weight, float eps, int8_t* q,
                             float* scale, int32_t m, int32_t n) {
    for (int32_t i = 0; i < m; ++i) {
        const float* row = x + (int64_t)i * n;
        Floats squares = splat(0.0f);
        Ints largest = splat((int32_t)0);
        each_block(
            n, ECORL_BLOCK {
                const Floats v = load(row + j, w);
                squares = squares + v * v;
                largest = max_of(largest, magnitude_bits(v * load(weight + j, w)));
            });
        const float mean = sum_lanes(squares) / (float)n;
        const float inverse = 1.0f / std::sqrt(mean + eps);
        const RowScale r = row_scale_of(max_lanes(largest));
        scale[i] = r.scale * inverse;
        int8_t* out = q + (int64_t)i * n;
        if (r.factor == 0.0f) {
            std::memset(out, 0, (size_t)n);
            continue;
        }
        const Floats f = splat(r.factor);
        each_block(
            n, ECORL_BLOCK {
                const Floats v = load(row + j, w) * load(weight + j, w);
                store(out + j, narrow(round_lanes(v * f)), w);
            });
    }
}

static void quantise(const float* x, int8_t* q, float* scale, int32_t m, int32_t n) {
    for (int32_t i = 0; i < m; ++i) {
        const float* row = x + (int64_t)i * n;
        Ints largest = splat((int32_t)0);
        each_block(n, ECORL_BLOCK { largest = max_of(largest, magnitude_bits(load(row + j, w))); });
        const RowScale r = row_scale_of(max_lanes(largest));
        scale[i] = r.scale;
        quantise_row(row, r.factor, q + (int64_t)i * n, n);
    }
}

static void dequantise_add(const int32_t* acc, const float* row_scale, const float* channel_scale,
                           const float* bias, float* out, int32_t m, int32_t n) {
    for (int32_t i = 0; i < m; ++i) {
        const Floats s = splat(row_scale[i]);
        const int32_t* a = acc + (int64_t)i * n;
        float* o = out + (int64_t)i * n;
        each_block(
            n, ECORL_BLOCK {
                Floats v = dequantised(a + j, channel_scale + j, s, w);
                if (bias) v = v + load(bias + j, w);
                store(o + j, load(o + j, w) + v, w);
            });
    }
}

static float rope_quantise(const int32_t* acc, float row_scale, const float* channel_scale,
                           const float* bias, const float* cosine, const float* sine, int8_t* q,
                           int32_t d) {
    constexpr int32_t kMaxHead = 1024;
    float x[kMaxHead];
    const Floats s = splat(row_scale);
    const int32_t half = d / 2;
    Ints largest = splat((int32_t)0);
    each_block(
        half, ECORL_BLOCK {
            Floats a = dequantised(acc + j, channel_scale + j, s, w);
            Floats b = dequantised(acc + half + j, channel_scale + half + j, s, w);
            if (bias) {
                a = a + load(bias + j, w);
                b = b + load(bias + half + j, w);
            }
            if (cosine) {
                const Floats c = load(cosine + j, w), t = load(sine + j, w);
                const Floats turned = a * c - b * t;
                b = b * c + a * t;
                a = turned;
            }
            largest = max_of(largest, max_of(magnitude_bits(a), magnitude_bits(b)));
            store(x + j, a, w);
            store(x + half + j, b, w);
        });
    const RowScale r = row_scale_of(max_lanes(largest));
    quantise_row(x, r.factor, q, d);
    return r.scale;
}

static void swiglu_quantise(const int32_t* acc, const float* row_scale, const float* channel_scale,
                            int8_t* q, float* scale, float* scratch, int32_t m, int32_t n) {
    for (int32_t i = 0; i < m; ++i) {
        const int32_t *gate = acc + (int64_t)i * 2 * n, *up = gate + n;
        const Floats s = splat(row_scale[i]);
        Ints largest = splat((int32_t)0);
        each_block(
            n, ECORL_BLOCK {
                const Floats g = dequantised(gate + j, channel_scale + j, s, w);
                const Floats u = dequantised(up + j, channel_scale + n + j, s, w);
                const Floats h = silu(g) * u;
                largest = max_of(largest, magnitude_bits(h));
                store(scratch + j, h, w);
            });
        const RowScale r = row_scale_of(max_lanes(largest));
        scale[i] = r.scale;
        quantise_row(scratch, r.factor, q + (int64_t)i * n, n);
    }
}

// f = scores * key_scale. Whole blocks: what lies beyond n is read and written, never used.
static void scale_scores(const int32_t* scores, const float* key_scale, float* f, int32_t n) {
    for (int32_t j = 0; j < n; j += kLanes) {
#pragma HLS PIPELINE II = 1
        store(f + j, to_float(load(scores + j)) * load(key_scale + j));
    }
}

static void scale_context(const int32_t* acc, float worth, float* out, int32_t n) {
    const Floats s = splat(worth);
    each_block(n, ECORL_BLOCK { store(out + j, to_float(load(acc + j, w)) * s, w); });
}

// Whole blocks, as scale_scores; lanes beyond n are masked.
static float softmax_quantise(float* f, const float* value_scale, float beta, int8_t* q,
                              int32_t n) {
    Floats top = splat(f[0]);
    each_block(
        n, ECORL_BLOCK {
            const Floats v = load(f + j);
            top = max_of(w == kLanes ? v : select(first_lanes(w), v, top), top);
        });
    const Floats max = splat(max_lanes(top)), b = splat(beta);
    Floats sum = splat(0.0f);
    Ints largest = splat((int32_t)0);
    each_block(
        n, ECORL_BLOCK {
            Floats p = exp_bounded((load(f + j) - max) * b);
            Floats weighted = p * load(value_scale + j);
            if (w < kLanes) {
                p = select(first_lanes(w), p, splat(0.0f));
                weighted = select(first_lanes(w), weighted, splat(0.0f));
            }
            sum = sum + p;
            largest = max_of(largest, magnitude_bits(weighted));
            store(f + j, weighted);
        });
    const RowScale r = row_scale_of(max_lanes(largest));
    const Floats factor = splat(r.factor);
    for (int32_t j = 0; j < n; j += kLanes) {
#pragma HLS PIPELINE II = 1
        // a row that is not finite has factor 0, and its NaN must not become an arbitrary integer
        const Ints rounded = round_lanes(load(f + j) * factor);
        store(q + j, narrow(r.factor == 0.0f ? splat((int32_t)0) : rounded));
    }
    return r.scale / sum_lanes(sum);
}

static void log_sum_exp(const int32_t* acc, float row_scale, const float* channel_scale, float* z,
                        LogSumExp* state, int32_t n) {
    const Floats s = splat(row_scale);
    Floats top = splat(-std::numeric_limits<float>::infinity());
    each_block(
        n, ECORL_BLOCK {
            const Floats v = dequantised(acc + j, channel_scale + j, s, w);
            top = max_of(w >= kLanes ? v : select(first_lanes(w), v, top), top);
            store(z + j, v, w);
        });
    const float block_maximum = max_lanes(top);
    if (block_maximum > state->maximum) {
        // exp of -inf - x clamps to about 1e-38, times a sum of 0: nothing is added
        const Floats rescale = exp_lanes(splat(state->maximum - block_maximum));
        state->sum *= (double)first_lane(rescale);
        state->maximum = block_maximum;
    }
    const Floats max = splat(state->maximum);
    Floats sum = splat(0.0f);
    each_block(
        n, ECORL_BLOCK {
            Floats p = exp_bounded(load(z + j, w) - max);
            if (w < kLanes) p = select(first_lanes(w), p, splat(0.0f));
            sum = sum + p;
        });
    state->sum += (double)sum_lanes(sum);
}

static void exponentials(const float* x, float* y, int32_t n) {
    each_block(n, ECORL_BLOCK { store(y + j, exp_lanes(load(x + j, w)), w); });
}

static const RowOps kRowOps = {rmsnorm_quantise, quantise,     dequantise_add,   rope_quantise,
                               swiglu_quantise,  scale_scores, softmax_quantise, scale_context,
                               log_sum_exp,      exponentials};
