// The activations of one row pair, in two halves: one is read while the other is filled.
//
// A word holds TILE_K values of the low row, then TILE_K of the high row: 64 of an URAM's 72 bits,
// and STEPS = 4,096 words fill its depth, so that a half is one URAM288. All columns share the
// packed operands that come out, two cycles after read_enable.
module row_bank #(
    parameter TILE_K = 4,
    parameter STEPS = 4096
) (
    input wire clk,
    input wire fill_enable,
    input wire fill_half,
    input wire [$clog2(STEPS)-1:0] fill_step,
    input wire [16*TILE_K-1:0] fill_pair,
    input wire read_enable,
    input wire read_half,
    input wire [$clog2(STEPS)-1:0] read_step,
    output reg [27*TILE_K-1:0] act
);
    wire [16*TILE_K-1:0] reads[0:1];
    reg half_q;
    wire [16*TILE_K-1:0] pair = reads[half_q];

    genvar h, t;
    generate
        for (h = 0; h < 2; h = h + 1) begin : half
            // Nobody reads the half that is being filled.
            (* ram_style = "ultra", no_rw_check *)
            reg [16*TILE_K-1:0] words[0:STEPS-1];
            reg [16*TILE_K-1:0] word;
            always @(posedge clk) begin
                if (fill_enable && fill_half == h) words[fill_step] <= fill_pair;
                if (read_enable && read_half == h) word <= words[read_step];
            end
            assign reads[h] = word;
        end
        for (t = 0; t < TILE_K; t = t + 1) begin : pack
            wire signed [7:0] low = pair[8*t+:8];
            wire signed [7:0] high = pair[8*(TILE_K+t)+:8];
            always @(posedge clk) begin
                act[27*t+:27] <= {high[7], high, 18'd0} + {{19{low[7]}}, low};
            end
        end
    endgenerate

    always @(posedge clk) half_q <= read_half;
endmodule
