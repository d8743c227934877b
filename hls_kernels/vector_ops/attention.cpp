#include "attention.hpp"

#include <algorithm>
#include <cstring>

#include "../gemm_int8/gemm_int8.hpp"
#include "vector_ops.hpp"

namespace ecorl {

namespace {

int32_t blocks_of(int32_t n) {
    return (n + kKeyBlock - 1) / kKeyBlock;
}
int32_t width_of(int32_t n, int32_t block) {
    return std::min(kKeyBlock, n - block * kKeyBlock);
}

int64_t aligned(int64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

// Packed blocks start at multiples of 64 bytes, as memory on the card would.
uint8_t* base(const std::unique_ptr<uint8_t[]>& buffer) {
    return (uint8_t*)(((uintptr_t)buffer.get() + 63) / 64 * 64);
}

// An 8 x 8 block of bytes, transposed by three rounds of swaps.
void transpose8(const int8_t* in, int64_t in_stride, int8_t* out, int64_t out_stride) {
    uint64_t r[8];
    for (int i = 0; i < 8; ++i) std::memcpy(&r[i], in + i * in_stride, 8);
    for (int i = 0; i < 8; i += 2) {
        const uint64_t t = ((r[i] >> 8) ^ r[i + 1]) & 0x00ff00ff00ff00ffULL;
        r[i] ^= t << 8;
        r[i + 1] ^= t;
    }
    for (int i = 0; i < 8; i += (i & 1) ? 3 : 1) {
        const uint64_t t = ((r[i] >> 16) ^ r[i + 2]) & 0x0000ffff0000ffffULL;
        r[i] ^= t << 16;
        r[i + 2] ^= t;
    }
    for (int i = 0; i < 4; ++i) {
        const uint64_t t = ((r[i] >> 32) ^ r[i + 4]) & 0x00000000ffffffffULL;
        r[i] ^= t << 32;
        r[i + 4] ^= t;
    }
    for (int i = 0; i < 8; ++i) std::memcpy(out + i * out_stride, &r[i], 8);
}

// in [n, d] -> out [d, n]
void transpose(const int8_t* in, int8_t* out, int32_t n, int32_t d) {
    const int32_t whole_n = n / 8 * 8, whole_d = d / 8 * 8;
    for (int32_t i = 0; i < whole_n; i += 8) {
        for (int32_t j = 0; j < whole_d; j += 8) {
            transpose8(in + (int64_t)i * d + j, d, out + (int64_t)j * n + i, n);
        }
    }
    for (int32_t i = 0; i < n; ++i) {
        for (int32_t j = i < whole_n ? whole_d : 0; j < d; ++j) {
            out[(int64_t)j * n + i] = in[(int64_t)i * d + j];
        }
    }
}

}  // namespace

AttentionBuffers::AttentionBuffers(int32_t max_run, int32_t d) {
    const int32_t blocks = blocks_of(max_run), width = std::min(kKeyBlock, max_run);
    packed_bytes_ =
        aligned(std::max(gemm_int8_packed_bytes(width, d), gemm_int8_packed_bytes(d, width)));
    keys_.reset(new uint8_t[packed_bytes_ * blocks + 64]);
    values_.reset(new uint8_t[packed_bytes_ * blocks + 64]);
    turned_.reset(new int8_t[(int64_t)width * d]);
    gathered_.reset(new int8_t[(int64_t)kQueryBlock * d]);
    scores_.reset(new int32_t[(int64_t)kQueryBlock * width * blocks + kPadding]);
    weights_.reset(new int8_t[(int64_t)kQueryBlock * width * blocks]);
    context_.reset(new int32_t[(int64_t)kQueryBlock * d]);
    partial_.reset(new int32_t[(int64_t)kQueryBlock * d]);
    row_.reset(new float[max_run + kPadding]);
    row_weights_.reset(new int8_t[max_run + kPadding]);
}

void AttentionBuffers::pack(const KeysValues& kv) {
    for (int32_t b = 0; b < blocks_of(kv.n); ++b) {
        const int32_t width = width_of(kv.n, b);
        const int64_t at = (int64_t)b * kKeyBlock * kv.d;
        gemm_int8_pack(kv.k + at, base(keys_) + b * packed_bytes_, width, kv.d);
        transpose(kv.v + at, turned_.get(), width, kv.d);
        gemm_int8_pack(turned_.get(), base(values_) + b * packed_bytes_, kv.d, width);
    }
}

// Columns of block b that queries up to `last` can see, in whole groups of 16 rows of the packed
// keys: a prefix of a packed matrix is a packed matrix.
int32_t AttentionBuffers::seen(const KeysValues& kv, int32_t b, int32_t last) {
    const int32_t keys = (last - b * kKeyBlock) / kPadding * kPadding + kPadding;
    return std::min(width_of(kv.n, b), keys);
}

// One softmax row: scores of keys [begin, token] -> INT8 weights in place, zero elsewhere.
void AttentionBuffers::row_weights(const KeysValues& kv, int32_t row, int32_t begin, int32_t token,
                                   int32_t last, float beta) {
    const int32_t n = token + 1 - begin;
    // Runs of several blocks hold one sequence, so begin > 0 occurs in block 0 alone.
    for (int32_t b = 0, done = 0; done < n; ++b) {
        const int32_t width = seen(kv, b, last), first = b == 0 ? begin : 0;
        const int32_t count = std::min(width - first, n - done);
        const int32_t* s =
            scores_.get() + b * kQueryBlock * kKeyBlock + (int64_t)row * width + first;
        vec_scale_scores(s, kv.k_scale + begin + done, row_.get() + done, count);
        done += count;
    }
    worth_[row] = vec_softmax_quantise(row_.get(), kv.v_scale + begin, beta, row_weights_.get(), n);
    for (int32_t b = 0, done = 0; done < n; ++b) {
        const int32_t width = width_of(kv.n, b), first = b == 0 ? begin : 0;
        const int32_t count = std::min(width - first, n - done);
        int8_t* w = weights_.get() + b * kQueryBlock * kKeyBlock + (int64_t)row * width;
        std::memset(w, 0, (size_t)first);
        std::memcpy(w + first, row_weights_.get() + done, (size_t)count);
        std::memset(w + first + count, 0, (size_t)(width - first - count));
        done += count;
    }
}

void AttentionBuffers::attend(const KeysValues& kv, const Queries& queries, float* out,
                              int64_t stride) {
    const int32_t d = kv.d;
    for (int32_t i0 = 0; i0 < queries.n_rows; i0 += kQueryBlock) {
        const int32_t m = std::min(kQueryBlock, queries.n_rows - i0);
        const int32_t* rows = queries.rows ? queries.rows + i0 : nullptr;
        const auto token_of = [&](int32_t i) { return rows ? rows[i] : i0 + i; };
        const int8_t* q = queries.q + (int64_t)i0 * d;
        if (rows) {
            for (int32_t i = 0; i < m; ++i) {
                std::memcpy(gathered_.get() + (int64_t)i * d, queries.q + (int64_t)rows[i] * d,
                            (size_t)d);
            }
            q = gathered_.get();
        }
        const int32_t last = token_of(m - 1), n_blocks = blocks_of(last + 1);
        for (int32_t b = 0; b < n_blocks; ++b) {
            gemm_int8(q, base(keys_) + b * packed_bytes_,
                      scores_.get() + b * kQueryBlock * kKeyBlock, m, seen(kv, b, last), d);
        }
        for (int32_t i = 0; i < m; ++i) {
            const int32_t t = token_of(i);
            row_weights(kv, i, queries.begins[t], t, last, queries.scale[t] * queries.inv_sqrt_d);
            // A row of this query block that ends before the last key block reads zeros there.
            for (int32_t b = blocks_of(t + 1); b < n_blocks; ++b) {
                const int32_t width = width_of(kv.n, b);
                std::memset(weights_.get() + b * kQueryBlock * kKeyBlock + (int64_t)i * width, 0,
                            (size_t)width);
            }
        }
        for (int32_t b = 0; b < n_blocks; ++b) {
            int32_t* c = b == 0 ? context_.get() : partial_.get();
            gemm_int8(weights_.get() + b * kQueryBlock * kKeyBlock,
                      base(values_) + b * packed_bytes_, c, m, d, width_of(kv.n, b));
            if (b == 0) continue;
            for (int32_t j = 0; j < m * d; ++j) context_[j] += partial_[j];
        }
        for (int32_t i = 0; i < m; ++i) {
            vec_scale_context(context_.get() + (int64_t)i * d, worth_[i],
                              out + (int64_t)(i0 + i) * stride, d);
        }
    }
}

}  // namespace ecorl
