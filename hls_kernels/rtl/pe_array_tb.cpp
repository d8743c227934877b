// Bench of pe_array: does what gemm_int8's mac_array does with streams around it. The first block's
// activations fill one half of the banks; then the tiles of a block run while the next block's
// activations go into the other half, and weights come from memory once for each block.
//
//   in   INT32 blocks, tiles a block, steps a tile, length of the pattern
//        pattern bytes, repeated: bit 0 the array may run, bit 1 a weight word is offered,
//        bit 2 an activation word is offered
//        activation words [block][group][step], weight words [block][tile][step]
//   out  INT32 sums [block][tile][row][column], then INT32: cycles from the first step to the last
//        tile, steps taken, weight words that went in before the first step
#include <verilated.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "Vpe_array.h"

namespace {

constexpr int TILE_K = 4;
constexpr int WORD_BYTES = TILE_K * COLUMNS;
constexpr int GROUPS = 2 * ROW_PAIRS / COLUMNS;
constexpr int SUMS = 2 * ROW_PAIRS * COLUMNS;
constexpr int PATIENCE = 100000;  // cycles without a step or a word before the bench gives up

static_assert(WORD_BYTES > 8, "Verilator gives wide ports as arrays");
static_assert(2 * ROW_PAIRS % COLUMNS == 0, "a word fills whole groups of rows");

struct job_t {
    std::int32_t blocks, tiles, steps, pattern_length;
    std::vector<unsigned char> pattern, acts, weights;
};

struct result_t {
    std::vector<std::int32_t> sums;
    std::int32_t cycles = 0, steps = 0, words_before = 0;
};

bool read_job(const char* path, job_t& job) {
    std::FILE* in = std::fopen(path, "rb");
    if (!in) return false;
    bool whole = std::fread(&job, sizeof(std::int32_t), 4, in) == 4;
    if (whole) {
        const std::size_t block = static_cast<std::size_t>(job.steps) * WORD_BYTES;
        job.pattern.resize(job.pattern_length);
        job.acts.resize(job.blocks * GROUPS * block);
        job.weights.resize(job.blocks * job.tiles * block);
        for (auto* part : {&job.pattern, &job.acts, &job.weights}) {
            whole = whole && std::fread(part->data(), 1, part->size(), in) == part->size();
        }
    }
    std::fclose(in);
    return whole;
}

class bench {
  public:
    bench(VerilatedContext& context, const job_t& job)
        : array_(std::make_unique<Vpe_array>(&context)), job_(job) {}

    bool run(result_t& result) {
        reset();
        const std::int64_t n_tiles = std::int64_t{job_.blocks} * job_.tiles;
        for (int idle = 0; idle < PATIENCE; ++idle) {
            if (cycle(result)) idle = 0;
            if (static_cast<std::int64_t>(result.sums.size()) == n_tiles * SUMS) return true;
        }
        return false;
    }

  private:
    void clock() {
        array_->clk = 0;
        array_->eval();
        array_->clk = 1;
        array_->eval();
    }

    void reset() {
        array_->rst = 1;
        array_->run = array_->weight_valid = array_->fill_valid = 0;
        array_->last_step = job_.steps - 1;
        array_->half = 0;
        clock();
        clock();
        array_->rst = 0;
    }

    /// One clock cycle; true when something moved.
    bool cycle(result_t& result) {
        const int wishes = job_.pattern[now_++ % job_.pattern.size()];
        const std::int64_t block_steps = std::int64_t{job_.tiles} * job_.steps;
        const std::int64_t block_words = std::int64_t{GROUPS} * job_.steps;
        const std::int64_t block = result.steps / block_steps;
        const bool filled = fills_ >= (block + 1) * block_words;
        array_->run = (wishes & 1) && filled && block < job_.blocks;
        array_->half = block & 1;

        // The half that is read is not filled: one block ahead at most.
        const bool room = fills_ < (block + 2) * block_words;
        const bool fill = (wishes & 4) && room && offer(job_.acts, fills_, array_->fill_word);
        array_->fill_valid = fill;
        array_->fill_half = fills_ / block_words & 1;
        array_->fill_group = fills_ % block_words / job_.steps;
        array_->fill_step = fills_ % job_.steps;
        const bool weight = (wishes & 2) && offer(job_.weights, weights_, array_->weight_word);
        array_->weight_valid = weight;

        array_->clk = 0;
        array_->eval();
        const bool step = array_->step_taken;
        const bool taken = weight && array_->weight_ready;
        array_->clk = 1;
        array_->eval();

        fills_ += fill;
        weights_ += taken;
        if (result.steps == 0 && !step) result.words_before += taken;
        result.steps += step;
        if (result.steps > 0) ++result.cycles;
        if (array_->tile_valid) {
            for (int i = 0; i < SUMS; ++i) result.sums.push_back(array_->tile[i]);
        }
        return step || fill || taken;
    }

    template <typename Wide>
    static bool offer(const std::vector<unsigned char>& words, std::int64_t place, Wide& port) {
        const std::size_t first = static_cast<std::size_t>(place) * WORD_BYTES;
        if (first >= words.size()) return false;
        std::memcpy(&port[0], &words[first], WORD_BYTES);
        return true;
    }

    std::unique_ptr<Vpe_array> array_;
    const job_t& job_;
    std::size_t now_ = 0;
    std::int64_t fills_ = 0, weights_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc != 4) {
        std::fprintf(stderr, "usage: tb IN OUT SEED\n");
        return 2;
    }
    VerilatedContext context;
    context.randReset(2);
    context.randSeed(static_cast<int>(std::strtol(argv[3], nullptr, 10)));
    job_t job;
    if (!read_job(argv[1], job)) {
        std::fprintf(stderr, "%s cannot be read\n", argv[1]);
        return 2;
    }
    result_t result;
    if (!bench(context, job).run(result)) {
        std::fprintf(stderr, "the array stands still\n");
        return 1;
    }
    std::FILE* out = std::fopen(argv[2], "wb");
    if (!out) return 2;
    std::fwrite(result.sums.data(), sizeof(std::int32_t), result.sums.size(), out);
    const std::int32_t counts[] = {result.cycles, result.steps, result.words_before};
    std::fwrite(counts, sizeof counts, 1, out);
    return std::fclose(out) == 0 ? 0 : 2;
}
