// Turning blocks of bytes on the host.
#pragma once

#include <cstdint>
#include <cstring>

namespace ecorl {

/// An 8 x 8 block of bytes, transposed by three rounds of swaps.
inline void transpose8(const std::int8_t* in, std::int64_t in_stride, std::int8_t* out,
                       std::int64_t out_stride) {
    std::uint64_t r[8];
    for (int i = 0; i < 8; ++i) std::memcpy(&r[i], in + i * in_stride, 8);
    for (int i = 0; i < 8; i += 2) {
        const std::uint64_t t = ((r[i] >> 8) ^ r[i + 1]) & 0x00ff00ff00ff00ffULL;
        r[i] ^= t << 8;
        r[i + 1] ^= t;
    }
    for (int i = 0; i < 8; i += (i & 1) ? 3 : 1) {
        const std::uint64_t t = ((r[i] >> 16) ^ r[i + 2]) & 0x0000ffff0000ffffULL;
        r[i] ^= t << 16;
        r[i + 2] ^= t;
    }
    for (int i = 0; i < 4; ++i) {
        const std::uint64_t t = ((r[i] >> 32) ^ r[i + 4]) & 0x00000000ffffffffULL;
        r[i] ^= t << 32;
        r[i + 4] ^= t;
    }
    for (int i = 0; i < 8; ++i) std::memcpy(out + i * out_stride, &r[i], 8);
}

// in [n, d] -> out [d, n]
inline void transpose(const std::int8_t* in, std::int8_t* out, std::int32_t n, std::int32_t d) {
    const std::int32_t whole_n = n / 8 * 8, whole_d = d / 8 * 8;
    for (std::int32_t i = 0; i < whole_n; i += 8) {
        for (std::int32_t j = 0; j < whole_d; j += 8) {
            transpose8(in + (std::int64_t)i * d + j, d, out + (std::int64_t)j * n + i, n);
        }
    }
    for (std::int32_t i = 0; i < n; ++i) {
        for (std::int32_t j = i < whole_n ? whole_d : 0; j < d; ++j) {
            out[(std::int64_t)j * n + i] = in[(std::int64_t)i * d + j];
        }
    }
}

}  // namespace ecorl
