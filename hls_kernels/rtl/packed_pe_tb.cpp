// Bench of packed_pe: one record of inputs for each clock cycle from a file, the accumulators after
// each cycle into another. What the inputs mean and what must come out is known to the caller.
//
//   in   27-bit operand of lanes 0..3 (INT32 each), weight of lanes 0..3 (INT8 each),
//        sum_valid, sum_clear (one byte each): 22 bytes a cycle
//   out  acc_low, acc_high (INT32 each): 8 bytes a cycle
#include <verilated.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "Vpacked_pe.h"

namespace {

constexpr int TILE_K = 4;
constexpr int ACT_BITS = 27;
constexpr std::size_t RECORD_BYTES = 5 * TILE_K + 2;

template <typename Wide>
void set_bits(Wide& target, int first, int count, std::uint32_t value) {
    for (int i = 0; i < count; ++i) {
        const int bit = first + i;
        const std::uint32_t mask = std::uint32_t{1} << (bit % 32);
        target[bit / 32] = (value >> i & 1u) ? target[bit / 32] | mask : target[bit / 32] & ~mask;
    }
}

void drive(Vpacked_pe& pe, const unsigned char* record) {
    std::uint32_t act[TILE_K], weights = 0;
    std::memcpy(act, record, sizeof act);
    std::memcpy(&weights, record + sizeof act, sizeof weights);
    for (int t = 0; t < TILE_K; ++t) set_bits(pe.act, ACT_BITS * t, ACT_BITS, act[t]);
    pe.weight = weights;
    pe.sum_valid = record[RECORD_BYTES - 2];
    pe.sum_clear = record[RECORD_BYTES - 1];
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: tb IN OUT SEED\n");
        return 2;
    }
    VerilatedContext context;
    context.randReset(2);
    context.randSeed(static_cast<int>(std::strtol(argv[3], nullptr, 10)));
    const auto pe = std::make_unique<Vpacked_pe>(&context);
    std::FILE* in = std::fopen(argv[1], "rb");
    std::FILE* out = std::fopen(argv[2], "wb");
    if (!in || !out) return 2;
    unsigned char record[RECORD_BYTES];
    while (std::fread(record, RECORD_BYTES, 1, in) == 1) {
        drive(*pe, record);
        pe->clk = 0;
        pe->eval();
        pe->clk = 1;
        pe->eval();
        const std::uint32_t sums[2] = {pe->acc_low, pe->acc_high};
        std::fwrite(sums, sizeof sums, 1, out);
    }
    std::fclose(in);
    return std::fclose(out) == 0 ? 0 : 2;
}
