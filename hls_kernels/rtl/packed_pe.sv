// packed_pe: one row pair times one column, the element of which gemm_int8's array has 512.
//
// Each DSP48E2 multiplies (high << 18) + low by one weight, so it holds two INT8 products, and
// TILE_K of them form a cascade. Bits 0..17 of the sum are the low result, the bits above are the
// high one, less 1 wherever the low one is negative (its borrow). Up to 7 products of any INT8
// values keep the low result within 18 bits. Both results go to INT32 accumulators.
//
// Slice t adds to what slice t - 1 summed one cycle before. So lane t of a step must come t cycles
// after lane 0, and sum_valid with sum_clear TILE_K + 2 cycles after lane 0, when the last slice
// holds the sum; the accumulators show it one cycle later. The element has no delays of its own:
// whoever shares operands between elements delays them once for all (skew.sv, pe_array.sv).
// A lane without a step may carry anything: sum_valid alone decides what is added.
module packed_pe #(
    parameter TILE_K = 4
) (
    input wire clk,
    input wire [27*TILE_K-1:0] act,    // lane t in bits 27*t and up
    input wire [8*TILE_K-1:0] weight,  // lane t in bits 8*t and up
    input wire sum_valid,              // the cascade's sum belongs to a step: add it
    input wire sum_clear,              // with sum_valid: first step of a tile, start from zero
    output reg signed [31:0] acc_low,
    output reg signed [31:0] acc_high
);
    localparam LOW_BITS = 18;

    wire [48*(TILE_K+1)-1:0] sums;
    assign sums[47:0] = 48'd0;

    genvar t;
    generate
        for (t = 0; t < TILE_K; t = t + 1) begin : cascade
            dsp_slice slice (
                .clk(clk),
                .act(act[27*t+:27]),
                .weight(weight[8*t+:8]),
                .cascade_in(sums[48*t+:48]),
                .cascade_out(sums[48*(t+1)+:48])
            );
        end
    endgenerate

    wire [47:0] sum = sums[48*TILE_K+:48];
    wire borrow = sum[LOW_BITS-1];
    wire signed [31:0] low = {{(32 - LOW_BITS) {borrow}}, sum[LOW_BITS-1:0]};
    wire signed [31:0] high = {{(LOW_BITS - 16) {sum[47]}}, sum[47:LOW_BITS]} + {31'd0, borrow};

    always @(posedge clk) begin
        if (sum_valid) begin
            acc_low <= (sum_clear ? 32'sd0 : acc_low) + low;
            acc_high <= (sum_clear ? 32'sd0 : acc_high) + high;
        end
    end
endmodule
